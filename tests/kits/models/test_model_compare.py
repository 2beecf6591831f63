"""Comparing snapshots, choosing conditions and wording verdicts: no process in sight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")

import numpy

from pytest_rlstability.kits.models.audit import Audit, Finding
from pytest_rlstability.kits.models.roundtrip import (
    RoundTrip,
    Saved,
    Trip,
    _judge_values,
    differences,
    fact_differences,
    not_finite,
)
from pytest_rlstability.kits.models.targets import Target, find_python, variations
from pytest_rlstability.steps import Outcome

SAVED = {"parameters/w": numpy.array([1.0, 2.0], "float32"), "predict/values": numpy.array([0.5], "float32")}


def changed(**arrays: Any) -> dict[str, Any]:
    return {**SAVED, **{name.replace("_", "/"): numpy.array(value, "float32") for name, value in arrays.items()}}


@pytest.mark.parametrize("exact", [True, False])
def test_same_is_same(exact: bool) -> None:
    assert differences(SAVED, changed(), exact=exact) == []


def test_nan_is_the_same_as_nan() -> None:
    nan = {"parameters/w": numpy.array([numpy.nan])}
    assert differences(nan, {"parameters/w": numpy.array([numpy.nan])}, exact=True) == []


def test_last_digit_of_a_prediction_counts_only_when_exact() -> None:
    found = changed(predict_values=[0.5000001])
    assert differences(SAVED, found, exact=False) == []
    assert differences(SAVED, found, exact=True) == [
        "predict/values: 1 of 1 values differ, first at [0]: 0.5 was saved, 0.5000001 came back"
    ]


def test_tolerance_has_an_end() -> None:
    assert differences(SAVED, changed(predict_values=[0.501]), exact=False)


@pytest.mark.parametrize("exact", [True, False])
def test_parameters_are_always_exact(exact: bool) -> None:
    assert differences(SAVED, changed(parameters_w=[1.0, 2.0000002]), exact=exact)


def test_discrete_actions_are_always_exact() -> None:
    saved, found = {"predict/actions": numpy.array([0, 1])}, {"predict/actions": numpy.array([0, 0])}
    assert differences(saved, found, exact=False)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({"predict/values": SAVED["predict/values"]}, "parameters/w is missing after loading"),
        (changed(extra=[1]), "extra is new after loading"),
        (changed(parameters_w=[1.0]), "parameters/w was float32[2], is float32[1]"),
        ({**SAVED, "parameters/w": numpy.array([1.0, 2.0])}, "parameters/w was float32[2], is float64[2]"),
    ],
)
def test_missing_new_and_reshaped_arrays(found: dict[str, Any], line: str) -> None:
    assert differences(SAVED, found, exact=False) == [line]


def test_many_differences_are_counted_not_listed() -> None:
    saved = {f"parameters/{number}": numpy.array(number) for number in range(30)}
    lines = differences(saved, {}, exact=True)
    assert len(lines) == 9
    assert lines[-1] == "and 22 more differences"


def test_facts() -> None:
    saved = {"class": "PPO", "action_space": "Discrete(2)", "settings": {"gamma": 0.9, "target_kl": float("nan")}}
    same = {"class": "PPO", "action_space": "Discrete(2)", "settings": {"gamma": 0.9, "target_kl": float("nan")}}
    assert list(fact_differences(saved, same)) == []
    other = {"class": "PPO", "action_space": "Discrete(3)", "settings": {"gamma": 0.99}}
    assert list(fact_differences(saved, other)) == [
        "action_space was Discrete(2), is Discrete(3)",
        "gamma was 0.9, is 0.99",
    ]


def test_not_finite() -> None:
    arrays = {"learned/w": numpy.array([1.0, numpy.inf]), "learned/n": numpy.array([1]), "learned/f": numpy.ones(1)}
    assert not_finite(arrays) == ["learned/w is not finite"]


def test_variations_change_one_thing_at_a_time() -> None:
    here, *others = variations(threads=4, has_gpu=False)
    assert [one.name for one in others] == [
        "no AVX",
        "one thread",
        "other hash seed",
        "other directory, home and locale",
    ]
    for one in others:
        moved = {key for key in one.environment if one.environment[key] != here.environment.get(key)}
        assert moved
        assert one.elsewhere is ("LC_ALL" in moved) is (one.name == "other directory, home and locale")
        assert ("OMP_NUM_THREADS" in moved) is (one.name == "one thread")
        assert ("PYTHONHASHSEED" in moved) is (one.name == "other hash seed")
        assert ("ATEN_CPU_CAPABILITY" in moved) is (one.name == "no AVX")
        assert one.exact is (one.name not in ("no AVX", "one thread"))


def test_gpu_adds_a_target_without_it_and_forgives_last_digits() -> None:
    here, less, *others = variations(threads=4, has_gpu=True)
    assert less.name == "CPU only"
    assert less.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert not any(one.exact for one in (here, less, *others))


CLEAN = Audit("model.zip", "SB3 model", ("3.11",), {}, ())


def test_stall_and_crash_verdicts_name_the_target() -> None:
    hang = Outcome("x", "hang", stdout="loading the file\n", stack="File train.py, line 3 in on_load", seconds=180)
    crash = Outcome("y", "crash", signal="SIGSEGV", exit_code=-11, stdout="learning one rollout\n")
    stalled = RoundTrip(CLEAN, (Trip(Target("one thread"), hang),)).verdict()
    assert stalled is not None
    assert stalled.title == "STALL: saved model on one thread: still running after 180 s"
    assert "on_load" in stalled.text()
    both = RoundTrip(CLEAN, (Trip(Target("one thread"), hang), Trip(Target("no AVX"), crash))).verdict()
    assert both is not None
    assert both.title == "CRASH: saved model on no AVX: SIGSEGV"
    assert both.facts["stage"] == "learning one rollout"


def test_code_fails_only_a_portable_model() -> None:
    finding = Finding("clip_range", "lambda", "3.11", {"3.11": "fine"}, replacement="0.2", holds_code=True)
    carrying = Audit("model.zip", "SB3 model", ("3.11",), {}, (finding,))
    assert RoundTrip(carrying, (), portable=False).passed
    portable = RoundTrip(carrying, (), portable=True)
    assert not portable.passed
    verdict = portable.verdict()
    assert verdict is not None
    assert verdict.title.startswith("MODEL: the file holds code that only this Python can run: clip_range (lambda)")
    assert 'clip_range (lambda); avoid it with load(..., custom_objects={"clip_range": 0.2})' in portable.text()


@pytest.mark.parametrize(
    ("result", "found"),
    [
        ({"values": {"clip_range": [0.2]}, "errors": {}, "skipped": {}}, ()),
        (
            {"values": {"clip_range": [0.3]}, "errors": {}, "skipped": {}},
            ("schedule clip_range gave [0.3] where [0.2] was saved",),
        ),
        (
            {"values": {}, "errors": {"learning_rate": "TypeError: no"}, "skipped": {"policy_class": "torch.nn"}},
            ("learning_rate cannot be loaded: TypeError: no",),
        ),
        ({"values": {}, "errors": {"lr_schedule": "TypeError: no"}, "skipped": {}}, ()),
    ],
    ids=["same", "other value", "error", "error in what every load makes anew"],
)
def test_values_on_a_python_without_torch(result: dict[str, Any], found: tuple[str, ...], tmp_path: Path) -> None:
    arrays = {"schedule/clip_range": numpy.array([0.2])}
    saved = Saved("sb3", "", tmp_path, tmp_path, arrays=arrays)
    trip = _judge_values(Target("Python 3.12.1"), Outcome("x", "ok", result=result), saved)
    assert trip.differences == found
    assert "values only: no torch there" in trip.note
    assert ("for want of torch" in trip.note) is bool(result["skipped"])


def test_interpreter_by_path_and_by_version() -> None:
    import sys

    by_path = find_python(sys.executable)
    assert (by_path.python, by_path.minor) == (sys.executable, sys.version_info[:2])
    assert by_path.name == f"Python {sys.version.split()[0]}"
    assert find_python("3." + str(sys.version_info[1])).minor == sys.version_info[:2]


def test_no_such_interpreter(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"'3\.99'"):
        find_python("3.99")
    with pytest.raises(LookupError, match="nowhere"):
        find_python(str(tmp_path / "nowhere"))
