"""``--rl-leaks``: every test of an unmodified suite is repeated whole and judged."""

from __future__ import annotations

import json

import pytest

from pytest_rlstability.leaks.signals.registry import shipped_signals
from pytest_rlstability.model.events import Judged, Sample
from pytest_rlstability.session.terminal.leak_summary import LeakSummary
from pytest_rlstability.session.terminal.live_line import LiveLine

SUITE = """
    import os
    import time
    import pytest

    seen = []

    @pytest.fixture(scope="module")
    def shared():
        yield []

    @pytest.fixture
    def own(shared, tmp_path):
        yield tmp_path

    def test_opens():
        os.open(os.devnull, os.O_RDONLY)

    def test_fine(own, capsys):
        (own / "state").write_text("x")

    def test_once():
        seen.append(1)
        assert len(seen) == 1, "seen before"

    def test_slow():
        time.sleep(0.12)
        os.open(os.devnull, os.O_RDONLY)

    def test_fails():
        assert not os.sep

    @pytest.mark.timeout(2)
    def test_with_a_timeout():
        time.sleep(0.02)
"""


def test_an_unmodified_suite_is_checked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=SUITE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--rl-jsonl=log.jsonl", "--rl-leaks=1s")
    result.assert_outcomes(failed=2, passed=4)
    result.stdout.fnmatch_lines(
        [
            "*repeated for 1 s to find what grows*",
            "LEAK: file descriptors grow by 1 per lap, made at test_suite.py:*",
            "Reproduce: * --rl-leaks=1s *test_opens",
            "rl-stability: growth of 5 tests (--rl-leaks=1s): 1 leak, [1-4] undecided, 2 not judged",
            "rl-stability: LEAK *file descriptors *+1 per lap *test_suite.py::test_opens",
            "rl-stability: undecided *file descriptors *+1 per lap *test_suite.py::test_slow",
            "rl-stability: not judged: *::test_once: cannot be repeated: lap 2 failed in call: *seen before*",
            "rl-stability: not judged: *::test_slow: a lap takes *--rl-leaks=*",
        ]
    )
    events = [json.loads(line) for line in (pytester.path / "log.jsonl").read_text().splitlines()]
    waits = [event["waits_for"] for event in events if "waits_for" in event]
    assert any("warm up" in text for text in waits)


def test_a_bare_flag_before_a_path_says_where_it_goes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_one="def test_one(): pass")
    result = pytester.runpytest_subprocess("--rl-leaks", "test_one.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--rl-leaks=test_one.py*a bare --rl-leaks goes after the tests' paths*"])


def judged(test: str, *entries: Judged) -> Sample:
    return Sample(test=test, values={}, lap=120, warmup=20, judged=entries)


def test_the_table_is_sorted_by_growth() -> None:
    summary = LeakSummary(10.0, {signal.name: signal for signal in shipped_signals()})
    summary.handle(judged("small", Judged("malloc", "leak", slope=100.0)))
    summary.handle(judged("clean", Judged("python", "clean"), Judged("objects", "undecided", slope=3.0)))
    summary.handle(judged("large", Judged("objects", "undecided", slope=9.0), Judged("malloc", "leak", slope=2048.0)))
    summary.handle(judged("threads", Judged("threads", "leak", slope=1.0)))
    summary.handle(judged("maybe", Judged("python", "undecided", slope=5.0)))
    head, *rows = summary.lines()
    assert head == "growth of 5 tests (--rl-leaks=10s): 3 leaks, 1 undecided, 0 not judged"
    assert [row.split()[-1] for row in rows] == ["threads", "large", "small", "maybe"]
    assert rows[1].split() == [
        "LEAK",
        "malloc",
        "bytes",
        "in",
        "use",
        "+2.0",
        "KiB",
        "per",
        "lap",
        "100",
        "laps",
        "large",
    ]


class Terminal:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def ensure_newline(self) -> None: ...

    def write_line(self, text: str) -> None:
        self.lines.append(text)


def test_a_file_gets_a_line_about_a_long_check() -> None:
    terminal, now = Terminal(), [0.0]
    live = LiveLine(terminal, in_place=False, clock=lambda: now[0])  # type: ignore[arg-type]
    for second in range(60):
        now[0] = second
        live.handle(Sample(test="t", values={}, lap=second, seconds=second, waits_for="threads: more laps"))
    assert terminal.lines == [
        "leak check t: lap 5, 5 s, waits for threads: more laps",
        "leak check t: lap 25, 25 s, waits for threads: more laps",
        "leak check t: lap 45, 45 s, waits for threads: more laps",
    ]
