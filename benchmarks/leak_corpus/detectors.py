"""The detectors, each as a function from a lap to (whether it found a leak, what it said first)."""

from __future__ import annotations

import gc
import os
import tempfile
import tracemalloc
from collections import defaultdict
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


def regression(lap: Lap) -> Answer:
    """As RLlib's ``check_memory_leaks``: a line fitted through tracemalloc's size of each traceback, 200 repeats,
    up to three trials, a leak where the same line is steep in every one."""
    suspects: set[object] | None = None
    for _ in range(3):
        found = _steep_lines(lap)
        suspects = found if suspects is None else suspects & found
        if not suspects:
            return False, ""
    return True, str(next(iter(suspects or {"?"})))


def _steep_lines(lap: Lap) -> set[object]:
    sizes: dict[object, list[int]] = defaultdict(list)
    tracemalloc.start(20)
    for repeat in range(200):
        lap()
        if repeat % 10 == 9:
            gc.collect()
            for statistic in tracemalloc.take_snapshot().statistics("traceback"):
                if statistic.traceback[-1].filename not in (__file__, tracemalloc.__file__):  # its own bookkeeping
                    sizes[statistic.traceback].append(statistic.size)
    tracemalloc.stop()
    return {str(place) for place, series in sizes.items() if len(series) >= 10 and _steep(series)}


def _steep(series: list[int]) -> bool:
    count = len(series)
    mean_x, mean_y = (count - 1) / 2, sum(series) / count
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(series))
    spread_x = sum((x - mean_x) ** 2 for x in range(count))
    spread_y = sum((y - mean_y) ** 2 for y in series)
    if not spread_y:
        return False
    slope, correlation = covariance / spread_x, covariance / (spread_x * spread_y) ** 0.5
    return series[-1] - series[0] > 1000 and (slope > 60 or (slope > 20 and correlation > 0.875))


DETECTORS: dict[str, Callable[[Lap], Answer]] = {
    "ours": ours,
    "psleak": psleak,
    "memray": memray,
    "regression": regression,
}
