"""How often the stall watch accuses tests that only take their time: ``python benchmarks/stall_innocents.py``.

Runs ``benchmarks/stall_corpus/test_innocents.py`` again and again, every other time beside a busy loop on each core.
Many more tests go at once than there are cores, so that each of them is kept waiting. Exit code 1 when any is accused.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INNOCENTS = Path(__file__).parent / "stall_corpus" / "test_innocents.py"


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def run_once(at_once: int) -> dict[str, str]:
    """Each test with the word that its outcome begins with."""
    with tempfile.TemporaryDirectory() as directory:
        junit = Path(directory) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"-n{at_once}", "--rl-stability", "--rl-native=off"]
        command += ["-p", "no:cacheprovider", f"--junitxml={junit}", str(INNOCENTS)]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, cwd=directory)
        return {str(case.get("name")): outcome(case) for case in ElementTree.parse(junit).iter("testcase")}


def outcome(case: ElementTree.Element) -> str:
    for tag in ("failure", "error", "skipped"):
        if (node := case.find(tag)) is not None:
            return tag if tag == "skipped" else str(node.get("message")).partition("\n")[0]
    return "passed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=10)
    arguments = parser.parse_args()
    passed: Counter[str] = Counter()
    accused: Counter[str] = Counter()
    for number in range(1, arguments.runs + 1):
        began = time.monotonic()
        with busy_cores((os.cpu_count() or 1) if number % 2 == 0 else 0):
            outcomes = run_once(arguments.at_once)
        passed.update(name for name, word in outcomes.items() if word == "passed")
        wrong = {name: word for name, word in outcomes.items() if word not in ("passed", "skipped")}
        accused.update(list(wrong))
        print(
            f"run {number:3d}  {time.monotonic() - began:5.1f} s  {len(outcomes)} tests  {wrong or 'none accused'}",
            flush=True,
        )
    least = min(passed.values(), default=0)
    print(f"{sum(passed.values())} passed, at least {least} of each; {sum(accused.values())} accused")
    return 1 if accused or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
