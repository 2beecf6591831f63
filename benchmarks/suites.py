"""What the switch costs in other people's suites: plain pytest and each ``--rl-group``, alternating in one run.

    pip download --no-deps --no-binary :all: click && tar xzf click-*.tar.gz
    python benchmarks/suites.py click-*/tests --rounds 3

A suite is a directory or a file of tests that pass here. Prints seconds of wall time and of processor time (all
processes), the median of the rounds, and the ratios to plain pytest. With ``-n 2`` every way runs under pytest-xdist.
"""

from __future__ import annotations

import argparse
import re
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

GOALS = {"auto": 1.15}
"""Wall time against plain pytest."""


@dataclass(frozen=True)
class Cost:
    wall: float
    processor: float
    outcome: str
    """pytest's last line without the time: it must be the same for every way."""


def measure(suite: Path, options: list[str]) -> Cost:
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [*pytest, *options, suite.name], cwd=suite.parent, capture_output=True, text=True, check=False
    )
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    last = next(
        (line for line in reversed(done.stdout.splitlines()) if re.search(r" in [\d.]+s", line)), done.stdout[-200:]
    )
    return Cost(wall, processor, re.sub(r" in [\d.]+s.*", "", last))


def compare(suite: Path, groups: list[str], rounds: int, workers: list[str]) -> bool:
    """Print the costs of one suite; whether outcomes were the same and the goals met."""
    ways = {"plain": workers, **{group: [*workers, "--rl-stability", f"--rl-group={group}"] for group in groups}}
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, options in ways.items():
            costs[name].append(measure(suite, options))
    print(f"{suite.parent.name}/{suite.name}: {costs['plain'][0].outcome}")
    good = True
    plain = statistics.median(cost.wall for cost in costs["plain"])
    for name, found in costs.items():
        wall = statistics.median(cost.wall for cost in found)
        processor = statistics.median(cost.processor for cost in found)
        note = "" if name == "plain" else f"  {wall / plain:5.2f} x plain"
        if {cost.outcome for cost in found} != {costs["plain"][0].outcome}:
            good, note = False, f"{note}  other outcome: {found[0].outcome}"
        if wall / plain > GOALS.get(name, float("inf")):
            good, note = False, f"{note}  over the goal of {GOALS[name]}"
        print(f"  {name:8} {wall:8.2f} s wall {processor:8.2f} s processor{note}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", type=Path)
    parser.add_argument("--groups", default="auto,test", help="which --rl-group to try (default: auto,test)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-n", dest="workers", help="as for pytest-xdist")
    given = parser.parse_args()
    workers = [] if given.workers is None else ["-n", given.workers]
    suites = [path.resolve() for path in given.suites]
    good = [compare(suite, given.groups.split(","), given.rounds, workers) for suite in suites]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
