"""How often the stall watch accuses tests that only take their time: ``python benchmarks/stall_innocents.py``.

Runs ``benchmarks/stall_corpus/test_innocents.py`` again and again, half of the times beside a busy loop on each core.
Many more tests go at once than there are cores, so that each of them is kept waiting. Exit code 1 when any is accused.
"""

from __future__ import annotations

import argparse
import os
import shutil
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


def run(copies: int, at_once: int) -> list[tuple[str, str]]:
    """Each test of as many copies of the file, with the word that its outcome begins with."""
    with tempfile.TemporaryDirectory() as directory:
        for number in range(copies):
            shutil.copy(INNOCENTS, Path(directory) / f"test_innocents_{number}.py")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            f"-n{at_once}",
            "--rl-stability",
            "--rl-group=test",
            "--rl-native=off",
        ]
        command += ["-p", "no:cacheprovider", "--junitxml=junit.xml"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, cwd=directory)
        cases = ElementTree.parse(Path(directory) / "junit.xml").iter("testcase")
        return [(str(case.get("name")), outcome(case)) for case in cases]


def outcome(case: ElementTree.Element) -> str:
    for tag in ("failure", "error", "skipped"):
        if (node := case.find(tag)) is not None:
            return tag if tag == "skipped" else str(node.get("message")).partition("\n")[0]
    return "passed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=12)
    arguments = parser.parse_args()
    passed: Counter[str] = Counter()
    accused: Counter[str] = Counter()
    for copies, hogs in ((arguments.runs // 2, 0), (arguments.runs - arguments.runs // 2, os.cpu_count() or 1)):
        began = time.monotonic()
        with busy_cores(hogs):
            outcomes = run(copies, arguments.at_once)
        wrong = [(name, word) for name, word in outcomes if word not in ("passed", "skipped")]
        passed.update(name for name, word in outcomes if word == "passed")
        accused.update(name for name, _ in wrong)
        print(f"{copies} times, {hogs} busy loops beside it: {len(outcomes)} tests in {time.monotonic() - began:.0f} s")
        for name, word in wrong:
            print(f"  accused: {name}: {word}")
    least = min(passed.values(), default=0)
    print(f"{sum(passed.values())} passed, at least {least} of each; {sum(accused.values())} accused")
    return 1 if accused or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
