"""The detectors, each as a function from a lap to (whether it found a leak, what it said first)."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable

from leak_corpus import Lap

Answer = tuple[bool, str]


def ours(lap: Lap) -> Answer:
    """The check that ``rl_no_leak`` runs."""
    from pytest_rlstability.leaks import outcome
    from pytest_rlstability.leaks.check import LeakCheck
    from pytest_rlstability.leaks.settings import LeakSettings

    check = LeakCheck(LeakSettings(checking=True))
    try:
        for count in outcome.run(check):
            for _ in range(count):
                lap()
    except Exception as error:
        if not outcome.ran_out(error):
            raise
        outcome.conclude_cut_short(check, error)
    check.close()
    if check.verdict is None:
        return False, check.warning
    return True, str(check.verdict.headline)


def psleak(lap: Lap) -> Answer:
    """psleak with its defaults."""
    from psleak import Error, MemoryLeakTestCase

    class Test(MemoryLeakTestCase):
        def test_lap(self) -> None:
            self.execute(lap)

    try:
        Test("test_lap").test_lap()
    except (Error, AssertionError) as error:
        return True, str(error)
    return False, ""


def memray(lap: Lap) -> Answer:
    """What pytest-memray's ``limit_leaks("1 KB")`` does: no allocation of the test's may stay that adds up to more."""
    from memray import FileReader, Tracker

    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "run.bin")
        with Tracker(path):
            for _ in range(200):
                lap()
            gc.collect()
        records = list(FileReader(path).get_leaked_allocation_records(merge_threads=True))
    large = sorted((record for record in records if record.size >= 1024), key=lambda record: -record.size)
    if not large:
        return False, ""
    stack = large[0].stack_trace(1)
    return True, f"{large[0].size} bytes at {stack[0] if stack else '?'}"


def rllib(lap: Lap) -> Answer:
    """RLlib's own ``check_memory_leaks`` on an environment whose episode is one lap. The imported modules are frozen:
    otherwise its collections, two for every lap, take minutes."""
    from types import SimpleNamespace

    import gymnasium
    import scipy.stats  # it imports that while it measures  # noqa: F401
    from ray.rllib.utils.debug.memory import check_memory_leaks

    class Env(gymnasium.Env[int, int]):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **_: object) -> tuple[int, dict[str, object]]:
            return 0, {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
            lap()
            return 0, 0.0, True, False, {}

    envs = SimpleNamespace(get_sub_environments=lambda: [Env()])
    algorithm = SimpleNamespace(env_runner=SimpleNamespace(async_env=envs))
    gc.collect()
    gc.freeze()
    suspects = check_memory_leaks(algorithm, {"env"})["env"]
    return bool(suspects), str(suspects[0].traceback) if suspects else ""


DETECTORS: dict[str, Callable[[Lap], Answer]] = {
    "ours": ours,
    "psleak": psleak,
    "memray": memray,
    "rllib": rllib,
}
