"""What is kept of a soak and what is shown of it while it runs, with a clock made up for it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.leaks.signals.registry import signal_facts
from pytest_rlstability.leaks.soak_check import LONGEST_INTERVAL, MOST_BYTES, CapturedOutput
from pytest_rlstability.model.events import Busy, Finished, Outcome, Progress, Sample, Slow, to_line
from pytest_rlstability.model.soak_state import SoakState
from pytest_rlstability.model.thinning import SampleBudget, Thinning
from pytest_rlstability.reports.jsonl import EventLog
from pytest_rlstability.session.terminal.live_line import LiveLine, live_line
from pytest_rlstability.session.terminal.soak_summary import SoakSummary
from pytest_rlstability.session.watchdogs.soak_progress import progress_line

HOUR = 3600.0
WEEK = 7 * 24 * HOUR
MEGABYTE = 10**6


def logged_line(seconds: float) -> int:
    """The bytes of a sample in the event log: every signal at its longest, five probes, a long name."""
    values = dict.fromkeys([*signal_facts({}), *(f"box2d probe number {one}" for one in range(5))], 123456789012.0)
    test = f"tests/{'deep/' * 10}test_environment.py::TestWalker::test_walk[parameters]"
    clocks = {"seconds": seconds, "cpu_seconds": seconds, "lap_seconds": 1 / 3}
    return len(
        to_line(Sample(test=test, values=values, lap=10**9, warmup=12345, host="h" * 40, worker="gw99", **clocks))
    )


def moments(duration: float) -> Iterator[float]:
    """When a soak takes samples."""
    now = 0.0
    while now < duration:
        yield now
        now += max(0.1, min(now / 100, LONGEST_INTERVAL))


def kept(duration: float, workers: int) -> int:
    thinning = Thinning(workers)
    return sum(thinning.keeps(moment) for moment in moments(duration))


@pytest.mark.parametrize(
    ("soaks", "workers", "duration"),
    [(1, 1, WEEK), (21, 1, 8 * HOUR), (8, 8, WEEK), (64, 64, WEEK), (8 * 21, 8, 8 * HOUR), (1000, 1, WEEK / 1000)],
)
def test_the_log_of_a_week_stays_small(soaks: int, workers: int, duration: float) -> None:
    budget, line, size, of_each = SampleBudget(), logged_line(duration), 0, kept(duration, workers)
    for test in range(soaks):
        for _ in range(of_each):
            if budget.admits(Sample(test=f"{test}", values={})):
                budget.spend(line)
                size += line
    assert size < 45 * MEGABYTE


def test_a_full_log_still_takes_what_the_samples_came_to() -> None:
    budget = SampleBudget(room=1000)
    taken = [budget.admits(Sample(test="t", values={})) for _ in range(3)]
    budget.spend(600)
    taken += [budget.admits(Sample(test="t", values={})) for _ in range(4)]
    budget.spend(1000)
    taken += [budget.admits(Sample(test="t", values={})) for _ in range(100)]
    assert [number for number, admitted in enumerate(taken, start=1) if admitted] == [1, 2, 3, 4, 6]
    assert budget.admits(Sample(test="t", values={}, judged=[]))


def test_the_log_is_written_by_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "log")
    monkeypatch.setattr(log, "_budget", SampleBudget(room=20_000))
    for number in range(2000):
        log.handle(Sample(test="t", lap=number, values={}))
    log.handle(Finished(test="t", outcome=Outcome.PASSED))
    log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert 100 < len(lines) < 250
    assert json.loads(lines[-1])["event"] == "finished"


@pytest.mark.parametrize("workers", [1, 8])
def test_soaks_of_a_week_need_less_than_a_third_of_that(workers: int) -> None:
    assert workers * kept(WEEK, workers) * logged_line(WEEK) < 16 * MEGABYTE


def test_an_hour_and_a_night_have_enough_samples_for_a_chart() -> None:
    assert kept(HOUR, 1) > 200
    assert kept(8 * HOUR, 1) > 500
    assert kept(8 * HOUR, 8) > 250


def test_a_short_soak_loses_nothing() -> None:
    thinning = Thinning()
    assert all(thinning.keeps(second / 10) for second in range(40))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal:
    """As much of a terminal reporter as the line uses."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(get_terminal_writer=lambda: SimpleNamespace(fullwidth=100))
        self.written: list[str] = []

    def ensure_newline(self) -> None:
        self.written.append("<newline>")

    def write_line(self, text: str) -> None:
        self.written.append(text)

    def rewrite(self, text: str, erase: bool) -> None:
        assert erase
        self.written.append(f"<rewrite>{text}")

    def write(self, text: str, flush: bool) -> None:
        self.written.append(repr(text))

    def flush(self) -> None:
        pass


