"""A schedule saved by this Python, on the other Pythons of this machine: the forecast and what really happens."""

from __future__ import annotations

import base64
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cloudpickle")

import cloudpickle

from pytest_rlstability.kits.models import worker
from pytest_rlstability.kits.models.audit import audit, spoken
from pytest_rlstability.kits.models.targets import Target, find_python, lend
from pytest_rlstability.steps import Outcome, Step, run_step


def closure(initial: float) -> Callable[[float], float]:
    def func(progress: float) -> float:
        return max(1e-6, progress * initial)

    return func


def save(path: Path, value: Any) -> Path:
    text = base64.b64encode(cloudpickle.dumps(value)).decode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"learning_rate": {":type:": "", ":serialized:": text}}))
        archive.writestr("system_info.txt", f"- Python: {sys.version.split()[0]}\n")
    return path


def load(path: Path, interpreter: Target, lent: tuple[str, ...]) -> Outcome:
    return run_step(
        Step(
            interpreter.name,
            call=f"{worker.__file__}:load_values",
            arguments={"path": str(path)},
            python=interpreter.python,
            search_path=lent,
        )
    )


@pytest.fixture(params=["3.10", "3.11", "3.12", "3.13"])
def interpreter(request: pytest.FixtureRequest) -> Target:
    try:
        return find_python(request.param)
    except LookupError as error:
        pytest.skip(str(error))


@pytest.fixture
def lent(tmp_path: Path) -> tuple[str, ...]:
    return lend(tmp_path / "lent")


def test_closure_does_on_each_python_what_the_audit_says(
    interpreter: Target, lent: tuple[str, ...], tmp_path: Path
) -> None:
    path, values = save(tmp_path / "model.zip", closure(3e-4)), list(map(closure(3e-4), worker.PROGRESS))
    effect = audit(path, [interpreter.minor]).findings[0].effects[spoken(interpreter.minor)]
    outcome = load(path, interpreter, lent)
    if effect == "fine":
        assert interpreter.minor == sys.version_info[:2]
        assert outcome.result["values"] == {"learning_rate": values}
    elif effect == "raises":
        assert outcome.result["errors"]["learning_rate"].startswith("TypeError: ")
    else:
        assert effect == "segfaults"
        # A crash mostly, at times an exception or a wrong value: anything but the right one.
        right = outcome.ending == "ok" and outcome.result["values"] == {"learning_rate": values}
        assert not right
        if outcome.ending == "crash":
            assert outcome.stdout.splitlines()[-1] == "calling learning_rate"


def test_schedule_by_reference_is_read_anywhere(interpreter: Target, lent: tuple[str, ...], tmp_path: Path) -> None:
    path = save(tmp_path / "model.zip", float)
    assert audit(path, [interpreter.minor]).exit_code == 0
    assert load(path, interpreter, lent).result["values"] == {"learning_rate": list(worker.PROGRESS)}


def test_values_that_need_a_missing_module_are_named(
    interpreter: Target, lent: tuple[str, ...], tmp_path: Path
) -> None:
    if interpreter.python == sys.executable:
        pytest.skip("this Python may have it")
    path = tmp_path / "model.zip"
    pickled = base64.b64encode(b"\x80\x04cnot_installed_anywhere.policies\nMine\n.").decode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": {":serialized:": pickled}, "gamma": 0.9}))
    result = load(path, interpreter, lent).result
    assert result == {"values": {}, "errors": {}, "skipped": {"policy_class": "not_installed_anywhere"}}


def test_sb3_schedules_are_called_without_sb3(interpreter: Target, lent: tuple[str, ...], tmp_path: Path) -> None:
    if interpreter.python == sys.executable:
        pytest.skip("it has SB3")
    utils = pytest.importorskip("stable_baselines3.common.utils")
    if not hasattr(utils, "FloatSchedule"):
        pytest.skip("SB3 before 2.7")
    for schedule in (utils.FloatSchedule(0.2), utils.FloatSchedule(abs), utils.LinearSchedule(1.0, 0.05, 0.1)):
        path = save(tmp_path / "model.zip", schedule)
        values = [schedule(point) for point in worker.PROGRESS]
        assert load(path, interpreter, lent).result["values"] == {"learning_rate": values}
