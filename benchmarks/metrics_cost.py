"""What the metrics of a 10,000-test run cost: hearing its events, and one scrape.

python benchmarks/metrics_cost.py
"""

from __future__ import annotations

import random
import time

from prometheus_client import generate_latest

from pytest_rlstability.leaks.signals.registry import signal_facts
from pytest_rlstability.model.events import Finished, Outcome, Sample, Started
from pytest_rlstability.reports.exposition import registry_of
from pytest_rlstability.reports.run_state import RunState

TESTS = 10_000
SAMPLES = 60


def main() -> None:
    state, handled = RunState(), 0
    generator = random.Random(1)
    started = time.process_time()
    for number in range(TESTS):
        name = f"tests/test_module_{number % 100}.py::test_number[{number}]"
        state.handle(Started(test=name))
        for lap in range(SAMPLES if number % 4 == 0 else 0):
            values = {signal: generator.random() * 1e6 for signal in signal_facts({})}
            state.handle(Sample(test=name, lap=lap, seconds=lap * 0.2, values=values))
            handled += 1
        state.handle(Finished(test=name, outcome=Outcome.PASSED, duration=1.0, peak_memory=3e7, laps=SAMPLES))
    print(f"{handled} samples handled: {(time.process_time() - started) / handled * 1e6:.0f} us each, with the making")
    registry = registry_of(state)
    for which in ("first", "second"):
        started = time.process_time()
        page = generate_latest(registry)
        seconds = time.process_time() - started
        series = sum(not line.startswith(b"#") for line in page.splitlines())
        print(f"{which} scrape: {seconds * 1000:.0f} ms of processor time, {series} series, {len(page) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
