"""What the search finds in envs with a planted fault, how short the calls become, and that the written test fails."""

from __future__ import annotations

import os
import re
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import RunPytest

pytest.importorskip("gymnasium")
if not hasattr(os, "fork"):
    pytest.skip("attempts are forked", allow_module_level=True)

import planted_envs

from pytest_rlstability.kits.fuzz.calls import Case, Settings
from pytest_rlstability.kits.fuzz.laboratory import Laboratory
from pytest_rlstability.kits.fuzz.search import Search
from pytest_rlstability.kits.fuzz.written_test import Target, source_of_test

FAULTS = [
    ("CrashOnThirdReset", "CRASH: SIGABRT in reset()", 4),
    ("CrashOnSecondClose", "CRASH: SIGABRT in close()", 3),
    ("CrashWithTwo", "CRASH: SIGABRT in step()", 4),
    ("CrashAtStep1000", "CRASH: SIGABRT in step()", 1002),
    ("RaisesLater", "EXCEPTION: step() raised KeyError: 'no such body'", 10),
    ("NanLater", "NAN: the observation of step() has a NaN", 22),
    ("LeavesItsSpace", "SPACE: observation[1] is 11.0, outside -10.0 to 10.0", 12),
    ("ReusesItsBuffer", "ALIAS: step() overwrote the observation", 3),
    ("HangsOnAction", "STALL: step() did not return within", 3),
    ("LeaksOnReset", "LEAK: Python memory blocks grow by", 3),
    ("LeavesDescriptors", "LEFTOVER: close() leaves something behind each time: descriptor", 2),
    ("FollowsSetOrder", "DIFFERS: the same seed and actions gave another observation[0]: ", 2),
    ("UsesGlobalNumbers", "DIFFERS: the same seed and actions gave another observation", 3),
    ("KeepsItsWind", "DIFFERS: the same seed and actions gave another observation[0]", 4),
    ("SharesItsWorld", "DIFFERS: the same seed and actions gave another observation[0]", 6),
    ("SharesItsHandle", "CRASH: SIGABRT in close()", 4),
    ("ReusesTwoBuffers", "ALIAS: step() overwrote the observation that reset(), 2 calls before, had returned", 4),
    ("HasNoInfo", "SPACE: the info of step() is NoneType None, not a dict", 3),
    ("CrashesWhenCollected", "CRASH: SIGABRT in drop()", 5),
    ("RaisesAnything", "EXCEPTION: step() raised GeneratorExit: no world", 7),
    ("LeavesDescriptorsOnReset", "LEAK: file descriptors grow by 1 with each lap: reset()", 3),
    ("LeavesItsSpaceInParallel", "SPACE: observation['right'][0] is 9.0, outside 0.0 to 5.0", 8),
    ("LeavesItsSpaceInTurns", "SPACE: observation['right'][0] is 9.0, outside 0.0 to 5.0", 9),
]
WORDS_OF_TESTS = {"NAN": "has a NaN", "SPACE": " is ", "ALIAS": "not equal", "EXCEPTION": "no "}
"""What the written test's failure says where it has no verdict."""


@cache
def first_case(name: str, *, seconds: float = 60.0, **how: Any) -> Case | None:
    settings = Settings(seconds, 1, stall_after=1.0, shrink_seconds=60.0, **how)
    with closing(Laboratory(getattr(planted_envs, name), settings)) as laboratory:
        return next(Search(laboratory, lambda line: None, f"planted_envs:{name}").cases(), None)


def written(case: Case, name: str) -> str:
    adapter = "ParallelAdapter" if name.endswith("InParallel") else "TurnAdapter" if name.endswith("InTurns") else ""
    return source_of_test(case, Target("planted_envs", name, "rlstability fuzz", adapter=adapter), 1.0)


SLOW = (
    "CrashAtStep1000", "HangsOnAction", "LeaksOnReset", "FollowsSetOrder", "UsesGlobalNumbers", "KeepsItsWind",
    "SharesItsWorld", "LeavesDescriptorsOnReset",
)  # fmt: skip
TABLE = [pytest.param(*row, id=row[0], marks=[pytest.mark.slow] * (row[0] in SLOW)) for row in FAULTS]


@pytest.mark.parametrize(("env", "text", "calls"), TABLE)
def test_planted_fault_is_found_and_shrunk(env: str, text: str, calls: int) -> None:
    case = first_case(env)
    assert case is not None
    assert f"{case.finding.kind}: {case.finding.text}".startswith(text)
    assert len(case.calls) == calls
    assert "planted_envs.py" in case.finding.stack or case.finding.kind not in ("CRASH", "STALL", "EXCEPTION")


@pytest.mark.slow
def test_written_tests_fail_as_the_findings_did(run_pytest: RunPytest) -> None:
    run_pytest.write("planted_envs.py", Path(planted_envs.__file__).read_text())
    for env, _, _ in FAULTS:
        case = first_case(env)
        assert case is not None
        if env == "CrashAtStep1000":
            assert re.search(r"for _ in range\(1000\):\n        env.step\(\d\)", written(case, env))
        run_pytest.write(f"test_{env}.py", written(case, env).replace("def test_", f"def test_{env}_"))
    outcome = run_pytest.run("--rl-native=off")
    for env, text, _ in FAULTS:
        kind = text.partition(":")[0]
        message = next(message for name, message in outcome.messages.items() if f"_{env}_" in name)
        assert WORDS_OF_TESTS.get(kind, kind) in message


@pytest.mark.parametrize("env", ["Innocent", "InnocentClassic", "InnocentInParallel", "InnocentInTurns"])
def test_nothing_is_found_in_an_innocent_env(env: str) -> None:
    assert first_case(env, seconds=2.0) is None


@pytest.mark.slow
def test_cache_that_fills_up_is_not_a_leak() -> None:
    assert first_case("InnocentCache", seconds=15.0) is None


def test_resets_have_only_the_options_that_are_given() -> None:
    assert first_case.__wrapped__("InnocentNeedsLevel", seconds=2.0, options=({"level": 1}, {"level": 2})) is None
    case = first_case("InnocentNeedsLevel")
    assert case is not None
    assert case.finding.text == "reset() raised KeyError: 'level'"


def test_only_invalid_calls_reach_what_the_rules_forbid() -> None:
    assert first_case("CrashOnInvalidAction", seconds=1.0) is None
    case = first_case("CrashOnInvalidAction", invalid=True)
    assert case is not None
    assert case.finding.text.startswith("SIGABRT in step()")
