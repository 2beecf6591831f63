"""Signals at random processes of a run at random moments: does the run end, is every outcome there, is nothing left?

    python benchmarks/chaos.py --rounds 200 --seed 1 --jobs 4

Each round runs a small suite in one of several ways and sends SIGKILL, SIGTERM or SIGSTOP to one process of the run:
pytest's own, its standby in collection, a parent of test processes, a test's, a worker of pytest-xdist, or a process
that a test started. What must hold:

- The run ends. (pytest's own process, if it was stopped, is continued after two seconds. Nobody else is.)
- Unless pytest's own process was ended, every test has an outcome. One that should pass has passed, or its failure says
  what happened to its process. One that should fail has not passed. (After a crash at import a copy of pytest's
  process runs the tests. If that is ended, or its standby, a line says that the results are lost, and the run fails.)
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SUITE = """
import multiprocessing, os, time, pytest

time.sleep(float(os.environ.get("CHAOS_IMPORT", 0)))

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
CONFTEST = "open('begun', 'w').close()"
DIES_AT_IMPORT = "import os, time; time.sleep(0.5); os.kill(os.getpid(), 11)"
THREAD_AT_IMPORT = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
FAILING = {"test_fails_in_shared", "test_fails_by_signal"}
TESTS = 15 + 1 + 3 + 1 + 1 + 5


@dataclass(frozen=True)
class Way:
    """How the suite is run: pytest's options, seconds that its import takes, a module beside it, lines before it."""

    options: tuple[str, ...] = ()
    import_takes: float = 0.0
    beside: str = ""
    before: str = ""


