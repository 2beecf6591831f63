"""The steps for every machine: imports, import orders, tensors and shared memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pytest_rlstability.steps import Outcome
from pytest_rlstability.steps.doctor_step import DoctorStep

_CHECKS = "pytest_rlstability.doctor.checks"
IMPORTS = "imports"
IMPORT_ORDER = "import-order"

MODULES = (
    "numpy", "scipy", "pandas", "matplotlib", "torch", "tensorflow", "jax", "gymnasium", "gym", "stable_baselines3",
    "sb3_contrib", "ray", "mujoco", "ale_py", "PIL", "pygame", "cv2",
)  # fmt: skip
"""Modules that are imported if they are installed, besides those that a step needs."""

DISTRIBUTIONS = (
    "numpy", "torch", "tensorflow", "tensorflow-cpu", "jax", "gymnasium", "gym", "stable-baselines3", "sb3-contrib",
    "pyboy", "box2d", "box2d-py", "box2d-kengz", "pillow", "pillow-simd", "pygame", "pygame-ce", "opencv-python",
    "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless", "pytest-rlstability",
)  # fmt: skip

_CLASHING = ("PIL", "cv2", "pygame")
"""Modules whose native libraries are known to clash with others, though no step needs them."""

_BRINGS = {"stable_baselines3": ("torch", "gymnasium"), "sb3_contrib": ("torch", "gymnasium", "stable_baselines3")}
"""What a module imports on its own."""


def pytest_rlstability_doctor_steps() -> list[DoctorStep]:
    tensors = f"{_CHECKS}.tensors"
    return [
        DoctorStep("numpy operations", "tensors", f"{tensors}:numpy_operations", ("numpy",)),
        DoctorStep("tensor operations", "tensors", f"{tensors}:operations", ("torch",)),
        DoctorStep("fork after torch's threads", "tensors", f"{tensors}:fork_after_threads", ("torch",)),
        DoctorStep("shared memory", "shared-memory", f"{tensors}:shared_memory"),
        DoctorStep("shared tensors", "shared-memory", f"{tensors}:shared_tensors", ("torch",)),
    ]


def groups_of(steps: Sequence[DoctorStep]) -> tuple[str, ...]:
    """The groups in the order in which they are run."""
    return tuple(dict.fromkeys([IMPORTS, IMPORT_ORDER, *(step.group for step in steps)]))


def needed_by(steps: Sequence[DoctorStep]) -> tuple[str, ...]:
    """The modules that *steps* need or that may clash. Those that import torch on their own come last, so that an order
    of imports can have all others before torch."""
    modules = dict.fromkeys([*(module for step in steps for module in step.needs), *_CLASHING])
    return tuple(sorted(modules, key=lambda module: module in _BRINGS))


def import_steps(steps: Sequence[DoctorStep], installed: Collection[str]) -> list[DoctorStep]:
    """An import of each module that is installed or that a step needs."""
    needed = needed_by(steps)
    wanted = dict.fromkeys([*(module for module in MODULES if module in installed or module in needed), *needed])
    return [import_step(module) for module in wanted]


def import_step(module: str) -> DoctorStep:
    call = f"{_CHECKS}.libraries:import_one"
    return DoctorStep(f"import {module}", IMPORTS, call, (module,), {"module": module}, imports=module)


def order_steps(needed: Sequence[str], working: Collection[str]) -> Iterator[DoctorStep]:
    """Imports of torch before and after the other modules that can be imported here."""
    others = tuple(module for module in needed if module in working and module != "torch")
    if "torch" in working and others:
        yield _order_step(("torch", *others), "torch first, then the others")
        yield _order_step((*others, "torch"), "the others first, then torch")


def _order_step(modules: tuple[str, ...], name: str = "") -> DoctorStep:
    call = f"{_CHECKS}.libraries:import_in_order"
    name = name or f"import {', then '.join(modules)}"
    return DoctorStep(name, IMPORT_ORDER, call, modules, {"modules": list(modules)})


def blockers_of(step: DoctorStep, broken: Collection[str]) -> list[str]:
    """The modules in *broken* that *step* would import."""
    wanted = {*step.needs, *(under for module in step.needs for under in _BRINGS.get(module, ()))}
    return [module for module in broken if module in wanted and module != step.imports]


def follow_up(step: DoctorStep, outcome: Outcome) -> list[DoctorStep]:
    """After a failed import order: the pairs of modules that may have caused it, each alone."""
    if step.group != IMPORT_ORDER or outcome.ending == "ok" or len(step.needs) <= 2:
        return []
    done = sum(stage.state == "done" for stage in outcome.stages)
    return [_order_step((earlier, step.needs[done])) for earlier in step.needs[:done]] if done < len(step.needs) else []
