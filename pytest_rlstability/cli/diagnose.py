"""Find out why a test or command dies: repeat it, change one condition at a time, and run memory checkers.

  rlstability diagnose tests/test_env.py::test_step
  rlstability diagnose --for 10min -- python train.py --steps 1000
  rlstability diagnose --json tests/test_env.py::test_step > why.json

It says how often it dies, which condition (threads, start method, garbage collection, SIMD, seed, ...) makes it go away
or come more often, with counts and p-values, and which function damages memory. Ctrl-C shows what is known.

Exit status: 0 when it passed in every run, 1 when it failed or damages memory, 2 when it could not be run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlstability.cli.arguments import duration
from pytest_rlstability.cli.run import command_words
from pytest_rlstability.model.units import escaped

if TYPE_CHECKING:
    from pytest_rlstability.diagnose.diagnosis import Diagnosis


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rlstability diagnose [options] TEST_ID | rlstability diagnose [options] -- COMMAND [ARGUMENT ...]"
    add = parser.add_argument
    add("--for", dest="budget", type=duration, default=600.0, metavar="10min",
        help="the time it may take (default: 10min)")  # fmt: skip
    add("--seed", type=int, metavar="N", help="the seed that it failed with")
    add("--python", action="append", default=[], metavar="PATH", help="another interpreter to try")
    add("--factors", type=lambda text: [name.strip() for name in text.split(",")], metavar="NAME,...",
        help="only these conditions, by the names of the table; none: only repeats and memory checkers")  # fmt: skip
    add("--json", action="store_true", help="one JSON object instead of text")
    add("--jsonl", type=Path, metavar="PATH", help="write an event log with the diagnosis")
    add("-o", "--html", type=Path, metavar="PATH", help="write a page with the diagnosis")
    add("words", nargs=argparse.REMAINDER, metavar="TEST_ID | -- COMMAND", help="what to diagnose")


def run(arguments: argparse.Namespace) -> int:
    from pytest_rlstability.diagnose import report
    from pytest_rlstability.diagnose.diagnosis import Diagnoser
    from pytest_rlstability.diagnose.trials import CommandSubject, Subject, TestSubject

    words = command_words(arguments.words)
    is_test = arguments.words[:1] != ["--"]
    if not words:
        return _fail("give a test id, or a command after --")
    if is_test and len(words) > 1 and not all(word.startswith("-") for word in words[1:]):
        return _fail(f"one test at a time: {' '.join(words)!r}; a command goes after --")
    seed = arguments.seed
    subject: Subject = TestSubject(words[0], seed, words[1:]) if is_test else CommandSubject(words, seed)
    diagnosis = Diagnoser(
        subject,
        is_test=is_test,
        seeded=arguments.seed is not None,
        budget=arguments.budget,
        say=_say,
        pythons=arguments.python,
        factors=arguments.factors,
    ).diagnose()
    _clear()
    lines = [json.dumps(report.as_json(diagnosis), indent=2)] if arguments.json else report.text_lines(diagnosis)
    print(*lines, sep="\n", flush=True)
    _write_reports(arguments, diagnosis)
    if diagnosis.trouble:
        return 2
    failed = diagnosis.example is not None or diagnosis.checked.culprit is not None
    return 130 if diagnosis.interrupted else int(failed)


def _write_reports(arguments: argparse.Namespace, diagnosis: Diagnosis) -> None:
    """The failure that was diagnosed as an event log and a page, with the diagnosis as a section of its own."""
    from pytest_rlstability.diagnose.report import with_diagnosis
    from pytest_rlstability.model.events import Finished, Outcome, Session, Started
    from pytest_rlstability.osinfo.machine import platform_line, versions_line
    from pytest_rlstability.reports.html import HtmlReport
    from pytest_rlstability.reports.jsonl import EventLog

    verdict = diagnosis.example.verdict if diagnosis.example else None
    shown = None if verdict is None else with_diagnosis(verdict, diagnosis)
    outcome = Outcome.PASSED if diagnosis.example is None else Outcome.FAILED
    text = "" if shown is not None else "\n".join(diagnosis.checkers)
    events = [
        Session(
            root=str(Path.cwd()),
            platform=platform_line(),
            versions=versions_line(),
            seed=arguments.seed,
            arguments=sys.argv[1:],
        ),
        Started(test=diagnosis.subject, backend="diagnose", seed=arguments.seed),
        Finished(test=diagnosis.subject, outcome=outcome, duration=diagnosis.seconds, verdict=shown, report=text),
    ]
    wanted = [(EventLog, arguments.jsonl, "--jsonl"), (HtmlReport, arguments.html, "--html")]
    for kind, path, option in wanted:
        if path is not None:
            log = kind(path, option)
            for event in events:
                log.handle(event)
            log.close()
            if log.trouble:
                print(f"rlstability diagnose: {log.trouble}", file=sys.stderr)


_width = [0]


def _say(text: str) -> None:
    """Progress: one line that is rewritten at a terminal, a line each elsewhere."""
    if sys.stderr.isatty():
        line = escaped(text)[:100]
        print(f"\r{line:<{_width[0]}}", end="", file=sys.stderr, flush=True)
        _width[0] = len(line)
    else:
        print(f"rlstability diagnose: {escaped(text)}", file=sys.stderr, flush=True)


def _clear() -> None:
    if sys.stderr.isatty():
        print(f"\r{'':<{_width[0]}}\r", end="", file=sys.stderr, flush=True)


def _fail(text: str) -> int:
    print(f"rlstability diagnose: {text}", file=sys.stderr)
    return 2
