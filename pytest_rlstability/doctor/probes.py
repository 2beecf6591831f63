"""The steps, in the order they are run. A new one is a function in ``checks`` and a line here."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pytest_rlstability.steps import Outcome

_CHECKS = "pytest_rlstability.doctor.checks"

MODULES = (
    "numpy", "scipy", "pandas", "matplotlib", "torch", "tensorflow", "jax", "gymnasium", "gym", "stable_baselines3",
    "sb3_contrib", "ray", "pyboy", "Box2D", "mujoco", "ale_py", "PIL", "pygame", "cv2",
)  # fmt: skip
"""What is imported, where it is installed."""

ALWAYS_NAMED = (
    "numpy",
    "torch",
    "gymnasium",
    "stable_baselines3",
    "sb3_contrib",
    "pyboy",
    "Box2D",
    "PIL",
    "pygame",
    "cv2",
)
"""Those whose absence is worth a line."""

DISTRIBUTIONS = (
    "numpy", "torch", "tensorflow", "tensorflow-cpu", "jax", "gymnasium", "gym", "stable-baselines3", "sb3-contrib",
    "pyboy", "box2d", "box2d-py", "box2d-kengz", "pillow", "pillow-simd", "pygame", "pygame-ce", "opencv-python",
    "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless", "pytest-rlstability",
)  # fmt: skip

_NATIVE = ("numpy", "torch", "cv2", "PIL", "Box2D", "pyboy", "pygame", "gymnasium", "stable_baselines3")
"""What training code mixes in one process."""

_BRINGS = {"stable_baselines3": ("torch", "gymnasium"), "sb3_contrib": ("torch", "gymnasium", "stable_baselines3")}
"""What a module imports on its own."""

GROUPS = (
    "imports", "import-order", "tensors", "policies", "vec-envs", "emulator", "physics", "images", "shared-memory",
)  # fmt: skip


@dataclass(frozen=True)
class Probe:
    """One step: *call* is run in a fresh process when every module in *needs* is installed, and unless a module that
    it would import is known to fail by itself. *imports* names the one whose import is what the step is about.

    ``Probe("box2d world", "physics", "worlds:box2d", needs=("Box2D",))``
    """

    name: str
    group: str
    call: str
    needs: tuple[str, ...] = ()
    arguments: Mapping[str, object] = field(default_factory=dict)
    imports: str = ""

    @property
    def function(self) -> str:
        return f"{_CHECKS}.{self.call}"

    def missing(self, installed: Collection[str]) -> list[str]:
        return [module for module in self.needs if module not in installed]

    def blocked_by(self, broken: Collection[str]) -> list[str]:
        wanted = {*self.needs, *(under for module in self.needs for under in _BRINGS.get(module, ()))}
        return [module for module in broken if module in wanted and module != self.imports]


def import_probe(module: str) -> Probe:
    return Probe(f"import {module}", "imports", "libraries:import_one", (module,), {"module": module}, imports=module)


def order_probe(modules: tuple[str, ...], name: str = "") -> Probe:
    return Probe(
        name or f"import {', then '.join(modules)}", "import-order", "libraries:import_in_order",
        modules, {"modules": list(modules)},
    )  # fmt: skip


def order_probes(working: Collection[str]) -> Iterator[Probe]:
    """Both orders of torch and whatever else can be imported, each in one process."""
    others = tuple(module for module in _NATIVE if module in working and module != "torch")
    if "torch" in working and others:
        yield order_probe(("torch", *others), "torch first, then the others")
        yield order_probe((*others, "torch"), "the others first, then torch")


def _vector_probes() -> Iterator[Probe]:
    for method in ("fork", "forkserver", "spawn"):
        if method == "spawn" or sys.platform != "win32":
            yield Probe(
                f"SubprocVecEnv by {method}", "vec-envs", "policies:vector_environment",
                ("stable_baselines3",), {"start_method": method},
            )  # fmt: skip


def all_probes(installed: Collection[str]) -> list[Probe]:
    """Every step but ``order_probes``, which take the outcome of the imports; those that lack a module as well."""
    probes = [import_probe(module) for module in MODULES if module in installed or module in ALWAYS_NAMED]
    probes += [
        Probe("numpy operations", "tensors", "tensors:numpy_operations", ("numpy",)),
        Probe("tensor operations", "tensors", "tensors:operations", ("torch",)),
    ]
    if sys.platform != "win32":
        probes.append(Probe("fork after torch's threads", "tensors", "tensors:fork_after_threads", ("torch",)))
    probes += [
        Probe("create PPO", "policies", "policies:create_ppo", ("stable_baselines3",)),
        Probe("create MaskablePPO", "policies", "policies:create_maskable", ("sb3_contrib",)),
        Probe("save and load", "policies", "policies:save_and_load", ("stable_baselines3",)),
        Probe("learn one rollout", "policies", "policies:learn", ("stable_baselines3",)),
        *_vector_probes(),
        Probe("PyBoy", "emulator", "worlds:emulator", ("pyboy",)),
        Probe("Box2D world", "physics", "worlds:box2d", ("Box2D",)),
        Probe("LunarLander", "physics", "worlds:lunar_lander", ("gymnasium", "Box2D", "pygame")),
        Probe("screenshot by Pillow", "images", "media:screenshot_pillow", ("PIL",)),
        Probe("screenshot by OpenCV", "images", "media:screenshot_opencv", ("cv2", "numpy")),
        Probe("pygame surface", "images", "media:pygame_surface", ("pygame",)),
        Probe("shared memory", "shared-memory", "media:shared_memory"),
        Probe("shared tensors", "shared-memory", "media:shared_tensors", ("torch",)),
    ]
    return probes


def follow_up(probe: Probe, outcome: Outcome) -> list[Probe]:
    """After imports in an order have failed: the pairs that may be to blame, each alone."""
    if probe.group != "import-order" or outcome.ending == "ok" or len(probe.needs) <= 2:
        return []
    done = sum(stage.state == "done" for stage in outcome.stages)
    return (
        [order_probe((earlier, probe.needs[done])) for earlier in probe.needs[:done]] if done < len(probe.needs) else []
    )