def progress(test: str, seconds: float = 60.0, **fields: Any) -> Progress:
    known: dict[str, Any] = {
        "soak": SoakState(duration=8 * HOUR, verdict="clean", memory=2.0**29),
        "laps": 70,
        "laps_per_second": 1.25,
        "phase": "call",
        "stage": "train",
        "host": "here",
        "worker": "gw1",
    }
    return Progress(test=test, seconds=seconds, **{**known, **fields})


def test_without_a_terminal_there_is_a_line_a_minute() -> None:
    terminal, clock = Terminal(), Clock()
    line = LiveLine(terminal, in_place=False, clock=clock)  # type: ignore[arg-type]
    for second in range(180):
        clock.now = 1000.0 + second
        line.handle(progress("test_a", second))
        line.handle(progress("test_b", second))
    written = [text for text in terminal.written if text != "<newline>"]
    assert [text[:40] for text in written] == [
        "soak test_a: 0 ms of 8 h, clean so far, ",
        "soak test_b: 0 ms of 8 h, clean so far, ",
        "soak test_a: 60 s of 8 h, clean so far, ",
        "soak test_b: 60 s of 8 h, clean so far, ",
        "soak test_a: 2 min of 8 h, clean so far,",
        "soak test_b: 2 min of 8 h, clean so far,",
    ]


def test_on_a_terminal_the_line_is_rewritten_and_cleared_for_others() -> None:
    terminal, clock = Terminal(), Clock()
    line = LiveLine(terminal, in_place=True, clock=clock)  # type: ignore[arg-type]
    line.clear()
    assert terminal.written == []
    line.handle(progress("test_" + "long" * 40))
    line.handle(progress("test_" + "long" * 40))
    clock.now += 1
    line.handle(progress("test_" + "long" * 40))
    first, *drawn = terminal.written
    assert first == "<newline>"
    assert len(drawn) == 2, "not more often than anybody can read"
    assert all(len(text) <= len("<rewrite>") + 99 and "soak …" in text for text in drawn)
    assert all("512.0 MiB" in text and "clean so far" in text for text in drawn)
    terminal.written.clear()
    line.handle(Slow(test="test_b", text="no progress"))
    assert terminal.written == ["<rewrite>", r"'\r'", "<newline>", "SLOW test_b: no progress"]


def test_several_soaks_take_turns() -> None:
    terminal, clock = Terminal(), Clock()
    line = LiveLine(terminal, in_place=True, clock=clock)  # type: ignore[arg-type]
    for _ in range(12):
        clock.now += 1
        line.handle(progress("test_a"))
        line.handle(progress("test_b"))
    drawn = {text[:31] for text in terminal.written[2:]}
    assert drawn == {"<rewrite>[1/2] soak test_a: 60 ", "<rewrite>[2/2] soak test_b: 60 "}
    line.handle(Finished(test="test_a", outcome=Outcome.PASSED))
    clock.now += 1
    line.handle(progress("test_b"))
    assert terminal.written[-1].startswith("<rewrite>soak test_b: 60 s of 8 h")


