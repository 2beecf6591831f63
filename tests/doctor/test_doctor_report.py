"""The doctor's words, and the order of its steps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_rlstability.doctor import report
from pytest_rlstability.doctor.examination import (
    YOUR_STAGES,
    Examination,
    Examiner,
    StepReport,
    place_of,
    report_of,
    stack_of,
)
from pytest_rlstability.doctor.plugins import shipped_steps
from pytest_rlstability.doctor.step_list import (
    MODULES,
    blockers_of,
    follow_up,
    import_step,
    import_steps,
    needed_by,
    order_steps,
)
from pytest_rlstability.steps import Outcome, StageRecord

STEPS = shipped_steps()
NEEDED = needed_by(STEPS)

DUMP = """Fatal Python error: Segmentation fault

Thread 0x0002 (most recent call first):
  File "/elsewhere/other.py", line 1 in wait

Current thread 0x0001 (most recent call first):
  File "{library}/ctypes/__init__.py", line 519 in string_at
  File "/code/torch/__init__.py", line 3 in <module>
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "/x/site-packages/pytest_rlstability/doctor/checks/libraries.py", line 40 in import_one
"""


def dump() -> str:
    return DUMP.replace("{library}", os.path.dirname(os.__file__))


def test_place_of_a_crash_is_the_newest_line_outside_the_standard_library() -> None:
    outcome = Outcome("import torch", "crash", signal="SIGSEGV", stack=dump())
    assert place_of(outcome) == "/code/torch/__init__.py:3 in <module>"
    assert "frozen importlib" not in stack_of(outcome)
    assert "string_at" in stack_of(outcome)


def test_place_of_a_hang_is_in_the_main_thread() -> None:
    stack = (
        'Thread 0x2 (most recent call first):\n  File "/a/worker.py", line 1 in run\n\n'
        'Thread 0x1 (most recent call first):\n  File "/a/main.py", line 9 in stuck\n'
    )
    assert place_of(Outcome("x", "hang", stack=stack)) == "/a/main.py:9 in stuck"


def test_place_of_an_exception_and_its_own_part_of_the_traceback() -> None:
    stack = (
        "Traceback (most recent call last):\n"
        '  File "/x/site-packages/pytest_rlstability/steps/worker.py", line 9, in _attempt\n    value = function()\n'
        '  File "/code/env.py", line 4, in make\n    raise ValueError(3)\nValueError: 3\n'
    )
    outcome = Outcome("x", "raised", error="ValueError: 3", stack=stack)
    assert place_of(outcome) == "/code/env.py:4 in make"
    assert stack_of(outcome).splitlines() == [
        "Traceback (most recent call last):", '  File "/code/env.py", line 4, in make',
        "    raise ValueError(3)", "ValueError: 3",
    ]  # fmt: skip


def test_nothing_known_is_no_place() -> None:
    assert place_of(Outcome("x", "crash", signal="SIGKILL")) == ""


@pytest.mark.parametrize(
    "outcome, state",
    [
        (Outcome("import torch", "ok", result={"version": "2.3"}), "ok"),
        (Outcome("import torch", "crash", signal="SIGSEGV"), "crash"),
        (Outcome("import torch", "crash", exit_code=0), "crash"),
        (Outcome("import torch", "hang"), "hang"),
        (Outcome("import torch", "raised", error="ImportError: libtorch.so"), "error"),
        (Outcome("import torch", "raised", error="ModuleNotFoundError: No module named 'torch'"), "not installed"),
        (Outcome("import torch", "raised", error="ModuleNotFoundError: No module named 'sympy'"), "error"),
    ],
)
def test_states(outcome: Outcome, state: str) -> None:
    step = report_of("imports", outcome)
    assert step.state == state
    assert step.failed == (state in ("crash", "hang", "error"))


def test_table_of_the_users_stages() -> None:
    stages = (StageRecord("data", "done"), StageRecord("env", "raised"), StageRecord("model", "open"))
    dead = StepReport("app:main", YOUR_STAGES, "crash", "SIGSEGV", "SIGSEGV", "app.py:3 in main", 1.5, stages=stages)
    fine = StepReport("app:data", YOUR_STAGES, "ok", "ok", seconds=0.25)
    words = [line.split() for step in (fine, dead) for line in report.step_lines(step)]
    assert words == [
        ["works", "app:data", "(0.25", "s)"],
        ["dies", "here", "app:main", "SIGSEGV", "in", "app.py:3", "in", "main", "(1.5", "s)"],
        ["works", "data"],
        ["raises", "here", "env"],
        ["dies", "here", "model"],
    ]


def test_hostile_text_does_not_reach_the_terminal() -> None:
    step = StepReport("app:main", YOUR_STAGES, "error", "ValueError: \x1b[2J", output="\x07bell\r\x9b31m")
    text = "\n".join([*report.step_lines(step), *report.detail_lines(step)])
    assert not set(text) & {"\x1b", "\x07", "\r", "\x9b"}
    assert "\\x1b[2J" in text


def test_summary_and_json_say_the_same() -> None:
    examination = Examination(
        {"wsl": 1},
        [
            StepReport("import numpy", "imports", "ok"),
            StepReport("import torch", "imports", "crash", "SIGSEGV", "SIGSEGV"),
            StepReport("create PPO", "policies", "not run"),
            StepReport("import cv2", "imports", "not installed"),
        ],
    )
    assert report.summary(examination) == "1 of 2 steps failed: import torch (crash: SIGSEGV); 1 skipped as a result"
    found = json.loads(report.as_json(examination))
    assert (found["schema"], found["ok"], found["facts"]) == (1, False, {"wsl": 1})
    assert [step["state"] for step in found["steps"]] == ["ok", "crash", "not run", "not installed"]
    assert [sorted(advice) for advice in found["advice"]] == [["do", "found", "name"]]
    assert found["advice"][0]["name"] == "wsl-1"


def test_names_of_steps_are_unique() -> None:
    names = [step.name for step in [*STEPS, *import_steps(STEPS, MODULES), *order_steps(NEEDED, NEEDED)]]
    assert len(names) == len(set(names))


def test_what_is_broken_blocks_what_needs_it_but_not_its_own_import() -> None:
    by_name = {step.name: step for step in [*STEPS, *import_steps(STEPS, MODULES)]}
    assert blockers_of(by_name["import torch"], ["torch"]) == []
    assert blockers_of(by_name["import numpy"], ["torch"]) == []
    assert blockers_of(by_name["create PPO"], ["torch"]) == ["torch"]
    assert blockers_of(by_name["import stable_baselines3"], ["torch"]) == ["torch"]
    assert blockers_of(by_name["shared memory"], ["torch"]) == []


def test_what_is_not_installed_is_not_run(tmp_path: Path) -> None:
    examiner = Examiner(str(tmp_path), limit=60.0, plugins=False)
    examiner.found.facts["modules"] = ["numpy"]
    reports = list(examiner.run(["physics"]))
    assert [report.headline for report in reports if report.name == "Box2D world"] == ["Box2D not installed"]
    assert {report.state for report in reports} == {"not installed"}
    assert examiner.found.steps == reports


def test_order_of_imports_both_ways_and_none_without_torch() -> None:
    assert [step.needs for step in order_steps(NEEDED, ["numpy", "cv2", "torch"])] == [
        ("torch", "numpy", "cv2"), ("numpy", "cv2", "torch"),
    ]  # fmt: skip
    assert list(order_steps(NEEDED, ["numpy", "cv2"])) == []
    assert list(order_steps(NEEDED, ["torch"])) == []


def test_after_a_clash_the_pairs_are_tried() -> None:
    step = next(order_steps(NEEDED, ["numpy", "cv2", "torch"]))
    stages = (
        StageRecord("import torch", "done"),
        StageRecord("import numpy", "done"),
        StageRecord("import cv2", "open"),
    )
    clash = Outcome("order", "crash", signal="SIGSEGV", stages=stages)
    assert [pair.needs for pair in follow_up(step, clash)] == [("torch", "cv2"), ("numpy", "cv2")]
    assert follow_up(step, clash)[0].name == "import torch, then cv2"
    assert follow_up(step, Outcome("order", "ok")) == []
    assert follow_up(follow_up(step, clash)[0], clash) == []
    assert follow_up(import_step("torch"), Outcome("import torch", "crash")) == []


def test_what_imports_torch_on_its_own_is_imported_last() -> None:
    assert NEEDED[-2:] == ("stable_baselines3", "sb3_contrib")
