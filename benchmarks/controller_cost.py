"""What one test costs the controller of pytest-xdist: processor time, memory, log and page.

    python benchmarks/controller_cost.py [--few 1000] [--many 6000]

Runs two suites of empty tests, a small and a large one, with two workers, and divides the differences by the tests
between them. Time and memory are those of the controller's own process. A third run with eight workers shows what a
test costs for each worker: every worker sends the names of all tests. The last line is 100 hosts and a million tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import astuple, dataclass
from pathlib import Path

CONFTEST = """
import json, resource

def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        used = resource.getrusage(resource.RUSAGE_SELF)
        with open("used.json", "w") as file:
            json.dump([used.ru_utime + used.ru_stime, used.ru_maxrss * 1024], file)
"""
TESTS = """
import pytest
@pytest.mark.parametrize("number", range({count}))
def test_behaviour_of_the_environment(number): pass
"""
REPORTS = ("--rl-stability", "--rl-jsonl=run.jsonl", "--rl-html=run.html", "--rl-metrics-port=0")
WAYS = {"xdist alone": (), "the plugin": REPORTS[:1], "log": REPORTS[:2], "log, page, metrics": REPORTS}
WORKERS = 8
HOSTS, MILLION = 100, 1_000_000


@dataclass(frozen=True)
class Cost:
    seconds: float
    memory: float
    log: float = 0
    page: float = 0

    def slope(self, other: Cost, by: float) -> Cost:
        return Cost(*((after - before) / by for before, after in zip(astuple(self), astuple(other), strict=True)))


def measure(tests: int, workers: int, options: tuple[str, ...]) -> Cost:
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        (directory / "pytest.ini").write_text("[pytest]\n")
        (directory / "conftest.py").write_text(CONFTEST)
        for part in range(10):
            (directory / f"test_part_{part}.py").write_text(TESTS.format(count=tests // 10))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers), *options]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout[-3000:])
        written = [directory / "run.jsonl", directory / "run.html"]
        sizes = [path.stat().st_size if path.exists() else 0 for path in written]
        return Cost(*json.loads((directory / "used.json").read_text()), *sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=1000)
    parser.add_argument("--many", type=int, default=6000)
    given = parser.parse_args()
    between = given.many - given.few
    print(f"{'a test, two workers':20} {'processor':>10} {'memory':>9} {'log':>7} {'page':>7}")
    for way, options in WAYS.items():
        large = measure(given.many, 2, options)
        a_test = measure(given.few, 2, options).slope(large, between)
        print(
            f"{way:20} {a_test.seconds * 1000:>7.2f} ms {a_test.memory / 1e3:>6.2f} kB {a_test.log:>5.0f} B"
            f" {a_test.page:>5.0f} B",
            flush=True,
        )
    a_worker = large.slope(measure(given.many, WORKERS, REPORTS), (WORKERS - 2) * given.many)
    print(f"for each worker more {a_worker.seconds * 1000:>7.4f} ms {a_worker.memory / 1e3:>6.2f} kB")
    seconds = MILLION * (a_test.seconds + (HOSTS - 2) * max(0.0, a_worker.seconds))
    memory = MILLION * (a_test.memory + (HOSTS - 2) * a_worker.memory)
    print(
        f"{HOSTS} hosts with one worker each, {MILLION:,} tests: {seconds / 3600:.1f} h of the controller's processor, "
        f"{memory / 1e9:.0f} GB of its memory, a log of {MILLION * a_test.log / 1e6:.0f} MB, a page of "
        f"{MILLION * a_test.page / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
