"""Runs a test suite with and without ``--rl-stability`` and compares it test by test.

    python benchmarks/parity.py --pyargs numpy.linalg numpy.random numpy.lib
    python benchmarks/parity.py --in DIRECTORY --ways auto,test,xdist tests

``--in`` and ``--ways`` are this script's, every other argument goes to pytest. The ways: ``auto`` (one shared process),
``test`` (a process for every test) and ``xdist`` (``-n 2``, compared with plain ``-n 2``). Exit code 1 when the exit
status, any test's outcome, or the set of warnings differs. Two kinds of tests are listed apart: those that differ
between two plain runs, and those that depend on the tests before them (alone and plain they end as with the switch).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

RECORDER = """
import json, re
import pytest

class Recorder:
    def __init__(self, path):
        self.path, self.outcomes, self.warnings = path, {}, []

    # Not the hook that hears reports as they come: with a stranger in it no test starts before the last is reported.
    def pytest_terminal_summary(self, terminalreporter):
        for reports in list(terminalreporter.stats.values()):
            for report in reports:
                if isinstance(report, pytest.TestReport):
                    self.add(report)
        with open(self.path, "w") as file:
            json.dump({"outcomes": self.outcomes, "warnings": self.warnings}, file)

    def add(self, report):
        kept = self.outcomes.setdefault(report.nodeid, {})
        word = report.outcome
        if hasattr(report, "wasxfail"):
            word = "xfailed" if report.skipped else "xpassed"
        if report.when == "call" or word != "passed":
            kept[report.when] = word
        else:
            kept.setdefault(report.when, word)

    def pytest_warning_recorded(self, warning_message, nodeid, when):
        # The number of pytest's temporary directory is another one in every run.
        text = re.sub(r"pytest-\\d+", "pytest-N", str(warning_message.message))
        self.warnings.append([nodeid, when, warning_message.category.__name__, text[:200]])

def pytest_addoption(parser):
    parser.addoption("--parity-record")

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.getoption("--parity-record")))
"""


Record = dict[str, Any]
WAYS = {
    "auto": ([], ["--rl-stability"]),
    "test": ([], ["--rl-stability", "--rl-group=test"]),
    "xdist": (["-n2"], ["-n2", "--rl-stability"]),
}
"""What each way adds to the plain run, and to the run with the switch."""


class Suite:
    """Runs a suite, in *place*, and keeps what two plain runs of it showed."""

    def __init__(self, arguments: list[str], place: Path | None, directory: Path) -> None:
        self._arguments = arguments
        self._place = place or directory
        self._directory = directory
        self._plain: dict[tuple[str, ...], tuple[Record, Record]] = {}
        (directory / "parity_recorder.py").write_text(RECORDER)

    def run(self, added: list[str], tests: list[str] | None = None) -> Record:
        """Outcomes by test and phase, warnings and exit status of one run; of these *tests* only, if any are given."""
        record = self._directory / "record.json"
        record.write_text('{"outcomes": {}, "warnings": []}')
        command = [sys.executable, "-m", "pytest", "-p", "parity_recorder", f"--parity-record={record}"]
        command += ["-p", "no:cacheprovider", "-q", "--no-header", "--tb=no", "-rN"]
        command += [*(self._arguments if tests is None else tests), *added]
        path = os.pathsep.join(filter(None, (str(self._directory), os.environ.get("PYTHONPATH"))))
        began = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": path}
        result = subprocess.run(command, env=environment, cwd=self._place, stdout=subprocess.PIPE, text=True)
        if tests is None:
            print("$ pytest", *self._arguments, *added)
            last = (result.stdout.strip().splitlines() or ["no output"])[-1]
            print(f"   {last} (exit {result.returncode}, {time.monotonic() - began:.1f} s)", flush=True)
        found: Record = json.loads(record.read_text())
        return {**found, "status": result.returncode}

    def plain(self, added: list[str]) -> tuple[Record, Record]:
        key = tuple(added)
        if key not in self._plain:
            self._plain[key] = self.run(added), self.run(added)
        return self._plain[key]

    def compare(self, way: str) -> int:
        """Print what differs; how much that is."""
        plainly, switched = WAYS[way]
        plain, again = self.plain(plainly)
        seen = self.run(switched)
        unsteady = differences(plain, again)
        found = {test: line for test, line in differences(plain, seen).items() if test not in unsteady}
        dependent = [test for test in found if self._same_alone(test, seen)]
        steady_warnings = set(warning_differences(plain, again))
        warned = [line for line in warning_differences(plain, seen) if line not in steady_warnings]
        status = [] if plain["status"] == seen["status"] else [f"exit status {plain['status']} -> {seen['status']}"]
        for test in dependent:
            print("DEPENDS ON ORDER", found.pop(test))
        for line in [*found.values(), *warned, *status]:
            print("DIFFERENT", line)
        print(
            f"{way}: {len(plain['outcomes'])} tests, {len(found)} different outcomes, {len(warned)} different "
            f"warnings, {len(dependent)} tests depend on order, {len(unsteady)} unsteady without us",
            flush=True,
        )
        return len(found) + len(warned) + (len(status) if not dependent else 0) + (not plain["outcomes"])

    def _same_alone(self, test: str, seen: Record) -> bool:
        """Whether plain pytest, given this test alone, ends it as the run with the switch did."""
        alone: Record = self.run([], [argument for argument in self._arguments if argument.startswith("-")] + [test])
        return bool(alone["outcomes"].get(test) == seen["outcomes"].get(test))


def differences(one: Record, other: Record) -> dict[str, str]:
    first, second = one["outcomes"], other["outcomes"]
    return {
        test: f"{test}: {first.get(test)} -> {second.get(test)}"
        for test in sorted({*first, *second})
        if first.get(test) != second.get(test)
    }


def warning_differences(one: Record, other: Record) -> list[str]:
    first, second = (Counter(map(tuple, run["warnings"])) for run in (one, other))
    lines = [f"only without: {warning} x{count}" for warning, count in (first - second).items()]
    return lines + [f"only with: {warning} x{count}" for warning, count in (second - first).items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in", dest="place", type=Path, help="the directory to run pytest in")
    parser.add_argument("--ways", default="auto", help="some of " + ",".join(WAYS))
    own, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        suite = Suite(arguments, own.place, Path(name))
        return 1 if sum(suite.compare(way) for way in own.ways.split(",")) else 0


if __name__ == "__main__":
    sys.exit(main())
