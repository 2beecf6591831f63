"""What isolation costs: ours, pytest-forked's, a bare fork, and plain pytest, all in one run.

    python benchmarks/overhead.py            # torch and stable-baselines3 must be installed for the second half
    python benchmarks/overhead.py --backends # only zygote, template and spawn, without peers
    python benchmarks/overhead.py --backend=spawn # as on Windows and macOS: sharing, and a process each, beside plain
    python benchmarks/overhead.py --flat     # 10,000 tests: memory, descriptors and threads of parent and zygote

The cost of a test is the slope between a short and a long run of empty tests, so that start-up does not count; every
figure is the median of interleaved rounds. pytest-forked needs pytest 8.4: it is installed into a directory of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHORT, LONG = 40, 240
FEW, MANY = 100, 1100
"""Of tests that share a process: they cost so little that start-up's noise would drown a shorter run."""
IMPORTS = {"bare": "", "torch+sb3": "import torch, stable_baselines3\n"}
TEST = "import pytest\n@pytest.mark.parametrize('number', range({count}))\ndef test_empty(number): pass\n"
THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
"""A reason not to fork pytest's process: tests are forked from the template."""
UNCHECKED = "import pytest\npytestmark = pytest.mark.rl_isolated(exit_check=False)\n"
FORK = """
import os, sys, time, gc
import _pytest.config, pytest
{imports}
config = _pytest.config.get_config()
gc.freeze()
for count in ({short}, {long}):
    began = time.perf_counter()
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    print(time.perf_counter() - began)
"""
FLAT_PLUGIN = """
import os, pathlib, psutil
import pytest

def sample(pid):
    process = psutil.Process(pid)
    return process.memory_info().rss, process.num_fds(), process.num_threads()

class Sampler:
    rows = []
    def pytest_runtest_logfinish(self, nodeid):
        self.count = getattr(self, "count", 0) + 1
        if self.count % 1000 == 0:
            me = psutil.Process()
            rows = [("pytest", me.pid)] + [("zygote", child.pid) for child in me.children()[:1]]
            shown = "  ".join(f"{name} {sample(pid)}" for name, pid in rows)
            print(f"\\n{self.count:6d} tests  {shown}", flush=True)

def pytest_configure(config):
    config.pluginmanager.register(Sampler())
"""


def seconds(command: list[str], environment: dict[str, str], directory: Path) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, cwd=directory, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.peers = directory / "peers"
        self.environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def install_peers(self) -> None:
        install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(self.peers)]
        subprocess.run([*install, "pytest==8.4.2", "pytest-forked"], check=True, stderr=subprocess.DEVNULL)

    def ways(self) -> dict[str, tuple[list[str], dict[str, str]]]:
        """How each contender runs a test file."""
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        ours = [*pytest, "-p", "pytest_timeout", "-p", "pytest_rlstability.plugin"]
        forked = {**self.environment, "PYTHONPATH": str(self.peers)}
        return {
            "plain": (pytest, self.environment),
            "ours": ([*ours, "--rl-stability", "--rl-group=test"], self.environment),
            "pytest-forked": ([*pytest, "-p", "pytest_forked", "--forked"], forked),
        }

    def measure(self, imports: str, rounds: int) -> dict[str, float]:
        """Milliseconds per empty test for each way, and for a bare fork and wait."""
        files = {}
        for count in (SHORT, LONG):
            files[count] = self.directory / f"test_{count}.py"
            files[count].write_text(imports + TEST.format(count=count))
        fork = self.directory / "fork.py"
        fork.write_text(FORK.format(imports=imports, short=SHORT, long=LONG))
        slopes: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, (command, environment) in self.ways().items():
                took = {count: seconds([*command, str(files[count])], environment, self.directory) for count in files}
                slopes.setdefault(name, []).append((took[LONG] - took[SHORT]) / (LONG - SHORT) * 1000)
            lines = subprocess.run([sys.executable, str(fork)], check=True, capture_output=True, text=True).stdout
            short, long = map(float, lines.split())
            slopes.setdefault("bare fork", []).append((long - short) / (LONG - SHORT) * 1000)
        return {name: statistics.median(values) for name, values in slopes.items()}

    def measure_group(self, imports: str, rounds: int, *options: str) -> tuple[float, float]:
        """Milliseconds of an empty test in plain pytest, and what *options* add to it; they make tests share."""
        plain, environment = self.ways()["plain"]
        group = [*self.ways()["ours"][0], *options]
        files = {count: self.directory / f"test_group_{count}.py" for count in (FEW, MANY)}
        for count, file in files.items():
            file.write_text(imports + TEST.format(count=count))
        slopes: dict[str, list[float]] = {"plain": [], "group": []}
        for _ in range(rounds):
            for name, command in (("plain", plain), ("group", group)):
                took = {count: seconds([*command, str(files[count])], environment, self.directory) for count in files}
                slopes[name].append((took[MANY] - took[FEW]) / (MANY - FEW) * 1000)
        in_plain = statistics.median(slopes["plain"])
        return in_plain, statistics.median(slopes["group"]) - in_plain

    def per_test(self, backend: str, source: str, rounds: int, counts: tuple[int, int] = (2, 8)) -> float:
        """Seconds per test of *source* with ``--rl-backend=backend``, each test in a process of its own."""
        command, environment = self.ways()["ours"]
        files = {count: self.directory / f"test_{backend}_{count}.py" for count in counts}
        for count, file in files.items():
            file.write_text(source + TEST.format(count=count))
        slopes = []
        for _ in range(rounds):
            options = [*command, f"--rl-backend={backend}"]
            took = [seconds([*options, str(files[count])], environment, self.directory) for count in counts]
            slopes.append((took[1] - took[0]) / (counts[1] - counts[0]))
        return statistics.median(slopes)

    def measure_interpreter(self, imports: str, rounds: int) -> float:
        """Seconds of an interpreter that imports what a spawned test's does."""
        program = f"import pytest, psutil, pytest_timeout, pytest_rlstability.child.runner\n{imports}"
        command = [sys.executable, "-c", program]
        return statistics.median(seconds(command, self.environment, self.directory) for _ in range(rounds))