WAYS = {
    "auto": Way(),
    "a process each": Way(("--rl-group=test",)),
    "spawn": Way(("--rl-backend=spawn",)),
    "template": Way(before=THREAD_AT_IMPORT),
    "xdist": Way(("-n2",)),
    "slow import": Way(import_takes=2.0),
    "slow import, xdist": Way(("-n2",), import_takes=2.0),
    "crash at import": Way(beside=DIES_AT_IMPORT, import_takes=0.5),
    "crash at import, xdist": Way(("-n2",), beside=DIES_AT_IMPORT, import_takes=0.5),
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
SAYS_WHAT_HAPPENED = ("CRASH", "STALL", "exit status", "process", "worker", "Interrupted")
SAYS_ALL_IS_LOST = ("its results are lost", "\nERROR: CRASH: ", "in bootstrap_import")
"""The second: the process was killed between two modules. The last is xdist's: a worker that ends before it has
imported anything is an internal error there, and ends the run."""
LONGEST = 90.0
GRACE = 20.0
"""Seconds until all is gone. execnet gives a worker fifteen when its controller has died."""


@dataclass
class Round:
    """One run, and what was wrong with it."""

    number: int
    way: str
    signal: signal.Signals
    moment: float
    chance: float
    victim: str = "nobody: the run was over"
    ended_pytest: bool = False
    wrong: list[str] = field(default_factory=list)
    output: str = ""


def pytest_command(way: Way, junit: Path) -> list[str]:
    limits = ["--rl-stall-after=4s", "--rl-limit=15s", "--rl-native=off"]
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={junit}", "--rl-stability", *limits, *way.options]
    return [sys.executable, "-m", "pytest", *options]


def play(one: Round) -> Round:
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as name:
        _play(one, Path(name))
    return one


def _play(one: Round, directory: Path) -> None:
    junit, temporary, way = directory / "junit.xml", directory / "tmp", WAYS[one.way]
    temporary.mkdir()
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_suite.py").write_text(way.before + SUITE)
    if way.beside:
        (directory / "test_beside.py").write_text(way.beside)
    with (directory / "output").open("w") as output:
        run = subprocess.Popen(
            pytest_command(way, junit),
            cwd=directory,
            env={**os.environ, "TMPDIR": str(temporary), "CHAOS_IMPORT": str(way.import_takes)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    wait_for(directory / "begun", run)
    time.sleep(one.moment)
    strike(one, run.pid, temporary)
    try:
        run.wait(LONGEST)
    except subprocess.TimeoutExpired:
        one.wrong.append(f"no end after {LONGEST:.0f} s")
        run.kill()
        run.wait()
    check_rest(one, temporary)
    one.output = (directory / "output").read_text(errors="replace")
    if not one.ended_pytest and not (run.returncode and any(words in one.output for words in SAYS_ALL_IS_LOST)):
        check_outcomes(one, junit, bool(way.beside))


def wait_for(path: Path, run: subprocess.Popen[bytes]) -> None:
    """The clock of a round starts when conftest.py is imported, however slow the machine is."""
    deadline = time.monotonic() + LONGEST
    while not path.exists() and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


def family(temporary: Path) -> list[psutil.Process]:
    """Every process of the run, orphans included: all have its directory in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(temporary) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def role(process: psutil.Process, pids: set[int]) -> str:
    """How many processes of the run are above it; ``orphan`` for the standby and what lost its parent."""
    try:
        above = [parent.pid in pids for parent in process.parents()]
    except psutil.NoSuchProcess:
        return "gone"
    return f"level {sum(above)}" if sum(above) or os.getpid() in [one.pid for one in process.parents()] else "orphan"


def strike(one: Round, pytest_pid: int, temporary: Path) -> None:
    """Send the signal. Roles are drawn first, so that a single process of its kind is hit as often as one of many."""
    chance = random.Random(one.chance)
    processes = family(temporary)
    pids = {process.pid for process in processes}
    roles: dict[str, list[psutil.Process]] = {}
    for process in processes:
        roles.setdefault(role(process, pids), []).append(process)
    if not roles:
        return
    kind = chance.choice(sorted(roles))
    victim = chance.choice(roles[kind])
    try:
        victim.send_signal(one.signal)
    except psutil.NoSuchProcess:
        return
    one.victim = f"{kind}, {len(processes)} processes"
    if victim.pid == pytest_pid:
        if one.signal == signal.SIGSTOP:
            time.sleep(2)
            victim.send_signal(signal.SIGCONT)
        else:
            one.ended_pytest = True


def check_rest(one: Round, temporary: Path) -> None:
    deadline = time.monotonic() + GRACE
    while (left := rest(temporary)) and time.monotonic() < deadline:
        time.sleep(0.1)
    one.wrong += left
    for process in family(temporary):
        process.kill()


def rest(temporary: Path) -> list[str]:
    processes = [f"process {process.pid} is left" for process in family(temporary)]
    return processes + [f"{path.name} is left in TMPDIR" for path in temporary.iterdir() if path.name.startswith("rl")]


def check_outcomes(one: Round, junit: Path, dies_at_import: bool) -> None:
    try:
        cases = list(ElementTree.parse(junit).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        one.wrong.append(f"no JUnit file: {error}")
        return
    names = {case.get("name", "") for case in cases}
    if "test_suite" in names:  # the process was killed while it imported the module, which has failed as a whole
        return
    missing = TESTS + dies_at_import - len(names)
    if missing > 0:
        one.wrong.append(f"{missing} outcomes are missing")
    for case in cases:
        name = case.get("name", "")
        failures = [*case.findall("failure"), *case.findall("error")]
        text = " ".join((failure.get("message") or "") + (failure.text or "") for failure in failures)
        if name in FAILING and not failures:
            one.wrong.append(f"{name} passed")
        elif name not in FAILING and failures and not any(word in text for word in SAYS_WHAT_HAPPENED):
            one.wrong.append(f"{name} failed without a reason: {text[:200]!r}")


def rounds(arguments: argparse.Namespace) -> list[Round]:
    chance = random.Random(arguments.seed)
    drawn = []
    for number in range(arguments.first + arguments.rounds):
        way, sent = chance.choice(sorted(WAYS)), signal.Signals(chance.choice(SIGNALS))
        drawn.append(Round(number, way, sent, chance.uniform(0.0, arguments.longest), chance.random()))
    return drawn[arguments.first :]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first round, to go on where a run ended")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="rounds at a time")
    parser.add_argument("--longest", type=float, default=5.0, help="latest moment of a signal, in seconds")
    arguments = parser.parse_args()
    results = Counter[str]()
    segments = {*os.listdir("/dev/shm")}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for one in pool.map(play, rounds(arguments)):
            results["wrong" if one.wrong else "right"] += 1
            results[one.victim.split(",")[0]] += 1
            how = f"{one.way}, {one.signal.name} at {one.moment:.2f} s, {one.victim}"
            print(f"round {one.number} ({how}): {'; '.join(one.wrong[:5]) or 'right'}", flush=True)
            if one.wrong:
                print(one.output[-2500:])
    left = [name for name in {*os.listdir("/dev/shm")} - segments if name.startswith("rl")]
    hit = ", ".join(f"{kind} {count}" for kind, count in sorted(results.items()) if kind not in ("right", "wrong"))
    print(
        f"{arguments.rounds} rounds, seed {arguments.seed}: {results['right']} right, {results['wrong']} wrong ({hit})"
    )
    print(f"segments left: {', '.join(left) or 'none'}")
    return 1 if results["wrong"] or left else 0


if __name__ == "__main__":
    sys.exit(main())
