"""What the runs of a repeated test say, one by one and together; and in which order they are counted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from runs import DONE, make_run

from pytest_rlstability.config.markers import Flaky
from pytest_rlstability.model.run import Exit, Run
from pytest_rlstability.model.verdict import Verdict
from pytest_rlstability.osinfo import limits
from pytest_rlstability.session.flaky_runner import FlakyRunner, free_cores, seed_of
from pytest_rlstability.verdicts.flaky import Trials, flaky_verdict, read_trial

PROMISE = Flaky(pass_rate=0.95, confidence=0.95, max_runs=60)
SEGFAULT = """Fatal Python error: Segmentation fault

Current thread 0x1f (most recent call first):
  File "/game/env.py", line 40 in tick
"""
CRASH = Verdict("CRASH", "SIGSEGV in call", facts={"signal": "SIGSEGV", "signature": "SIGSEGV call tick 1234"})


def report(outcome: str = "passed", when: str = "call", **more: object) -> dict[str, object]:
    return {"$report_type": "TestReport", "outcome": outcome, "when": when, "longrepr": None, **more}


def raised(name: str, line: int = 12, path: str = "/game/test_env.py") -> dict[str, object]:
    """What a report holds of an exception, in a style of traceback that does not name it."""
    place = {"path": path, "lineno": line, "message": "in test_it"}
    longrepr = {"reprcrash": place, "reprtraceback": {"reprentries": [{"data": {"reprfileloc": place}}]}}
    return {"longrepr": longrepr, "rl_stability": {"raised": name}}


def run(*reports: dict[str, object], seed: int = 1, **facts: object) -> Run:
    given = {"exit": Exit(0), "done": DONE, "clean_exit": True, **facts}
    return make_run(seed=seed, reports=list(reports), **given)


PASSED = run(report(when="setup"), report(), report(when="teardown"))
FAILED = run(report(when="setup"), report("failed", **raised("AssertionError")), report(when="teardown"))


@pytest.mark.parametrize(
    ("seen", "marked", "outcome", "label"),
    [
        (PASSED, False, "passed", ""),
        (FAILED, False, "failed", "AssertionError at test_env.py:12"),
        (run(report("failed", "setup", **raised("OSError"))), False, "failed",
         "OSError at test_env.py:12 in set-up"),
        (run(report(), report("failed", "teardown", **raised("OSError"))), False, "failed",
         "OSError at test_env.py:12 in tear-down"),
        (run(report("failed", longrepr="Timeout")), False, "failed", "failure"),
        (run(report("failed", longrepr={"reprcrash": None, "reprtraceback": {"reprentries": []}})), False, "failed",
         "failure"),
        (run(report("skipped")), False, "aside", ""),
        (run(report("skipped", wasxfail="reason: known")), False, "aside", ""),
        (run(report("skipped", wasxfail="known", **raised("KeyError"))), True, "failed",
         "KeyError at test_env.py:12"),
        (run(report("skipped", "setup", wasxfail="[NOTRUN] hangs")), True, "aside", ""),
        (run(report("passed", wasxfail="known")), True, "passed", ""),
        (run(report("failed", longrepr="[XPASS(strict)] known")), True, "passed", ""),
        (run({**report("skipped"), "$report_type": "SubtestReport"}, report()), False, "passed", ""),
        (run(report("failed", rl_stability={"verdict": Verdict("LEAK", "x", facts={"signal": "fds"}).to_dict()})),
         False, "failed", "LEAK of fds"),
    ],
)  # fmt: skip
def test_what_one_run_says(seen, marked, outcome, label):
    trial = read_trial(1, seen, None, expected_to_fail=marked)
    assert (trial.outcome, trial.label) == (outcome, label)


def test_a_crash_is_called_by_signal_and_function():
    assert read_trial(1, run(dump=SEGFAULT), CRASH).label == "SIGSEGV in tick"
    assert read_trial(1, run(), CRASH).label == "SIGSEGV in call"
    stall = Verdict("STALL", "x", facts={"class": "deadlock", "phase": "teardown"})
    assert read_trial(1, run(), stall).label == "STALL deadlock in tear-down"


def test_clean_runs_keep_the_promise():
    trials = Trials(PROMISE)
    while trials.answer == "open":
        assert trials.wanted == 13
        trials.add(PASSED, None)
    assert (trials.answer, trials.runs, trials.passes) == ("kept", 13, 13)


def test_after_a_failure_more_runs_are_wanted():
    trials = Trials(PROMISE)
    trials.add(FAILED, None)
    assert trials.wanted > 13
    assert trials.answer == "open"


def test_a_skip_in_the_first_run_is_the_tests_and_later_ones_do_not_count():
    skipped = run(report("skipped"))
    first = Trials(PROMISE)
    first.add(skipped, None)
    assert first.stands_aside
    later = Trials(Flaky(0.95, 0.95, max_runs=8))
    for seen in (PASSED, *[skipped] * 7):
        later.add(seen, None)
    assert not later.stands_aside
    assert (later.runs, later.passes, later.answer) == (1, 1, "undecided")


def test_the_verdict_groups_failures_and_shows_one_of_each():
    trials = Trials(PROMISE)
    for number, (seen, verdict) in enumerate([(FAILED, None), (PASSED, None), *[(run(dump=SEGFAULT), CRASH)] * 2], 1):
        seen.seed = number
        trials.add(seen, verdict)
    assert trials.answer == "broken"
    verdict = flaky_verdict(trials, lambda trial: f"text of run {trial.number}", lambda seed: f"run --rl-seed={seed}")
    crashed, failed = (f"{count} \N{MULTIPLICATION SIGN}" for count in (2, 1))
    kinds = f"{crashed} SIGSEGV in tick; {failed} AssertionError at test_env.py:12"
    assert verdict.title == f"FLAKY: 1 of 4 runs passed, promised 0.95: {kinds}"
    assert verdict.facts["signature"] == "SIGSEGV call tick 1234"
    assert (verdict.facts["runs"], verdict.facts["passes"], verdict.facts["pass_rate"]) == (4, 1, 0.25)
    assert 0 < verdict.facts["interval_low"] < 0.25 < verdict.facts["interval_high"] < 0.95
    text = verdict.text()
    assert "F.FF" in text
    assert "text of run 3" in text
    assert "text of run 4" not in text
    assert "This run alone: run --rl-seed=1" in text


class FakePool:
    """Its processes are ready at once; those that were ended before they began are counted."""

    def __init__(self) -> None:
        self.backend = SimpleNamespace(name="fake")
        self.requested = self.ended = self.released = 0

    def request(self, spec):
        self.requested += 1
        return SimpleNamespace(ready=True, exit=None)

    def end(self, process):
        self.ended += 1

    def release(self, process):
        self.released += 1


class FakeSupervisor:
    """Runs end in the order given, and everything done is noted."""

    def __init__(self, ends: list[int]) -> None:
        self.ends = ends
        self.started: list[int] = []
        self.at_once: list[int] = []
        self.ended: list[int] = []
        self.live = 0

    def start(self, process, seed):
        self.started.append(seed)
        self.live += 1
        return SimpleNamespace(process=process, run=SimpleNamespace(seed=seed))

    def is_over(self, active):
        if not self.ends or active.run.seed != seed_of(0, self.ends[0]):
            return False
        self.at_once.append(self.live)
        self.live -= 1
        self.ends.pop(0)
        return True

    def wait_for_news(self, actives, at_most):
        assert self.ends, "waits for runs that nobody ends"

    def end(self, actives):
        self.ended += [active.run.seed for active in actives]


def test_runs_are_counted_in_order_and_the_first_goes_alone():
    pool, world = FakePool(), FakeSupervisor(ends=[1, 4, 3, 2, 5, 7])
    runs = FlakyRunner(world, pool, lambda seed: None, world.start, seed=0, at_once=3).runs(lambda: 9)
    seen = [next(runs).seed for _ in range(5)]
    assert seen == [seed_of(0, number) for number in range(1, 6)]
    assert world.at_once[:3] == [1, 3, 3]
    runs.close()
    done = {seed_of(0, number) for number in range(1, 8)} - set(world.ended)
    assert {seed_of(0, number) for number in range(1, 6)} <= done
    assert len(world.started) + pool.ended == pool.requested == pool.released


def test_no_run_is_started_that_is_not_wanted():
    pool, world = FakePool(), FakeSupervisor(ends=[1, 2, 3])
    runs = FlakyRunner(world, pool, lambda seed: None, world.start, seed=0, at_once=8).runs(lambda: 3)
    for _ in range(3):
        next(runs)
    assert pool.requested == 3
    runs.close()
    assert world.ended == []


@pytest.mark.parametrize(
    ("cores", "limit", "workers", "free"),
    [(8, None, None, 8), (8, 2.5, None, 2), (8, None, "4", 2), (2, 0.5, "8", 1), (200, None, None, 32)],
)  # fmt: skip
def test_free_cores(monkeypatch, cores, limit, workers, free):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.setattr(limits, "cpu_limit", lambda: limit)
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    if workers:
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", workers)
    assert free_cores() == free
