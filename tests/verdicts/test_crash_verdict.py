"""From the facts of a run to its verdict, no process in sight."""

from __future__ import annotations

import sys

import pytest
from runs import DONE, make_run

from pytest_rlstability.model.messages import StageEntered, WorkerDied
from pytest_rlstability.model.run import Exit, Killed
from pytest_rlstability.model.verdict import Verdict
from pytest_rlstability.verdicts import judge

PASSED = [{"when": when, "outcome": "passed", "longrepr": None} for when in ("setup", "call", "teardown")]
FAILED = [{"when": "call", "outcome": "failed", "longrepr": "EOFError"}]
WORKER = {11: WorkerDied("env-2", 11, "SIGSEGV", "")}


@pytest.mark.parametrize(
    "fine",
    [
        make_run(reports=PASSED, done=DONE, clean_exit=True, exit=Exit(0)),
        make_run(reports=PASSED, done=DONE, stays=True),
        make_run(reports=FAILED, done=DONE, clean_exit=True, exit=Exit(0)),
        make_run(reports=PASSED, done=DONE, clean_exit=True, exit=Exit(0), dead_workers=WORKER),
        make_run(reports=PASSED, done=DONE, clean_exit=True, exit=Exit(0, strays=("sleep",))),
        make_run(reports=[{**FAILED[0], "rl_stability": {"verdict": {}}}], done=DONE, clean_exit=True, exit=Exit(0),
            dead_workers=WORKER),
    ],
)  # fmt: skip
def test_the_tests_own_outcome_stands(fine):
    assert judge(fine) is None


@pytest.mark.skipif(sys.platform == "win32", reason="signals have other numbers on Windows, which no process ends by")
@pytest.mark.parametrize(
    ("facts", "headline"),
    [
        ({"exit": Exit(-11)}, "SIGSEGV in call"),
        ({"exit": Exit(-9)}, "SIGKILL in call"),
        ({"exit": Exit(-9), "killed_by_kernel": True}, "killed for memory by the kernel (SIGKILL) in call"),
        ({"exit": Exit(0)}, "ended itself with exit code 0 in call"),
        ({"exit": Exit(0), "done": DONE}, "ended itself with exit code 0 in call"),
        ({"exit": Exit(3), "done": DONE, "clean_exit": True, "phase": "exit"}, "exit code 3 at exit"),
        ({"exit": Exit(-6), "done": DONE, "clean_exit": True, "phase": "exit"}, "SIGABRT at exit"),
        ({"exit": Exit(-62)}, "signal 62 in call"),
        ({"exit": Exit(None)}, "exit status unknown: its parent died in call"),
        ({"exit": Exit(-11), "phase": "start"}, "SIGSEGV before set-up"),
        ({"exit": Exit(-11), "lap": 7}, "SIGSEGV in call, lap 7"),
        ({"exit": Exit(-11), "stages_open": ("train", "step")}, "SIGSEGV in call, stage 'step'"),
        ({"exit": Exit(-9), "killed": Killed("memory", "2 GiB used")}, "killed for memory (2 GiB used) in call"),
        ({"exit": Exit(-9), "dump": "Fatal Python error: Bus error\n"}, "SIGBUS in call"),
    ],
)
def test_every_other_end_is_a_crash(facts, headline):
    verdict = judge(make_run(**facts))
    assert verdict is not None
    assert (verdict.word, verdict.headline) == ("CRASH", headline)
    assert verdict.facts["phase"] == facts.get("phase", "call")


def test_a_failed_test_with_a_dead_worker_is_a_crash():
    verdict = judge(
        make_run(reports=FAILED, done=DONE, clean_exit=True, exit=Exit(0), dead_workers={**WORKER, 12: WORKER[11]})
    )
    assert verdict is not None
    assert verdict.headline == "worker process env-2 (pid 11) died by SIGSEGV in call, and 1 more"


def test_a_memory_error_is_the_caps_only_under_a_cap():
    failed = [{"when": "call", "outcome": "failed", "longrepr": "MemoryError"}]
    facts = {"reports": failed, "done": DONE, "clean_exit": True, "exit": Exit(0)}
    assert judge(make_run(**facts)) is None
    verdict = judge(make_run(**facts, memory_limit=2**30))
    assert verdict is not None
    assert verdict.headline == "out of memory in call: the limit is 1.0 GiB"


def test_stages_are_listed_in_order():
    crashed = make_run(exit=Exit(-11))
    for path in (["data"], [], ["model"], ["model", "policy"]):
        crashed.seen.handle(StageEntered(tuple(path)))
    verdict = judge(crashed)
    assert verdict is not None
    assert "  done     data\n  died in  model > policy" in verdict.text()


def test_a_verdict_survives_the_journey():
    verdict = Verdict("LEAK", "fds grow", sections=(("", "where"), ("Table", "a\nb")), facts={"per_lap": 1.5})
    assert Verdict.from_dict(verdict.to_dict()) == verdict
    assert verdict.text() == "LEAK: fds grow\n  where\n\nTable:\n  a\n  b\n"


def test_a_process_that_was_ended_has_the_line_that_it_was_at():
    dump = 'Thread 0x00007f (most recent call first):\n  File "/game/env.py", line 7 in fill\n'
    verdict = judge(make_run(exit=Exit(0), killed=Killed("memory", "2 GiB used"), dump=dump))
    assert verdict is not None
    assert str(verdict.location) == "/game/env.py:7 in fill"
    assert "signal" not in verdict.facts
