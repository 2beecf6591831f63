"""What a new user tried on a shared process: suites that plain pytest runs, and tests that treat it badly."""

from __future__ import annotations

import re
import shlex
import subprocess

AUTO = "--rl-group=auto"

TAKES_TWO = """
    import os
    import pytest

    done = set()

    @pytest.mark.parametrize("i", range(12))
    def test_step(i):
        if i in (2, 5):
            done.add(i)

    def test_victim():
        if len(done) == 2:
            os.abort()

    def test_after(): pass
"""


def test_damage_that_takes_two_tests_is_reproduced_and_nobody_is_accused(run_pytest):
    outcome = run_pytest(TAKES_TWO, AUTO)
    assert outcome.tests.pop("test_victim") == "failed", outcome.text
    assert set(outcome.tests.values()) == {"passed"}
    assert "No single culprit found: 2 of the tests that ran before" in outcome.details["test_victim"]
    command = re.findall(r"^Reproduce: (.*)$", outcome.text, re.MULTILINE)[-1]
    assert "test_step[2]" in command
    assert "test_step[5]" in command
    assert command.count("test_step") == 2
    again = subprocess.run(shlex.split(command), cwd=run_pytest.path, capture_output=True, text=True, check=False)
    assert "test_victim - CRASH: SIGABRT in call" in again.stdout


TAKES_ALL_DESCRIPTORS = """
    import os
    import pytest
    import resource

    taken = []

    def test_before(): pass

    def test_takes_all():
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        with pytest.raises(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))

    def test_needs_none(): pass
    def test_needs_one():
        with open("/dev/null"):
            pass
"""


def test_a_test_that_takes_all_descriptors_is_no_fault_of_ours(run_pytest):
    outcome = run_pytest(TAKES_ALL_DESCRIPTORS, AUTO)
    assert "internal error" not in outcome.text
    assert outcome.tests.pop("test_needs_one") == "failed"
    assert set(outcome.tests.values()) == {"passed"}
    assert "4 tests in 1 process" in outcome.text
    assert "-> /dev/null (since test_it.py::test_takes_all)" in outcome.text


DOCTESTS = '''
    def wrong():
        """
        >>> 1 + 1
        3
        """

    def right():
        """
        >>> 1 + 1
        2
        """

    def test_fails(): assert 1 == 2
'''


def test_a_doctest_has_the_summary_that_plain_pytest_gives_it(run_pytest):
    plain = run_pytest(DOCTESTS, "--doctest-modules", on=False)
    outcome = run_pytest(DOCTESTS, "--doctest-modules", AUTO)
    assert outcome.tests == plain.tests
    assert summary(outcome.text) == summary(plain.text)
    assert "FAILED test_it.py::test_it.wrong" in summary(plain.text)
    assert "FAILED test_it.py::test_fails - assert 1 == 2" in summary(outcome.text)
    for line in ("Expected:", "Got:", "test_it.py:4: DocTestFailure"):
        assert line in outcome.text
    assert outcome.details["test_it.wrong"].startswith(plain.details["test_it.wrong"])


def summary(text: str) -> list[str]:
    return re.findall(r"^(?:FAILED|ERROR) .*$", text, re.MULTILINE)
