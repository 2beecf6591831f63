"""The event log: one JSON object a line, flushed, so that a run killed half-way can still be read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.isolation.wire import printable
from pytest_rlstability.reports.registry import path_option
from pytest_rlstability.soak.thinning import SampleBudget

_SYNC_INTERVAL = 30.0
"""Seconds of events that a power cut may cost; a run that is killed loses none."""


def to_line(event: Mapping[str, Any]) -> str:
    """*event* as a line of the log; a value that JSON does not know becomes text."""
    return json.dumps(event, default=printable) + "\n"


class EventLog:
    """Writes events to a file. A disk that is full or read-only is told once and does not disturb the run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trouble = ""
        self._synced_at = time.monotonic()
        self._budget = SampleBudget()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (open for the whole run)
        except OSError as error:
            self._give_up(error)

    def hear(self, event: Mapping[str, Any]) -> None:
        is_sample = event["event"] == "sample"
        if self.trouble or (is_sample and not self._budget.admits(event)):
            return
        line = to_line(event)
        if is_sample:
            self._budget.spend(len(line))
        try:
            self._file.write(line)
            self._file.flush()
            if time.monotonic() - self._synced_at > _SYNC_INTERVAL:
                self._synced_at = time.monotonic()
                os.fsync(self._file.fileno())
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if not self.trouble:
            try:
                self._file.close()
            except OSError as error:
                self._give_up(error)

    def lines(self) -> Sequence[str]:
        return ()

    def _give_up(self, error: OSError) -> None:
        self.trouble = f"--rl-jsonl={self._path}: {error.strerror or error}; the event log is not complete"


def add_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    group.addoption("--rl-jsonl", metavar="PATH", default=None, help="write an event log, one JSON object a line")


def open_report(config: pytest.Config) -> EventLog | None:
    path = path_option(config, "rl_jsonl")
    return None if path is None else EventLog(Path(path))
