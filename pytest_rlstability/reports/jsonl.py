"""``--rl-jsonl``: the event log, one JSON object a line. Each line is flushed, so that the log of a killed run can be
read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_rlstability.config.options import path_option
from pytest_rlstability.model.events import Event, Sample, to_line
from pytest_rlstability.model.thinning import SampleBudget


class EventLog:
    """Writes events to a file. A disk that is full or read-only is reported once, and the run goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trouble = ""
        self._budget = SampleBudget()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (open for the whole run)
        except OSError as error:
            self._give_up(error)

    def handle(self, event: Event) -> None:
        if self.trouble or (isinstance(event, Sample) and not self._budget.admits(event)):
            return
        line = to_line(event)
        if isinstance(event, Sample):
            self._budget.spend(len(line))
        try:
            self._file.write(line)
            self._file.flush()
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


def open_report(config: pytest.Config) -> EventLog | None:
    path = path_option(config, "rl_jsonl")
    return None if path is None else EventLog(path)
