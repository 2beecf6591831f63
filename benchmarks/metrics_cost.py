"""What the metrics of a 10,000-test run cost: hearing its events, and one scrape.

python benchmarks/metrics_cost.py
"""

from __future__ import annotations

import random
import time

from prometheus_client import generate_latest

from pytest_rlstability.events import event
from pytest_rlstability.reports.exposition import registry_of
from pytest_rlstability.reports.run_state import RunState
from pytest_rlstability.signals.registry import SIGNALS

TESTS = 10_000
SAMPLES = 60


def main() -> None:
    state, heard = RunState(), 0
    generator = random.Random(1)
    started = time.process_time()
    for number in range(TESTS):
        name = f"tests/test_module_{number % 100}.py::test_number[{number}]"
        state.hear(event("started", name))
        for lap in range(SAMPLES if number % 4 == 0 else 0):
            values = {signal: generator.random() * 1e6 for signal in SIGNALS}
            state.hear(event("sample", name, lap=lap, seconds=lap * 0.2, values=values))
            heard += 1
        state.hear(event("finished", name, outcome="passed", verdict=None, duration=1.0, peak_memory=3e7, laps=SAMPLES))
    print(f"{heard} samples heard: {(time.process_time() - started) / heard * 1e6:.0f} us each, the making included")
    registry = registry_of(state)
    for which in ("first", "second"):
        started = time.process_time()
        page = generate_latest(registry)
        seconds = time.process_time() - started
        series = sum(not line.startswith(b"#") for line in page.splitlines())
        print(f"{which} scrape: {seconds * 1000:.0f} ms of processor time, {series} series, {len(page) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
