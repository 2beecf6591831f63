"""What in this machine crashes RL code: each step in a process of its own, facts, and known-bad combinations.

Exit code 0: every step works or is not installed, 1: one crashed, hung or raised, 2: wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from pytest_rlstability.units import DURATION_FORM, parse_duration

if TYPE_CHECKING:
    from pytest_rlstability.doctor.examination import Examination, StepReport

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from pytest_rlstability.doctor.probes import GROUPS

    parser.add_argument(
        "--run", dest="stages", nargs="+", action="extend", default=[], type=_target, metavar="MODULE:CALLABLE",
        help="run these stages of yours instead, each alone in a fresh process; a callable may ask for rl_stage, or "
        "yield the names of its stages",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], choices=GROUPS, metavar="GROUP",
        help=f"run only these groups of steps: {', '.join(GROUPS)}",
    )  # fmt: skip
    parser.add_argument(
        "--step-limit", type=_limit, default=120.0, metavar="120s", help="time one step may take (default: 120s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def _target(value: str) -> str:
    if value.partition(":")[0].endswith(".py"):
        raise argparse.ArgumentTypeError(f"{value!r}: write the module's name, without .py")
    if _TARGET.fullmatch(value) is None:
        raise argparse.ArgumentTypeError(f"{value!r} is not MODULE:CALLABLE, such as training.setup:make_env")
    return value


def _limit(value: str) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{value!r} is not {DURATION_FORM}")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    _leave_tidily_on_sigterm()
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments)
    except BrokenPipeError:
        # Whoever read this has seen enough; Python must not complain of it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _leave_tidily_on_sigterm() -> None:
    def leave(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def _run(arguments: argparse.Namespace) -> int:
    from pytest_rlstability.doctor import report
    from pytest_rlstability.doctor.examination import examine
    from pytest_rlstability.doctor.probes import GROUPS

    groups = arguments.only or (() if arguments.stages else GROUPS)
    if arguments.json:
        examination = examine(groups, arguments.stages, limit=arguments.step_limit)
        print(report.as_json(examination))
        return 1 if examination.failed else 0
    print("machine", flush=True)
    examination = examine(
        groups,
        arguments.stages,
        limit=arguments.step_limit,
        on_facts=lambda facts: _show(report.facts_lines(facts)),
        on_step=_Table().show,
    )
    _show_rest(examination)
    return 1 if examination.failed else 0


class _Table:
    """The steps as they end, a title before each group."""

    def __init__(self) -> None:
        self._group = ""

    def show(self, step: StepReport) -> None:
        from pytest_rlstability.doctor import report

        if step.group != self._group:
            self._group = step.group
            print(f"\n{step.group.replace('-', ' ')}")
        _show(report.step_lines(step))


def _show_rest(examination: Examination) -> None:
    from pytest_rlstability.doctor import report

    for title, lines in (
        ("found", list(report.found_lines(examination.facts))),
        ("failures", [line for step in examination.failed for line in report.detail_lines(step)]),
        ("advice", list(report.advice_lines(examination.advice))),
    ):
        if lines:
            print(f"\n{title}")
            _show(lines)
    print(f"\n{report.summary(examination)}")


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
    if sys.stdout is not None:
        sys.stdout.flush()
