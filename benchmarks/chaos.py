"""Signals at random processes of a run at random moments: does the run end, is every outcome there, is nothing left?

    python benchmarks/chaos.py --rounds 200 --seed 1

Each round runs a small suite in one of several ways and sends SIGKILL, SIGTERM or SIGSTOP to one process of the run:
pytest's own, a parent of test processes, a test's, or a worker that a test started. What must hold:

- The run ends. (pytest's own process, if it was stopped, is continued after two seconds. Nobody else is.)
- Unless pytest's own process was ended, every test has an outcome. One that should pass has passed, or its failure says
  what happened to its process. One that should fail has not passed.
- No process, file or shared-memory segment of the run is left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SUITE = """
import multiprocessing, os, time, pytest

@pytest.fixture(scope="module")
def wide():
    time.sleep(0.05)
    yield
    time.sleep(0.05)

@pytest.mark.parametrize("number", range(15))
def test_shared(number, wide):
    time.sleep(0.05)

def test_fails_in_shared():
    time.sleep(0.05)
    assert 0

@pytest.mark.rl_isolated
@pytest.mark.parametrize("number", range(3))
def test_own(number):
    time.sleep(0.1)

@pytest.mark.rl_isolated
def test_fails_by_signal():
    os.kill(os.getpid(), 11)

def test_worker():
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.3,))
    worker.start()
    worker.join()

@pytest.mark.parametrize("number", range(5))
def test_after(number):
    time.sleep(0.05)
"""
FAILING = {"test_fails_in_shared", "test_fails_by_signal"}
TESTS = 15 + 1 + 3 + 1 + 1 + 5
WAYS = ((), ("--rl-group=test",), ("--rl-backend=spawn",), ("-n2",))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
SAYS_WHAT_HAPPENED = ("CRASH", "STALL", "exit status", "process", "worker", "Interrupted")
LONGEST = 90.0
GRACE = 5.0


@dataclass
class Round:
    """One run, and what was wrong with it."""

    way: tuple[str, ...]
    signal: signal.Signals
    moment: float
    victim: str = "nobody: the run was over"
    hit_pytest: bool = False
    wrong: list[str] = field(default_factory=list)


def pytest_command(way: tuple[str, ...], junit: Path) -> list[str]:
    limits = ["--rl-stall-after=4s", "--rl-limit=15s", "--rl-native=off"]
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={junit}", "--rl-stability", *limits, *way]
    return [sys.executable, "-m", "pytest", *options, "test_suite.py"]


def play(one: Round, chance: random.Random, directory: Path) -> None:
    junit, temporary = directory / "junit.xml", directory / "tmp"
    temporary.mkdir()
    (directory / "test_suite.py").write_text(SUITE)
    segments = {*os.listdir("/dev/shm")}
    with (directory / "output").open("w") as output:
        run = subprocess.Popen(
            pytest_command(one.way, junit),
            cwd=directory,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    time.sleep(one.moment)
    seen = strike(one, run, chance)
    try:
        run.wait(LONGEST)
    except subprocess.TimeoutExpired:
        one.wrong.append(f"no end after {LONGEST:.0f} s")
        run.kill()
        run.wait()
    check_rest(one, seen, temporary, segments)
    if not one.hit_pytest:
        check_outcomes(one, junit)


def strike(one: Round, run: subprocess.Popen[bytes], chance: random.Random) -> list[psutil.Process]:
    """Send the signal; every process of the run that was seen."""
    try:
        pytest_process = psutil.Process(run.pid)
        family = [pytest_process, *pytest_process.children(recursive=True)]
        victim = chance.choice(family)
        one.victim, one.hit_pytest = f"{family.index(victim)} of {len(family)}", victim.pid == run.pid
        victim.send_signal(one.signal)
        if one.hit_pytest and one.signal == signal.SIGSTOP:
            time.sleep(2)
            victim.send_signal(signal.SIGCONT)
            one.hit_pytest = False
        return family
    except psutil.NoSuchProcess:
        return []


def check_rest(one: Round, seen: list[psutil.Process], temporary: Path, segments: set[str]) -> None:
    gone, alive = psutil.wait_procs(seen, timeout=GRACE)
    del gone
    for process in alive:
        one.wrong.append(f"process {process.pid} is left ({process.status()})")
        process.kill()
    deadline = time.monotonic() + GRACE
    while (left := [path.name for path in temporary.iterdir() if path.name.startswith("rl")]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    one.wrong += [f"{name} is left in TMPDIR" for name in left]
    one.wrong += [f"/dev/shm/{name} is left" for name in {*os.listdir("/dev/shm")} - segments if name.startswith("rl")]


def check_outcomes(one: Round, junit: Path) -> None:
    try:
        cases = list(ElementTree.parse(junit).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        one.wrong.append(f"no JUnit file: {error}")
        return
    names = {case.get("name", "") for case in cases}
    if len(names) < TESTS:
        one.wrong.append(f"{TESTS - len(names)} outcomes are missing")
    for case in cases:
        name = case.get("name", "")
        failures = [*case.findall("failure"), *case.findall("error")]
        text = " ".join((failure.get("message") or "") + (failure.text or "") for failure in failures)
        if name in FAILING and not failures:
            one.wrong.append(f"{name} passed")
        elif name not in FAILING and failures and not any(word in text for word in SAYS_WHAT_HAPPENED):
            one.wrong.append(f"{name} failed without a reason: {text[:200]!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=6.0, help="latest moment of a signal, in seconds")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    results = Counter[str]()
    for number in range(arguments.rounds):
        way, sent, moment = chance.choice(WAYS), chance.choice(SIGNALS), chance.uniform(0.3, arguments.longest)
        one = Round(way, signal.Signals(sent), moment)
        with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
            play(one, chance, Path(directory))
            output = (Path(directory) / "output").read_text(errors="replace")
        results["wrong" if one.wrong else "right"] += 1
        if one.wrong:
            how = f"{' '.join(way) or 'auto'}, {one.signal.name} at {moment:.2f} s, process {one.victim}"
            print(f"round {number} ({how}): {'; '.join(one.wrong[:5])}\n{output[-1500:]}\n", flush=True)
    print(f"{arguments.rounds} rounds, seed {arguments.seed}: {results['right']} right, {results['wrong']} wrong")
    return 1 if results["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
