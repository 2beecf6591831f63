"""A shared process that goes away for a reason that is not its next test's."""

from __future__ import annotations


def test_an_error_of_a_hook_ends_no_innocent_test(run_pytest):
    run_pytest.write(
        "conftest.py",
        """
        import pytest
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item):
            report = yield
            if item.name == "test_2" and report.when == "call":
                raise ValueError("a mistake of the hook")
            return report
        """,
    )
    outcome = run_pytest("def test_1(): pass\ndef test_2(): pass\ndef test_3(): pass\n", "--rl-group=auto")
    assert outcome.tests == {"test_1": "passed", "test_2": "error", "test_3": "passed"}, outcome.text
    assert "a mistake of the hook" in outcome.text


def test_a_tear_down_that_fails_after_the_run_was_stopped_is_the_users(run_pytest):
    outcome = run_pytest(
        """
        import pytest

        @pytest.fixture(scope="module")
        def world():
            yield
            raise ValueError("cannot close")

        def test_1(world): pass
        def test_2(world): assert 0
        def test_3(world): pass
        """,
        "--rl-group=auto",
        "-x",
    )
    assert outcome.code == 1
    assert "ValueError: cannot close" in outcome.text
    assert "internal error" not in outcome.text


def test_the_death_of_the_process_that_starts_tests_is_not_the_next_tests(run_pytest):
    outcome = run_pytest(
        """
        import os, signal
        import pytest

        def test_1(): pass

        @pytest.mark.rl_isolated
        def test_kills_its_parent(): os.kill(os.getppid(), signal.SIGKILL)

        def test_3(): pass
        """,
        "--rl-group=auto",
    )
    failed = {name for name, result in outcome.tests.items() if result != "passed"}
    assert failed == {"test_kills_its_parent"}, outcome.text


def test_memory_over_the_cap_is_said_once(run_pytest):
    outcome = run_pytest(
        "def test_1(): [bytearray(b'x' * 10_000_000) for _ in range(60)]\ndef test_2(): pass\n",
        "--rl-group=auto",
        "--rl-memory=300MiB",
    )
    assert outcome.text.count("CRASH: ") == 2, outcome.text  # in the failure, and in the summary
    assert outcome.tests["test_2"] == "passed"


def test_a_parent_that_is_stopped_goes_on(run_pytest):
    outcome = run_pytest(
        """
        import os, signal
        import pytest

        @pytest.mark.rl_isolated
        def test_stops_its_parent(): os.kill(os.getppid(), signal.SIGSTOP)

        @pytest.mark.rl_isolated
        def test_next(): pass
        """,
        "--rl-stall-after=4s",
    )
    assert outcome.tests == {"test_stops_its_parent": "passed", "test_next": "passed"}, outcome.text
