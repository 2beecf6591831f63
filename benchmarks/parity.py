"""Runs a test suite with and without ``--rl-stability`` and compares it test by test.

    python benchmarks/parity.py --pyargs numpy.linalg numpy.random numpy.lib
    python benchmarks/parity.py -n 2 --pyargs numpy.linalg

Every argument goes to pytest. Exit code 1 when any test's outcome, or the set of warnings, differs. Tests that differ
from run to run by themselves are found by running the plain suite twice, and listed apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

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


def run(arguments: list[str], directory: Path, name: str) -> dict[str, object]:
    """One run of the suite: outcomes by test and phase, and the warnings."""
    record = directory / f"{name}.json"
    (directory / "parity_recorder.py").write_text(RECORDER)
    command = [sys.executable, "-m", "pytest", "-p", "parity_recorder", f"--parity-record={record}"]
    command += ["-p", "no:cacheprovider", "-q", "--no-header", "--tb=no", "-rN", *arguments]
    inherited = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(directory), inherited)))}
    print("$", " ".join(command[2:]), flush=True)
    result = subprocess.run(command, env=environment, cwd=directory, stdout=subprocess.PIPE, text=True)
    print("  ", result.stdout.strip().splitlines()[-1] if result.stdout.strip() else "no output", flush=True)
    found: dict[str, object] = json.loads(record.read_text())
    return found


def differences(one: dict[str, object], other: dict[str, object]) -> dict[str, str]:
    first, second = one["outcomes"], other["outcomes"]
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    return {
        test: f"{test}: {first.get(test)} -> {second.get(test)}"
        for test in sorted({*first, *second})
        if first.get(test) != second.get(test)
    }


def warning_differences(one: dict[str, object], other: dict[str, object]) -> list[str]:
    first, second = (Counter(map(tuple, run["warnings"])) for run in (one, other))  # type: ignore[call-overload]
    lines = [f"only without: {warning} x{count}" for warning, count in (first - second).items()]
    return lines + [f"only with: {warning} x{count}" for warning, count in (second - first).items()]


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        plain = run(arguments, directory, "plain")
        again = run(arguments, directory, "again")
        isolated = run([*arguments, "--rl-stability"], directory, "isolated")
    unsteady = differences(plain, again)
    found = [line for test, line in differences(plain, isolated).items() if test not in unsteady]
    unsteady_warnings = set(warning_differences(plain, again))
    warned = [line for line in warning_differences(plain, isolated) if line not in unsteady_warnings]
    for line in found + warned:
        print("DIFFERENT", line)
    outcomes = plain["outcomes"]
    assert isinstance(outcomes, dict)
    print(
        f"{len(outcomes)} tests, {len(found)} different outcomes, {len(warned)} different warnings, "
        f"{len(unsteady)} tests unsteady without us"
    )
    return 1 if found or warned or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
