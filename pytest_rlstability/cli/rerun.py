"""Run the failures of a run again, each alone with its own seed, settings and the tests that ran before it.

  rlstability rerun run.jsonl
  rlstability rerun run.jsonl --only CRASH
  rlstability rerun run.jsonl --list

RUN.jsonl is what pytest --rl-jsonl or rlstability run --jsonl wrote, such as the artifact of a CI job. Run it in the
directory that pytest was started in.

Exit status: 0 when nothing failed again, 1 when something did, 2 when the log cannot be read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlstability.model.shells import join_command, split_command
from pytest_rlstability.model.units import counted, escaped, format_duration
from pytest_rlstability.model.verdict import PLAIN_FAILURE, Word
from pytest_rlstability.osinfo.shell import own_shell

if TYPE_CHECKING:
    from pytest_rlstability.model.events import Finished


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("log", type=Path, metavar="RUN.jsonl", help="the event log of the run")
    add("--only", action="append", type=str.upper, choices=[*map(str, Word), PLAIN_FAILURE], metavar="WORD",
        help=f"only these failures: {', '.join(Word)} or {PLAIN_FAILURE}")  # fmt: skip
    add("--verbose", "-v", action="store_true", help="show what each run prints")
    add("--list", action="store_true", help="print the commands, and run nothing")


def run(arguments: argparse.Namespace) -> int:
    from pytest_rlstability.reports.log_reader import UnreadableLogError, read_runs

    try:
        runs = read_runs([arguments.log])
    except UnreadableLogError as error:
        print(f"rlstability rerun: {error}", file=sys.stderr)
        return 2
    tests = sorted((test for one in runs for test in one.tests.values()), key=lambda test: test.last.started_at)
    ended = [test.last.finished for test in tests]
    failed = [end for end in ended if end is not None and end.failed]
    wanted = [end for end in failed if not arguments.only or word_of(end) in arguments.only]
    if not wanted:
        others = f" ({counted(len(failed), 'other failure')} in it)" if failed else ""
        print(f"rlstability rerun: nothing to run again in {arguments.log}{others}")
        return 0
    try:
        again = [_rerun(end, number, len(wanted), arguments) for number, end in enumerate(wanted, 1)]
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if not arguments.list:
        print(f"rlstability rerun: {sum(again)} of {counted(len(again), 'failure')} came back")
    return int(any(again))


def word_of(end: Finished) -> str:
    return PLAIN_FAILURE if end.verdict is None else str(end.verdict.word)


def rerun_words(end: Finished, log: Path) -> list[str]:
    """The command that reproduces a failure, run by this interpreter, with a log of its own."""
    if not end.reproduce:
        seed = [] if end.seed is None else [f"--rl-seed={end.seed}"]
        return [sys.executable, "-m", "pytest", "--rl-stability", *seed, f"--rl-jsonl={log}", end.test]
    words = split_command(end.reproduce)
    if words[:2] == ["rlstability", "run"]:
        return [sys.executable, "-m", "pytest_rlstability", "run", f"--jsonl={log}", *words[2:]]
    start = 3 if words[1:3] == ["-m", "pytest"] else 1
    return [sys.executable, "-m", "pytest", f"--rl-jsonl={log}", *words[start:]]


def _rerun(end: Finished, number: int, total: int, arguments: argparse.Namespace) -> bool:
    """Run one failure again, and say how that ended; whether it failed."""
    from pytest_rlstability.diagnose.trials import PASSED, UNKNOWN, read_trial
    from pytest_rlstability.osinfo.helper_process import HelperProcess

    command = end.reproduce or join_command(_without_log(rerun_words(end, Path())), own_shell())
    if arguments.list:
        print(command)
        return False
    print(f"[{number}/{total}] {word_of(end)} {escaped(end.test)}\n      {escaped(command)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rlstability-rerun-") as directory:
        log, printed = Path(directory, "log.jsonl"), Path(directory, "output.txt")
        with open(printed, "wb") as output:
            to = None if arguments.verbose else output
            process = HelperProcess(rerun_words(end, log), stdout=to, stderr=to)
            try:
                process.wait()
            finally:
                process.end()
        trial = read_trial(log, 0.0, printed.read_text(errors="replace"))
    if trial.word == PASSED:
        print(f"      passed this time, after {format_duration(trial.seconds)}", flush=True)
        return False
    if trial.word == UNKNOWN:
        print(trial.output.rstrip())
        print("      did not run to an end", flush=True)
        return True
    same = end.verdict is not None and trial.signature == end.verdict.facts.get("signature")
    headline = "" if trial.verdict is None else f": {escaped(trial.verdict.headline)}"
    print(f"      {trial.word} again{headline}{' (the same signature)' if same else ''}", flush=True)
    return True


def _without_log(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith(("--rl-jsonl=", "--jsonl="))]
