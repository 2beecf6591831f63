"""Detection and false alarms of the leak check, beside psleak, memray's leak limit and RLlib's own check.

    python benchmarks/leaks.py                          every detector, every case, one seed
    python benchmarks/leaks.py --detectors ours --innocents --seeds 20
    python benchmarks/leaks.py --cases event_list spikes
    python benchmarks/leaks.py --detectors ours --half held --busy 2    the held-back half, beside two busy loops

Each case runs in a process of its own, one at a time. A leak that is found counts as caught, an innocent that is
called a leak as false; a first answer is right when it names the holder or the line that the corpus says. A case whose
library is not installed is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))

from leak_corpus import Case, load
from leak_corpus.detectors import DETECTORS

_TIMEOUT = 100


@dataclass(frozen=True)
class Run:
    """One case under one detector."""

    detector: str
    case: str
    seed: int
    found: bool
    answer: str
    seconds: float
    failure: str = ""


def run_here(detector: str, case: Case, seed: int, pad: float) -> Run:
    lap = case.make(Random(seed))
    if pad:
        unpadded = lap
        lap = lambda: (unpadded(), time.sleep(pad))  # noqa: E731
    began = time.perf_counter()
    found, answer = DETECTORS[detector](lap)
    return Run(detector, case.name, seed, found, answer, time.perf_counter() - began)


def run_apart(detector: str, case: Case, seed: int, pad: float) -> Run:
    """The same in a process of its own; one that crashes or hangs has found nothing, and says so."""
    command = [sys.executable, __file__, "--one", detector, case.name, str(seed), str(pad)]
    began = time.perf_counter()
    # a directory of its own, because SB3 leaves one in it for every learn(); psleak only runs on malloc
    with tempfile.TemporaryDirectory(prefix="leaks-", ignore_cleanup_errors=True) as directory:
        environment = os.environ | {"TMPDIR": directory}
        environment |= {"PYTHONMALLOC": "malloc"} if detector == "psleak" else {}
        out, errors = Path(directory, "out"), Path(directory, "errors")
        with out.open("w") as stdout, errors.open("w") as stderr:
            process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment, start_new_session=True)
        try:
            code = process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and the workers that the case left
        process.wait()
        line = next((line for line in out.read_text().splitlines() if line.startswith("RESULT ")), None)
        failure = f"not done after {_TIMEOUT} s" if code is None else f"exit {code}: {errors.read_text()[-300:]}"
    if line is None:
        return Run(detector, case.name, seed, False, "", time.perf_counter() - began, failure)
    return Run(**json.loads(line.removeprefix("RESULT ")))


def summary(runs: list[Run], cases: dict[str, Case]) -> list[str]:
    """A markdown table: one row per detector."""
    lines = [
        "| detector | leaks caught | innocents called a leak | undecided (leaks, innocents) "
        "| first answer right (Python) | seconds in all |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    runs = [run for run in runs if not skipped(run)]
    for detector in dict.fromkeys(run.detector for run in runs):
        own = [run for run in runs if run.detector == detector]
        leaks = [run for run in own if cases[run.case].leaks]
        innocents = [run for run in own if not cases[run.case].leaks]
        python = [run for run in leaks if cases[run.case].python]
        right = sum(cases[run.case].blame in run.answer for run in python)
        lines.append(
            f"| {detector} | {sum(run.found for run in leaks)} of {len(leaks)} "
            f"| {sum(run.found for run in innocents)} of {len(innocents)} "
            f"| {sum(map(undecided, leaks))}, {sum(map(undecided, innocents))} "
            f"| {right} of {len(python)} | {sum(run.seconds for run in own):.0f} |"
        )
    return lines


def skipped(run: Run) -> bool:
    return "ModuleNotFoundError" in run.failure


def undecided(run: Run) -> bool:
    return not run.found and "undecided" in run.answer


def wrong(run: Run, case: Case) -> str:
    """What is not as it should be about *run*, or nothing."""
    if run.failure:
        return run.failure
    if run.found != case.leaks:
        word = "undecided" if undecided(run) else "missed"
        return f"{word}: {run.answer[:300]}" if case.leaks else f"called a leak: {run.answer[:300]}"
    if undecided(run):
        return f"undecided: {run.answer[:300]}"
    if case.leaks and case.blame not in run.answer and run.detector == "ours":
        return f"answer lacks {case.blame!r}: {run.answer[:300]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=4, metavar=("DETECTOR", "CASE", "SEED", "PAD"), help=argparse.SUPPRESS)
    parser.add_argument("--detectors", nargs="+", choices=list(DETECTORS), default=list(DETECTORS))
    parser.add_argument("--cases", nargs="+")
    parser.add_argument("--leaks", action="store_true", help="only the leaks")
    parser.add_argument("--innocents", action="store_true", help="only the innocents")
    parser.add_argument("--half", choices=("old", "known", "held", "third-known", "third-held", "all"), default="all")
    parser.add_argument("--busy", type=int, default=0, help="so many busy loops beside the cases")
    parser.add_argument("--pad", type=float, default=0.0, help="each lap sleeps for so many seconds more")
    parser.add_argument("--jobs", type=int, default=1, help="so many cases at a time, for laps that mostly sleep")
    parser.add_argument("--for", dest="seconds", type=float, default=math.inf, help="stop after so many seconds")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--jsonl", type=Path, help="write every run there as it ends, and go on after those that are there"
    )
    arguments = parser.parse_args()
    cases = load(arguments.half)
    if arguments.one:
        detector, name, seed, pad = arguments.one
        run = run_here(detector, cases[name], int(seed), float(pad))
        print("RESULT " + json.dumps(asdict(run)), flush=True)
        return 0
    with contextlib.ExitStack() as loops:
        for _ in range(arguments.busy):
            loops.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        measure(arguments, cases)
    return 0


def measure(arguments: argparse.Namespace, cases: dict[str, Case]) -> None:
    chosen = [case for case in cases.values() if not arguments.cases or case.name in arguments.cases]
    chosen = [
        case for case in chosen if (case.leaks or not arguments.leaks) and not (case.leaks and arguments.innocents)
    ]
    runs: list[Run] = []
    if arguments.jsonl and arguments.jsonl.exists():
        runs = [Run(**json.loads(line)) for line in arguments.jsonl.read_text().splitlines()]
    done = {(run.detector, run.case, run.seed) for run in runs}
    stop = time.monotonic() + arguments.seconds
    asked = [
        (detector, case, seed)
        for case in chosen
        for seed in range(arguments.seeds)
        for detector in arguments.detectors
        if (detector, case.name, seed) not in done
    ]

    def one(ask: tuple[str, Case, int]) -> Run | None:
        return None if time.monotonic() > stop else run_apart(*ask, arguments.pad)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for run in filter(None, pool.map(one, asked)):
            runs.append(run)
            if arguments.jsonl:
                with arguments.jsonl.open("a") as file:
                    file.write(json.dumps(asdict(run)) + "\n")
            note = wrong(run, cases[run.case])
            line = f"{run.detector:<11} {run.case:<26} seed {run.seed:<3} {run.seconds:6.1f} s  {note}"
            print(line.rstrip(), flush=True)
    print(
        "\n".join(
            ["", f"{len(chosen)} cases, {arguments.seeds} seeds, {os.cpu_count()} cores", "", *summary(runs, cases)]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