def compare_backends(bench: Bench, imports: str, rounds: int) -> dict[str, bool]:
    """Print what a test costs with each backend, and what the end of its process is of that."""
    floor = bench.measure_interpreter(imports, rounds)
    spawn = bench.per_test("spawn", imports, rounds)
    template = bench.per_test("auto", imports + THREAD, rounds, (SHORT // 4, SHORT))
    zygote = bench.per_test("zygote", imports, rounds, (SHORT, LONG))
    unchecked = bench.per_test("zygote", imports + UNCHECKED, rounds, (SHORT, LONG))
    print(f"  seconds per test: zygote {zygote:.4f} (exit unchecked {unchecked:.4f}), template {template:.4f}")
    return {
        f"spawn {spawn:.3f} s per test / bare interpreter {floor:.3f} s = {spawn / floor:.2f} (<= 1.2)": (
            spawn / floor <= 1.2
        ),
        f"template / spawn = {template / spawn:.2f} (<= 0.8)": template / spawn <= 0.8,
    }


def compare_spawn(bench: Bench, rounds: int) -> bool:
    """Print what tests cost without a fork: those that share a process, which is the default, and those with one each,
    whose interpreter is prepared while the test before runs."""
    good = True
    for name, imports in IMPORTS.items():
        plain, shared = bench.measure_group(imports, rounds, "--rl-backend=spawn", "--rl-group=auto")
        own, floor = bench.per_test("spawn", imports, rounds), bench.measure_interpreter(imports, rounds)
        print(f"{name}: plain pytest {plain:.2f} ms per empty test")
        checks = {f"sharing adds {shared:.2f} ms (<= 0.5)": shared <= 0.5}
        checks[f"own process {own:.3f} s / bare interpreter {floor:.3f} s = {own / floor:.2f} (<= 1.2)"] = (
            own / floor <= 1.2
        )
        good &= show(checks)
    return good


def compare_all_backends(bench: Bench, rounds: int) -> bool:
    good = True
    for name, imports in IMPORTS.items():
        print(name)
        good &= show(compare_backends(bench, imports, rounds))
    return good


def compare(bench: Bench, rounds: int) -> bool:
    good = True
    for name, imports in IMPORTS.items():
        cost = bench.measure(imports, rounds)
        added = {way: value - cost["plain"] for way, value in cost.items()}
        ours, forked, bare = added["ours"], added["pytest-forked"], cost["bare fork"]
        _, group = bench.measure_group(imports, rounds, "--rl-group=module")
        limit = 0.8 if name == "bare" else 0.75
        print(
            f"{name}: ms added per empty test: ours {ours:.2f}, pytest-forked {forked:.2f}, bare fork+wait {bare:.2f}"
        )
        checks = {
            f"ours / pytest-forked = {ours / forked:.2f} (<= {limit})": ours / forked <= limit,
            f"--rl-group=module {group:.2f} ms (<= 0.5)": group <= 0.5,
        }
        if name != "bare":
            checks[f"ours / bare fork = {ours / bare:.2f} (<= 2)"] = ours / bare <= 2
        good &= show({**checks, **compare_backends(bench, imports, rounds)})
    return good


def show(checks: dict[str, bool]) -> bool:
    for text, held in checks.items():
        print(f"  {'ok  ' if held else 'MISS'} {text}", flush=True)
    return all(checks.values())


def flat(directory: Path) -> None:
    """Resident bytes, descriptors and threads as tests go by; pytest itself keeps every report, so it comes first."""
    (directory / "flat_plugin.py").write_text(FLAT_PLUGIN)
    (directory / "test_many.py").write_text(TEST.format(count=10_000))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "-p",
        "flat_plugin",
        "test_many.py",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(directory), os.getenv("PYTHONPATH"))))}
    for name, options in (("plain pytest", []), ("--rl-stability", ["--rl-stability", "--rl-group=test"])):
        ran = subprocess.run(
            [*command, *options, "test_many.py"], cwd=directory, env=environment, capture_output=True, text=True
        )
        print(name)
        print("\n".join(line for line in ran.stdout.splitlines() if "tests  pytest" in line or "passed" in line))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flat", action="store_true")
    parser.add_argument("--backends", action="store_true")
    parser.add_argument("--backend", choices=["spawn"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if arguments.flat:
            flat(Path(name))
            return 0
        bench = Bench(Path(name))
        if arguments.backend:
            return 0 if compare_spawn(bench, arguments.rounds) else 1
        if arguments.backends:
            return 0 if compare_all_backends(bench, arguments.rounds) else 1
        bench.install_peers()
        return 0 if compare(bench, arguments.rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
