"""What watching a test for stalls costs: ``python benchmarks/stall_cost.py``.

The watch looks at a process twice a second. Here it looks at one that stands still with a number of threads and child
processes, and at a busy one, and the processor time of a look is put against the time until the next. Exit code 1 when
an ordinary test (nine threads, as torch has on eight cores) costs more than 0.2 % of a core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from pytest_rlstability.model.progress_counters import ProgressCounters
from pytest_rlstability.session.test_process import TestProcess
from pytest_rlstability.session.watchdogs.stall import StallWatch

TARGET = 0.002


def stand(threads: int, children: int, busy: bool, ready: Event) -> None:
    for _ in range(threads - 1):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    for _ in range(children):
        multiprocessing.Process(target=time.sleep, args=(600,), daemon=True).start()
    ready.set()
    while busy:
        pass
    time.sleep(600)


def share(threads: int, children: int, looks: int, *, busy: bool = False) -> float:
    """Of a core, that watching such a process takes."""
    ready = multiprocessing.Event()
    process = multiprocessing.Process(target=stand, args=(threads, children, busy, ready))
    process.start()
    ready.wait()
    time.sleep(0.2)
    with tempfile.TemporaryDirectory() as directory:
        counters = ProgressCounters(Path(directory)).of_process(1)
        watched = TestProcess(1, counters, Path(directory), Path(directory), pid=process.pid or 0)
        watch = StallWatch(3600, Path(directory), print)
        spent = period = 0.0
        for _ in range(looks):
            before = time.thread_time()
            assert watch.check(watched) is None
            spent += time.thread_time() - before
            period += watch.due - time.monotonic()
            time.sleep(0.05)
    for child in multiprocessing.active_children():
        child.kill()
    process.join()
    return spent / period


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--looks", type=int, default=40)
    looks = parser.parse_args().looks
    ordinary = share(9, 0, looks)
    print(f"9 threads, standing still                  {ordinary:.4%} of a core")
    print(f"1 thread, standing still                   {share(1, 0, looks):.4%} of a core")
    print(f"9 threads, one computing                   {share(9, 0, looks, busy=True):.4%} of a core")
    print(f"3 threads, 8 worker processes              {share(3, 8, looks):.4%} of a core")
    print(f"64 threads                                 {share(64, 0, looks):.4%} of a core")
    return 1 if ordinary > TARGET else 0


if __name__ == "__main__":
    sys.exit(main())
