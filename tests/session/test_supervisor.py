"""What becomes of a run, from what arrives of its process and what its watchdogs see. No process in sight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import DONE

from pytest_rlstability.model.messages import CleanExit, Message, PhaseReported, Sampled, StageEntered, TestDone
from pytest_rlstability.model.progress_counters import ProcessCounters
from pytest_rlstability.model.run import Exit, Killed, Run, RunSpec
from pytest_rlstability.session import supervisor as module
from pytest_rlstability.session.supervisor import Supervisor, WatchedRun
from pytest_rlstability.session.test_process import TestProcess

REPORT = PhaseReported({"when": "call", "outcome": "passed"})
SAMPLE = Sampled(lap=1, seconds=0.5, values={"rss": 4096.0})


class Script:
    """Stands for connections and pool: each time somebody waits, the next step happens and a second passes."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.now = 100.0
        self.ended: list[Any] = []
        self.exit_when_ended: Exit | None = Exit(-9)
        self.listened = False
        self.quietly: list[Callable[[], object]] = []
        """What has arrived each time somebody reads without having been woken up."""

    def pump(self, timeout: float | None) -> None:
        if timeout == 0:
            return
        self.now += 1.0
        if not self.steps:
            raise AssertionError("waits for something that never comes")
        self.steps.pop(0)()

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        deadline = self.now + timeout
        while not condition():
            if self.now >= deadline or not self.steps:
                return False
            self.pump(deadline - self.now)
        return True

    def listen_to(self, process: TestProcess) -> None:
        self.listened = True

    def mute(self, process: TestProcess) -> None:
        self.listened = False

    def read(self, process: TestProcess) -> None:
        if self.quietly:
            self.quietly.pop(0)()

    def pids(self) -> list[int]:
        return []

    def end(self, process: TestProcess) -> None:
        self.ended.append(process)
        if process.exit is None:
            process.exit = self.exit_when_ended


class Watchdog:
    """Due at once, and again every second; ends the test at check number *at*."""

    def __init__(self, at: int = 99, killed: Killed | None = None) -> None:
        self.due = 0.0
        self.checks = 0
        self._at = at
        self._killed = killed or Killed("stall", "no progress for 30 s", gather=lambda: {"class": "deadlock"})

    def check(self, process: TestProcess) -> Killed | None:
        self.checks += 1
        return self._killed if self.checks == self._at else None


@pytest.fixture
def process(tmp_path: Path) -> TestProcess:
    counters = ProcessCounters.of_nobody()
    counters.begin()
    return TestProcess(1, counters, tmp_path / "out", tmp_path / "err", pid=2**22 + 1)


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "members_of", lambda pid, strangers: [])
    monkeypatch.setattr(module, "native_stack", lambda pid, mode, dump="": "native frames")
    monkeypatch.setattr(module, "kernel_kills", lambda: 0)


def active_run(process: TestProcess, script: Script, *watchdogs: Any, stays: bool = False) -> WatchedRun:
    run = Run(RunSpec("t.py::test", "zygote", 1, stays=stays))
    pool: Any = SimpleNamespace(end=script.end)
    return WatchedRun(owner=pool, process=process, run=run, kill_conditions=watchdogs)


def supervised(script: Script, active: WatchedRun) -> list[Sampled]:
    samples: list[Sampled] = []
    connections: Any = script
    on_sample = lambda active, sample: samples.append(sample)  # noqa: E731
    Supervisor(connections, "auto", on_sample, clock=lambda: script.now).supervise(active)
    return samples


def arrives(process: TestProcess, *messages: Message) -> Callable[[], None]:
    return lambda: [process.handle(message) for message in messages]  # type: ignore[func-returns-value, return-value]


def ends(process: TestProcess, status: int | None) -> Callable[[], None]:
    return lambda: setattr(process, "exit", Exit(status, peak=7))


def dumps(process: TestProcess, text: str) -> Callable[[], None]:
    return lambda: process.crash_dump.extend(text.encode())


def test_a_run_is_over_when_its_process_has_ended(process):
    script = Script(arrives(process, REPORT, DONE, CleanExit()), ends(process, 0))
    active = active_run(process, script)
    supervised(script, active)
    assert active.run.completed_cleanly
    assert active.run.ending.exit == Exit(0, peak=7)
    assert active.run.seen.reports == [REPORT.report]
    assert script.ended == []


def test_in_a_process_that_stays_it_is_over_when_the_test_says_so(process):
    script = Script(arrives(process, REPORT, TestDone(3, continues=True), StageEntered(("next test",))))
    active = active_run(process, script, stays=True)
    supervised(script, active)
    assert active.run.completed_cleanly
    assert active.run.ending.exit is None
    assert active.run.seen.lap == 3
    assert process.take_messages() == [StageEntered(("next test",))], "what belongs to the next test is left for it"


def test_tests_that_follow_each_other_are_read_at_once_and_wake_nobody_up(process):
    done = TestDone(0, continues=True)
    script = Script(lambda: None)
    script.quietly = [lambda: None, arrives(process, REPORT, done, REPORT, done, REPORT)]
    for reports in (1, 1):
        active = active_run(process, script, stays=True)
        active.has_followers = True
        active.make_watchdogs = lambda: pytest.fail("a test that is over needs no watchdogs")
        supervised(script, active)
        assert len(active.run.seen.reports) == reports
    assert not script.listened
    assert process.take_messages() == [REPORT], "the third test is under way"


