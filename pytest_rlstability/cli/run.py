"""Run a training script under watch: crashes and standstills are reported with stacks, memory is recorded.

  rlstability run -- python train.py --steps 1000000
  rlstability run --stall-after 5min --memory 8GiB -- python -m my_package.train
  rlstability run --jsonl run.jsonl --html run.html -- python train.py

The script says where it is by a small import that does nothing when nobody watches:

  from pytest_rlstability import heartbeat, probe, stage

Exit status: the script's own (128 and the signal's number if one killed it), 70 when the script was ended because it
stood still or went over a limit, 127 when the command cannot be started.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_rlstability.cli.arguments import duration, size
from pytest_rlstability.model.events import Event, Judged, Slow
from pytest_rlstability.model.levels import CRITICAL
from pytest_rlstability.model.units import escaped

if TYPE_CHECKING:
    from pytest_rlstability.session.event_bus import Report

ENDED = 70
CANNOT_START = 127
STALL_AFTER = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rlstability run [options] -- COMMAND [ARGUMENT ...]"
    add = parser.add_argument
    add("--stall-after", type=duration, default=STALL_AFTER, metavar="10min",
        help="end a script that makes no progress for so long; 0: never (default: 10min)")  # fmt: skip
    add("--limit", type=duration, default=0.0, metavar="8h", help="end a script that runs longer")
    add("--memory", type=size, default=0, metavar="8GiB", help="end a script that uses more, workers included")
    add("--seed", type=int, metavar="N", help="seed random, numpy and the hashes of the script's Python processes")
    add("--native", choices=("auto", "off"), default="auto", help="native stack of a crashed process")
    add("--on-critical", metavar="COMMAND",
        help="shell command to run when a probe reaches its critical level; $RL_PROBE is its name")  # fmt: skip
    add("--jsonl", type=Path, metavar="PATH", help="write an event log, one JSON object a line")
    add("-o", "--html", type=Path, metavar="PATH", help="write a page with charts, in one file")
    add("--prometheus", type=Path, metavar="PATH", help="write metrics for Prometheus' textfile collector")
    add("--metrics-port", type=int, metavar="N", help="serve live metrics at http://127.0.0.1:N/metrics")
    add("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run")


def run(arguments: argparse.Namespace) -> int:
    from pytest_rlstability.script.command import CannotStartError
    from pytest_rlstability.script.summary import summary
    from pytest_rlstability.script.watch import ScriptWatch, WatchSettings

    words = command_words(arguments.words)
    if not words:
        return _fail("give the command to run after --, such as: rlstability run -- python train.py", 2)
    try:
        reports = list(_open_reports(arguments))
    except pytest.UsageError as error:
        return _fail(str(error), 2)

    def emit(event: Event) -> None:
        if isinstance(event, Slow):
            print(f"rlstability run: SLOW: {escaped(event.text)}", file=sys.stderr, flush=True)
            return
        for report in reports:
            report.handle(event)

    settings = WatchSettings(
        arguments.stall_after, arguments.limit, arguments.memory, arguments.native, arguments.seed
    )  # fmt: skip
    try:
        on_level = partial(_show_level, command=arguments.on_critical)
        watched = ScriptWatch(settings, emit, _reproduce(arguments), on_level).watch(words)
    except CannotStartError as error:
        return _fail(str(error), CANNOT_START)
    finally:
        for report in reports:
            report.close()
    _print(summary(watched))
    for report in reports:
        for line in [report.trouble] if report.trouble else report.lines():
            _print(f"rlstability run: {line}\n")
    return ENDED if watched.ended_by_us else watched.status


def command_words(words: Sequence[str]) -> list[str]:
    """The command without the ``--`` before it."""
    return list(words[1:] if words[:1] == ["--"] else words)


def _open_reports(arguments: argparse.Namespace) -> Iterator[Report]:
    """The reports that were asked for. Raises ``pytest.UsageError`` where a library is missing."""
    from pytest_rlstability.reports.exposition import require_library

    if arguments.jsonl:
        from pytest_rlstability.reports.jsonl import EventLog

        yield EventLog(arguments.jsonl, "--jsonl")
    if arguments.html:
        from pytest_rlstability.reports.html import HtmlReport, require_charts

        require_charts("--html")
        yield HtmlReport(arguments.html, "--html")
    if arguments.prometheus:
        from pytest_rlstability.reports.prometheus import TextFile

        require_library("--prometheus")
        yield TextFile(arguments.prometheus, option="--prometheus")
    if arguments.metrics_port is not None:
        from pytest_rlstability.reports.metrics_port import MetricsPort

        require_library("--metrics-port")
        port = MetricsPort(arguments.metrics_port, option="--metrics-port")
        if not port.trouble:
            _print(f"rlstability run: live metrics at {port.address}\n")
        yield port


def _show_level(judged: Judged, command: str | None) -> None:
    """Print the crossing of a level, and run the user's command at the critical one. Nobody waits for its end."""
    _print(f"rlstability run: {judged.state}: {escaped(judged.reason)}\n")
    if command and judged.state == CRITICAL:
        variables = {**os.environ, "RL_PROBE": judged.signal, "RL_REASON": judged.reason}
        subprocess.Popen(command, shell=True, env=variables, stdin=subprocess.DEVNULL, start_new_session=True)


def _reproduce(arguments: argparse.Namespace) -> list[str]:
    """The options that change how the script runs or what ends it."""
    given = {
        "--seed": arguments.seed,
        "--stall-after": None if arguments.stall_after == STALL_AFTER else f"{arguments.stall_after:g}s",
        "--limit": f"{arguments.limit:g}s" if arguments.limit else None,
        "--memory": arguments.memory or None,
    }
    return ["rlstability", "run", *(f"{option}={value}" for option, value in given.items() if value is not None)]


def _print(text: str) -> None:
    """To standard error: standard output is the script's."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _fail(text: str, code: int) -> int:
    _print(f"rlstability run: {text}\n")
    return code
