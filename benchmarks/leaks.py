"""Detection and false alarms of the leak check, beside psleak, memray's leak limit and a regression on tracemalloc.

    python benchmarks/leaks.py                          every detector, every case, one seed
    python benchmarks/leaks.py --detectors ours --innocents --seeds 20
    python benchmarks/leaks.py --cases event_list spikes

Each case runs in a process of its own, one at a time. A leak that is found counts as caught, an innocent that is
accused as false; a first answer is right when it names the holder or the line that the corpus says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
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


def run_here(detector: str, case: Case, seed: int) -> Run:
    lap = case.make(Random(seed))
    began = time.perf_counter()
    found, answer = DETECTORS[detector](lap)
    return Run(detector, case.name, seed, found, answer, time.perf_counter() - began)


def run_apart(detector: str, case: Case, seed: int) -> Run:
    """The same in a process of its own; one that crashes or hangs has found nothing, and says so."""
    command = [sys.executable, __file__, "--one", detector, case.name, str(seed)]
    began = time.perf_counter()
    try:
        # a directory of its own, because SB3 leaves one in it for every learn(); psleak only runs on malloc
        with tempfile.TemporaryDirectory(prefix="leaks-") as directory:
            environment = os.environ | {"TMPDIR": directory}
            environment |= {"PYTHONMALLOC": "malloc"} if detector == "psleak" else {}
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, env=environment
            )
        line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
        failure = "" if line else f"exit {done.returncode}: {done.stderr.strip()[-200:]}"
    except subprocess.TimeoutExpired:
        line, failure = None, f"not done after {_TIMEOUT} s"
    if line is None:
        return Run(detector, case.name, seed, False, "", time.perf_counter() - began, failure)
    return Run(**json.loads(line.removeprefix("RESULT ")))


def summary(runs: list[Run], cases: dict[str, Case]) -> list[str]:
    """A markdown table: one row per detector."""
    lines = [
        "| detector | leaks caught | innocents called a leak | first answer right (Python) | seconds in all |",
        "| --- | --- | --- | --- | --- |",
    ]
    for detector in dict.fromkeys(run.detector for run in runs):
        own = [run for run in runs if run.detector == detector]
        leaks = [run for run in own if cases[run.case].leaks]
        innocents = [run for run in own if not cases[run.case].leaks]
        python = [run for run in leaks if cases[run.case].python]
        right = sum(cases[run.case].blame in run.answer for run in python)
        lines.append(
            f"| {detector} | {sum(run.found for run in leaks)} of {len(leaks)} "
            f"| {sum(run.found for run in innocents)} of {len(innocents)} "
            f"| {right} of {len(python)} | {sum(run.seconds for run in own):.0f} |"
        )
    return lines


def wrong(run: Run, case: Case) -> str:
    """What is not as it should be about *run*, or nothing."""
    if run.failure:
        return run.failure
    if run.found != case.leaks:
        return "missed" if case.leaks else f"accused: {run.answer[:300]}"
    if case.leaks and case.blame not in run.answer and run.detector == "ours":
        return f"answer lacks {case.blame!r}: {run.answer[:300]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=3, metavar=("DETECTOR", "CASE", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--detectors", nargs="+", choices=list(DETECTORS), default=list(DETECTORS))
    parser.add_argument("--cases", nargs="+")
    parser.add_argument("--leaks", action="store_true", help="only the leaks")
    parser.add_argument("--innocents", action="store_true", help="only the innocents")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--jsonl", type=Path, help="write every run there as it ends, and go on after those that are there"
    )
    arguments = parser.parse_args()
    cases = load()
    if arguments.one:
        detector, name, seed = arguments.one
        print("RESULT " + json.dumps(asdict(run_here(detector, cases[name], int(seed)))), flush=True)
        return 0
    chosen = [case for case in cases.values() if not arguments.cases or case.name in arguments.cases]
    chosen = [
        case for case in chosen if (case.leaks or not arguments.leaks) and not (case.leaks and arguments.innocents)
    ]
    runs: list[Run] = []
    if arguments.jsonl and arguments.jsonl.exists():
        runs = [Run(**json.loads(line)) for line in arguments.jsonl.read_text().splitlines()]
    done = {(run.detector, run.case, run.seed) for run in runs}
    for case in chosen:
        for seed in range(arguments.seeds):
            for detector in arguments.detectors:
                if (detector, case.name, seed) in done:
                    continue
                run = run_apart(detector, case, seed)
                runs.append(run)
                if arguments.jsonl:
                    with arguments.jsonl.open("a") as file:
                        file.write(json.dumps(asdict(run)) + "\n")
                note = wrong(run, case)
                print(
                    f"{detector:<11} {case.name:<26} seed {seed:<3} {run.seconds:6.1f} s  {note}".rstrip(), flush=True
                )
    print(
        "\n".join(
            ["", f"{len(chosen)} cases, {arguments.seeds} seeds, {os.cpu_count()} cores", "", *summary(runs, cases)]
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
