"""Find out what crashes RL code on this machine: try each step in a fresh process, and list known-bad combinations.

  rlstability doctor
  rlstability doctor --run my_game.env:make_env

Exit code 0: every step works or is not installed, 1: one crashed, hung or raised, 2: wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_rlstability.cli.status_line import Estimate, StatusLine
from pytest_rlstability.model.units import DURATION_FORM, parse_duration

if TYPE_CHECKING:
    from pytest_rlstability.doctor.examination import StepReport

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run", dest="stages", nargs="+", action="extend", default=[], type=target, metavar="MODULE:CALLABLE",
        help="run these stages of yours instead, each alone in a fresh process; a callable may ask for rl_stage, or "
        "yield the names of its stages",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], metavar="GROUP",
        help="run only these groups of steps, such as imports or tensors",
    )  # fmt: skip
    parser.add_argument(
        "--step-limit", type=duration, default=120.0, metavar="120s", help="time one step may take (default: 120s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def target(value: str) -> str:
    if value.partition(":")[0].endswith(".py"):
        raise argparse.ArgumentTypeError(f"{value!r}: write the module's name, without .py")
    if _TARGET.fullmatch(value) is None:
        raise argparse.ArgumentTypeError(f"{value!r} is not MODULE:CALLABLE, such as training.setup:make_env")
    return value


def duration(value: str) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{value!r} is not {DURATION_FORM}")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    # Leave by an exception, so that running steps are ended and temporary files removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with tempfile.TemporaryDirectory(prefix="rlstability-doctor-", ignore_cleanup_errors=True) as scratch:
            return _examine(arguments, scratch)
    except BrokenPipeError:
        # stdout was closed; Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _examine(arguments: argparse.Namespace, scratch: str) -> int:
    """Run the steps. The text is printed as they end, JSON when all have ended."""
    from pytest_rlstability.doctor import report
    from pytest_rlstability.doctor.examination import Examiner

    only_stages = bool(arguments.stages and not arguments.only)
    examiner = Examiner(scratch, arguments.step_limit, plugins=not only_stages)
    for group in arguments.only:
        if group not in examiner.groups:
            complaint = f"argument --only: invalid choice: {group!r} (choose from {', '.join(examiner.groups)})"
            print(f"rlstability doctor: error: {complaint}", file=sys.stderr)
            return 2
    wanted = arguments.only or (() if only_stages else examiner.groups)
    groups = [group for group in examiner.groups if group in wanted]
    status, estimate = StatusLine(), Estimate(examiner.expected_steps(groups) + len(arguments.stages))
    reports = _counted(examiner.run(groups, arguments.stages), status, estimate)
    if arguments.json:
        list(reports)
        print(report.as_json(examiner.found))
    else:
        for line in report.text_lines(examiner, reports):
            print(line, flush=True)
    return 1 if examiner.found.failed else 0


def _counted(reports: Iterator[StepReport], status: StatusLine, estimate: Estimate) -> Iterator[StepReport]:
    """*reports*, and a line about how far they are while the next one is awaited."""
    while True:
        status.show(str(estimate))
        try:
            step = next(reports, None)
        finally:
            status.clear()
        if step is None:
            return
        estimate.step_done()
        yield step
