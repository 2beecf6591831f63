"""How ``benchmarks/peers.py`` judges a run, on made-up JUnit files and outputs: each cell can come out either way."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import peer_cases
import peers
from peers import Outcome

ROOT = Path(__file__).parents[2]

BOTH_PASSED = Outcome(0, {"test_bad": "passed", "test_good": "passed"})
BAD_FAILED = Outcome(1, {"test_bad": "failed", "test_good": "passed"}, {"test_bad": "it died"})
RUN_DIED = Outcome(-11, {})
CUT_OFF = Outcome(None, {"test_bad": "failed", "test_good": "passed"})


def with_report(text: str) -> Outcome:
    return replace(BAD_FAILED, reports={"test_bad": text})


def test_junit_file_is_read() -> None:
    tests, reports = peers.read_junit(
        """<testsuites><testsuite>
        <testcase classname="test_case" name="test_bad"/>
        <testcase classname="test_case" name="test_bad"><error message="failed on teardown">stack</error></testcase>
        <testcase classname="test_case" name="test_case.py::test_lost"><failure message="worker crashed"/></testcase>
        <testcase classname="test_case" name="test_good"/>
        <testcase classname="test_case" name="test_left_out"><skipped message="why"/></testcase>
        </testsuite></testsuites>"""
    )
    assert tests == {"test_bad": "failed", "test_lost": "failed", "test_good": "passed", "test_left_out": "skipped"}
    assert reports == {"test_bad": "failed on teardown\nstack", "test_lost": "worker crashed"}


def test_failure_is_not_hidden_by_a_later_pass() -> None:
    tests, _ = peers.read_junit('<t><testcase name="test_bad"><failure/></testcase><testcase name="test_bad"/></t>')
    assert tests == {"test_bad": "failed"}


@pytest.mark.parametrize("text", ["", '<testsuites><testcase name="test_bad">'])
def test_junit_file_that_was_not_finished_says_nothing(text: str) -> None:
    assert peers.read_junit(text) == ({}, {})


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (BOTH_PASSED, "yes"),
        (replace(BOTH_PASSED, exit_code=1), "no"),
        (replace(BOTH_PASSED, exit_code=None), "no"),
        (BAD_FAILED, "no"),
        (RUN_DIED, "no"),
        (Outcome(0, {}), "no"),
    ],
)
def test_green(outcome: Outcome, expected: str) -> None:
    assert peers.green(outcome) == expected


@pytest.mark.parametrize(
    ("outcome", "is_reported", "is_contained"),
    [
        (BAD_FAILED, "yes", "yes"),
        (replace(BAD_FAILED, tests={"test_bad": "failed"}), "yes", "no"),
        (replace(BAD_FAILED, tests={"test_bad": "failed", "test_good": "failed"}), "no", "no"),
        (replace(BAD_FAILED, tests={"test_bad": "passed", "test_good": "failed"}), "no", "no"),
        (replace(BAD_FAILED, exit_code=3), "no", "no"),
        (BOTH_PASSED, "no", "no"),
        (CUT_OFF, "no", "no"),
        (RUN_DIED, "no", "no"),
    ],
)
def test_reported_and_contained(outcome: Outcome, is_reported: str, is_contained: str) -> None:
    assert (peers.reported(outcome), peers.contained(outcome)) == (is_reported, is_contained)


def test_line_is_named_in_the_report_or_only_in_the_output() -> None:
    line = peer_cases.line_of_crash()
    assert "string_at" in peer_cases.SEGFAULT.splitlines()[line - 1]
    stack = f'File "/tmp/x/test_case.py", line {line} in read_nothing'
    assert peers.names_line(with_report(stack)) == "yes"
    assert peers.names_line(with_report(f"test_case.py:{line}: Segmentation fault")) == "yes"
    assert peers.names_line(replace(BAD_FAILED, output=f"==== FAILURES ====\n{stack}\n")) == "yes"
    assert peers.names_line(replace(BAD_FAILED, output=f"{stack}\n==== FAILURES ====\n")) == "on stderr"
    assert peers.names_line(with_report(f"test_case.py:{line}0: crashed")) == "no"
    assert peers.names_line(with_report(f"test_case.py:{line + 2}: running the test CRASHED with signal 11")) == "no"


def test_signal_of_a_worker_is_named() -> None:
    assert peers.names_signal(with_report("CRASH: worker process 17 died by SIGKILL")) == "yes"
    assert peers.names_signal(with_report("worker has exit code -9")) == "yes"
    assert peers.names_signal(with_report("EOFError\n    os.kill(os.getpid(), 9)")) == "no"
    assert peers.names_signal(replace(with_report("SIGKILL"), exit_code=None)) == "no"
    assert "SIGKILL" not in peer_cases.WORKER_KILLED


@pytest.mark.parametrize(
    ("python", "native", "expected"),
    [
        (BAD_FAILED, BAD_FAILED, "yes"),
        (BAD_FAILED, CUT_OFF, "Python's only"),
        (CUT_OFF, BAD_FAILED, "native only"),
        (CUT_OFF, CUT_OFF, "no"),
    ],
)
def test_run_goes_on(python: Outcome, native: Outcome, expected: str) -> None:
    assert peers.goes_on(python, native) == expected


def test_deadlock_told_from_slow_needs_both() -> None:
    assert peers.told_from_slow(BAD_FAILED, BOTH_PASSED) == "yes"
    assert peers.told_from_slow(BAD_FAILED, BAD_FAILED) == "no"
    assert peers.told_from_slow(CUT_OFF, BOTH_PASSED) == "no"


def test_leak_is_reported_as_one() -> None:
    assert peers.leak_reported(with_report("LEAK: python grows by 1 block per lap")) == "yes"
    assert peers.leak_reported(with_report("psleak.MemoryLeakError: memory kept increasing")) == "yes"
    assert peers.leak_reported(with_report("Test was allowed to leak 100.0KiB per location")) == "yes"
    assert peers.leak_reported(with_report("AttributeError: module 'psleak' has no attribute")) == "no"
    assert peers.leak_reported(BOTH_PASSED) == "no"


def test_every_case_of_a_row_has_a_file_for_those_it_is_fair_to_ask() -> None:
    for contender in peer_cases.CONTENDERS:
        for row in peers.ROWS:
            if row.scope in contender.scopes:
                for case in row.cases:
                    source = peer_cases.file_for(contender, case)
                    compile(source, case, "exec")
                    assert source.index("def test_bad") < source.index("def test_good")


def test_table_has_a_line_for_each_row_and_says_what_ran() -> None:
    contender = peer_cases.CONTENDERS[1]
    versions = {"pytest-forked": "1.7.5", "pytest-timeout": "2.4.0", "pytest": "8.4.2"}
    cells = {row.title: f"cell {number}" for number, row in enumerate(peers.ROWS)}
    text = peers.table([peers.Column(contender, versions, "9.2.0", "no", cells)])
    assert "| runs on pytest 9.2.0 | no (on 8.4.2 below) |" in text
    assert all(f"| {row.title} | cell {number} |" in text for number, row in enumerate(peers.ROWS))
    assert "- pytest-forked 1.7.5, pytest-timeout 2.4.0, pytest 8.4.2: `pytest --forked --timeout=8" in text


def rows_of(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("| ")]


def test_pages_show_one_and_the_same_run() -> None:
    measured = rows_of((ROOT / "docs" / "comparison.md").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Compared with\n")[2].partition("\n## ")[0]
    assert [row.split(" | ")[0] for row in measured[3:]] == [f"| {row.title}" for row in peers.ROWS]
    assert measured[0].strip("| ").split(" | ") == [contender.name for contender in peer_cases.CONTENDERS]
    assert rows_of(readme)
    assert set(rows_of(readme)) <= set(measured)