@pytest.mark.parametrize(
    ("terminal", "verbose", "there", "in_place"),
    [(True, 0, True, True), (False, -1, True, False), (False, -2, False, False)],
)
def test_twice_quiet_is_quiet(terminal: bool, verbose: int, there: bool, in_place: bool) -> None:
    reporter = SimpleNamespace(isatty=terminal)
    plugins = SimpleNamespace(getplugin=lambda name: reporter)
    line = live_line(SimpleNamespace(pluginmanager=plugins, option=SimpleNamespace(verbose=verbose)))  # type: ignore[arg-type]
    assert (line is not None) == there
    assert line is None or line._in_place == in_place


def test_the_line_says_what_it_knows() -> None:
    assert progress_line(progress("t", 0, phase="setup", laps=0)) == "soak t: setting up, then 8 h of laps"
    state = SoakState(duration=60, verdict="LEAK", growing="open files +1 per lap", memory=2.0**20)
    text = progress_line(progress("t", 75, soak=state))
    assert text == "soak t: 60 s of 60 s, LEAK so far: open files +1 per lap, 1.0 MiB, lap 70, 1.25/s, 0 ms left"


def test_a_soak_that_is_cut_short_is_told_once() -> None:
    summary = SoakSummary()
    summary.handle(progress("test_done"))
    summary.handle(progress("test_cut", seconds=5 * HOUR))
    done = SoakState(duration=60, seconds=60, laps=9, verdict="clean")
    summary.handle(Sample(test="test_cut", values={}))
    summary.handle(Finished(test="test_done", outcome=Outcome.PASSED, soak=done))
    summary.handle(Finished(test="test_other", outcome=Outcome.PASSED))
    (finished,) = summary.cut_short()
    summary.handle(finished)
    assert summary.cut_short() == []
    assert (finished.test, finished.outcome, finished.worker) == ("test_cut", Outcome.INTERRUPTED, "gw1")
    assert finished.laps == 70
    assert finished.stages == ["train"]
    assert summary.lines() == [
        "soak test_done: 60 s of 60 s, 9 laps",
        "soak test_cut: interrupted, clean so far; 5 h of 8 h, 70 laps; memory 512.0 MiB",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_captured_output_is_cut_to_its_beginning_and_its_newest_part(tmp_path: Path) -> None:
    path = tmp_path / "rlstability-x" / "7.out"
    path.parent.mkdir()
    with open(path, "w+b", buffering=0) as captured:
        output, copy = CapturedOutput((captured.fileno(),)), os.dup(captured.fileno())
        try:
            os.write(copy, b"first\n")
            output.trim()
            assert path.read_bytes() == b"first\n"
            for number in range(60):
                os.write(copy, b"%d" % number + b"x" * MEGABYTE)
                output.trim()
            os.write(copy, b"last\n")
        finally:
            os.close(copy)
    text = path.read_bytes()
    assert text.startswith(b"first\n0xxx")
    assert text.endswith(b"xlast\n")
    assert len(text) <= MOST_BYTES + MEGABYTE
    assert sum(int(count.replace(b",", b"")) for count in re.findall(rb"\[\.\.\. ([\d,]+) bytes", text)) > 50 * MEGABYTE


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_output_that_is_not_captured_is_left_alone(tmp_path: Path) -> None:
    with open(tmp_path / "users.log", "w+b", buffering=0) as users:
        output = CapturedOutput((users.fileno(),))
        users.write(b"x" * (MOST_BYTES + 1))
        output.trim()
    assert (tmp_path / "users.log").stat().st_size == MOST_BYTES + 1


def test_repeated_tests_and_searches_are_shown_too() -> None:
    terminal, clock = Terminal(), Clock()
    line = LiveLine(terminal, in_place=False, clock=clock)  # type: ignore[arg-type]
    for second in range(8):
        clock.now = 1000.0 + second
        values = {"run_passed": 1.0, "run_seconds": 1.0}
        line.handle(Sample(test="t::flaky", values=values, lap=second, waits_for=f"{second} of {second} runs passed"))
        line.handle(Busy(test="t::victim", text=f"looking for the test that did it: run {second}"))
    written = [text for text in terminal.written if text != "<newline>"]
    assert written == ["rl_flaky t::flaky: 5 of 5 runs passed", "looking for the test that did it: run 5"]