def test_a_test_that_takes_longer_is_watched_and_wakes_the_supervisor(process):
    script = Script(lambda: None, arrives(process, REPORT, TestDone(0, continues=True)))
    watchdog = Watchdog()
    active = active_run(process, script, stays=True)
    active.has_followers = True
    active.make_watchdogs = lambda: ([watchdog], [])
    supervised(script, active)
    assert script.listened
    assert watchdog.checks > 0


def test_a_death_in_a_process_that_stays_is_this_tests_before_it_is_done(process):
    script = Script(arrives(process, StageEntered(("train",))), ends(process, -11))
    active = active_run(process, script, stays=True)
    supervised(script, active)
    assert not active.run.completed_cleanly
    assert active.run.ending.exit == Exit(-11, peak=7)
    assert active.run.seen.stages_open == ("train",)


def test_a_death_after_the_test_was_done_is_not_its_own(process):
    script = Script(lambda: (arrives(process, REPORT, DONE)(), ends(process, -11)()))
    active = active_run(process, script, stays=True)
    supervised(script, active)
    assert active.run.completed_cleanly
    assert active.run.ending.exit is None


def test_the_output_of_a_run_that_did_not_complete_is_kept(process):
    process.stdout.write_text("last words")
    script = Script(ends(process, -6))
    active = active_run(process, script)
    supervised(script, active)
    assert active.run.ending.stdout == "last words"


def test_a_crash_dump_is_read_to_its_end_and_the_process_killed(process):
    script = Script(dumps(process, "Fatal Python error: "), dumps(process, "Aborted"))
    active = active_run(process, script)
    supervised(script, active)
    assert active.run.ending.dump == "Fatal Python error: Aborted"
    assert active.run.ending.native_stack == "native frames"
    assert script.ended == [process]
    assert active.run.ending.exit == Exit(-9)


def test_a_process_that_cannot_be_ended_has_an_unknown_status(process):
    script = Script(dumps(process, "Fatal Python error: Aborted"))
    script.exit_when_ended = None
    active = active_run(process, script)
    supervised(script, active)
    assert active.run.ending.exit == Exit(None)


def test_a_watchdog_ends_a_test(process):
    watchdog = Watchdog(at=2)
    script = Script(*[lambda: None] * 5)
    active = active_run(process, script, watchdog)
    supervised(script, active)
    assert active.run.ending.killed is not None
    assert active.run.ending.killed.facts == {"class": "deadlock"}
    assert active.run.ending.native_stack == "native frames"
    assert script.ended == [process]
    assert watchdog.checks == 2


def test_a_killed_test_that_finishes_after_all_has_ended_with_its_process(process):
    """The signal that asks for stacks can end a ``pause()``. The process is not one for the next test."""
    script = Script(lambda: None, arrives(process, DONE), *[lambda: None] * 3)
    active = active_run(process, script, Watchdog(at=1), stays=True)
    supervised(script, active)
    assert active.run.ending.killed is not None
    assert active.run.ending.exit == Exit(-9)


def test_no_native_stack_is_taken_of_a_process_that_used_too_much_memory(process):
    script = Script(*[lambda: None] * 5)
    active = active_run(process, script, Watchdog(at=1, killed=Killed("memory", "2 GiB used")))
    supervised(script, active)
    assert active.run.ending.native_stack == ""


def test_what_has_arrived_counts_before_a_watchdog_is_asked(process):
    """pytest's own process may have been slow."""
    watchdog = Watchdog(at=1)
    script = Script()
    script.pump = lambda timeout: ends(process, 0)()  # type: ignore[method-assign]
    active = active_run(process, script, watchdog)
    connections: Any = script
    supervisor = Supervisor(connections, "off", lambda active, sample: None, clock=lambda: script.now)
    assert supervisor.is_over(active)
    assert watchdog.checks == 0
    assert active.run.ending.killed is None


def test_the_phase_is_the_one_before_the_test_was_killed(process):
    process.counters.enter("call")
    script = Script(lambda: None, lambda: process.counters.enter("teardown"), *[lambda: None] * 3)
    active = active_run(process, script, Watchdog(at=1))
    supervised(script, active)
    assert active.run.seen.phase == "call", "our own signal may wake a test up"


def test_samples_are_passed_on_as_they_arrive(process):
    script = Script(arrives(process, SAMPLE), arrives(process, SAMPLE), ends(process, 0))
    assert supervised(script, active_run(process, script, Watchdog())) == [SAMPLE, SAMPLE]


def test_ctrl_c_ends_the_test_and_is_raised(process):
    def interrupt() -> None:
        raise KeyboardInterrupt

    script = Script(interrupt)
    with pytest.raises(KeyboardInterrupt):
        supervised(script, active_run(process, script))
    assert script.ended == [process]


@pytest.mark.parametrize(("counts", "by_kernel"), [((0, 0), False), ((0, 1), True)])
def test_a_kill_that_the_kernel_counted_is_the_out_of_memory_killers(process, monkeypatch, counts, by_kernel):
    kills = iter(counts)
    monkeypatch.setattr(module, "kernel_kills", lambda: next(kills))
    script = Script(ends(process, -9))
    active = active_run(process, script)
    supervised(script, active)
    assert active.run.ending.killed_by_kernel is by_kernel
