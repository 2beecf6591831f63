"""How often two runs of the same thing are called different, and how often a real change is seen.

    python benchmarks/baseline_noise.py [--pairs 10000]

Simulated runs of 40 samples: lap times with normal noise, a load that comes and goes, and laps that take three times
as long; heap that moves without growing; and one value for the peak. No process is started and no clock is read.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence

from pytest_rlstability.leaks.signals.registry import signal_facts
from pytest_rlstability.model.events import Finished, Outcome, Sample
from pytest_rlstability.reports.baselines.compare import compare
from pytest_rlstability.reports.baselines.measures import Gatherer, TestMeasures

LAP = 0.1
HEAP = 5e6
PEAK = 200e6
SAMPLES = 40
TOLERANCE = 0.2
SIGNALS = signal_facts({})
MEASURES = ("lap time", "peak memory", "growth of malloc per lap")
CHANGES = (
    ("unchanged", 1.0, 0.0),
    ("+10 %, 100 bytes per lap", 1.1, 100.0),
    ("+30 %, 1 KiB per lap", 1.3, 1024.0),
    ("+100 %, 10 KiB per lap", 2.0, 10240.0),
)


def lap_times(generator: random.Random, center: float, share: float) -> list[float]:
    load, numbers = 0.0, []
    for _ in range(SAMPLES):
        load = 0.9 * load + generator.gauss(0, share / 3)
        spike = 3.0 if generator.random() < 0.05 else 1.0
        numbers.append(center * max(0.2, 1 + generator.gauss(0, share) + load) * spike)
    return numbers


def heap(generator: random.Random, share: float, per_lap: float) -> list[float]:
    return [HEAP * (1 + generator.gauss(0, share / 25)) + per_lap * lap for lap in range(SAMPLES)]


def run(laps: Sequence[float], values: Sequence[float], peak: float) -> TestMeasures:
    gatherer = Gatherer(load=lambda: 0.0)
    seconds = 0.0
    for lap, (took, value) in enumerate(zip(laps, values, strict=True)):
        seconds += took
        gatherer.handle(Sample(test="t", lap=lap, seconds=seconds, values={"malloc": value}))
    gatherer.handle(Finished(test="t", outcome=Outcome.PASSED, peak_memory=peak))
    return gatherer.tests["t"]


def shares_worse(pairs: int, share: float, factor: float, per_lap: float) -> dict[str, float]:
    """By measure, the share of pairs in which the second run is called worse. That one is *factor* times as slow and
    as large, and its heap grows by *per_lap* bytes."""
    generator = random.Random(7)
    worse: Counter[str] = Counter()
    for _ in range(pairs):
        before, after = (
            run(
                lap_times(generator, LAP * times, share),
                heap(generator, share, growth),
                PEAK * times * (1 + generator.gauss(0, share / 10)),
            )
            for times, growth in ((1.0, 0.0), (factor, per_lap))
        )
        worse.update(change.measure for change in compare({"t": before}, {"t": after}, TOLERANCE, SIGNALS).worse)
    return {measure: worse[measure] / pairs for measure in MEASURES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000)
    pairs = parser.parse_args().pairs
    print(f"share of {pairs} pairs of runs in which the second is called worse (tolerance {TOLERANCE:.0%})")
    for share in (0.02, 0.05, 0.1, 0.2):
        print(f"noise {share:.0%} of a lap, {share / 25:.2%} of the heap")
        for text, factor, per_lap in CHANGES:
            found = shares_worse(pairs, share, factor, per_lap)
            print(f"  {text:<28}", "  ".join(f"{name} {found[name]:7.2%}" for name in MEASURES))


if __name__ == "__main__":
    main()
