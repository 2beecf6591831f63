"""``--rl-jsonl``: the event log, one JSON object a line. Each line is flushed, so that the log of a killed run can be
read."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest

from pytest_rlstability.config.options import path_option
from pytest_rlstability.model.events import Event, Sample, to_line
from pytest_rlstability.model.thinning import SampleBudget
from pytest_rlstability.reports.files import FileReport, private_opener


class EventLog(FileReport):
    """Writes events to a file. A disk that is full or read-only is reported once, and the run goes on."""

    def __init__(self, path: Path, option: str = "--rl-jsonl", loss: str = "the event log is not complete") -> None:
        super().__init__(f"{option}={path}", loss)
        self._path = path
        self._budget = SampleBudget()
        with self._writing():
            self._file = self._open()

    def _open(self) -> IO[bytes]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return open(self._path, "wb", opener=private_opener)

    def handle(self, event: Event) -> None:
        if self.trouble or (isinstance(event, Sample) and not self._budget.admits(event)):
            return
        line = to_line(event).encode()
        if isinstance(event, Sample):
            self._budget.spend(len(line))
        with self._writing():
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        if not self.trouble:
            with self._writing():
                self._file.close()


def open_report(config: pytest.Config) -> EventLog | None:
    path = path_option(config, "rl_jsonl")
    return None if path is None else EventLog(path)
