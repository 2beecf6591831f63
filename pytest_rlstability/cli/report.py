"""Make a page with charts, or a JUnit file, from the event log of one run, or the logs of several.

  rlstability report run.jsonl -o run.html
  rlstability report linux.jsonl mac.jsonl -o both.html
  rlstability report run.jsonl --junit run.xml

Exit code 0: written, 2: a log cannot be read, a file cannot be written, or the charts' library is missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_rlstability.model.units import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", type=Path, nargs="+", metavar="RUN.jsonl", help="what pytest --rl-jsonl wrote")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.html", help="the page to write")
    parser.add_argument("--junit", type=Path, metavar="OUT.xml", help="write the JUnit file of a run that was killed")


def run(arguments: argparse.Namespace) -> int:
    from pytest_rlstability.reports.junit import write_junit
    from pytest_rlstability.reports.log_reader import UnreadableLogError, read_runs
    from pytest_rlstability.reports.page_file import INSTALL_LINE, has_charts, write_page

    wanted = {path: write for path, write in ((arguments.junit, write_junit), (arguments.output, write_page)) if path}
    if not wanted:
        return _fail("rlstability report: give -o OUT.html, --junit OUT.xml, or both")
    if arguments.output and not has_charts():
        return _fail(f"rlstability report needs plotly for its charts: {INSTALL_LINE}")
    try:
        runs = read_runs(arguments.logs)
    except UnreadableLogError as error:
        return _fail(str(error))
    for damaged in (run for run in runs if run.damaged):
        print(f"{damaged.source}: {counted(damaged.damaged, 'damaged line')} left out", file=sys.stderr)
    tests = counted(sum(len(run.tests) for run in runs), "test")
    for path, write in wanted.items():
        try:
            write(path, runs)
        except OSError as error:
            return _fail(f"cannot write {path}: {error.strerror or error}")
        print(f"report written to {path} ({tests})")
    return 0


def _fail(text: str) -> int:
    print(text, file=sys.stderr)
    return 2
