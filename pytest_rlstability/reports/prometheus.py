"""``--rl-prometheus=PATH``: the run's metrics in a file for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.reports.registry import path_option

REFRESH_SECONDS = 15.0


class TextFile:
    """Writes the metrics anew every few seconds: another file first, then in the place of the old one.

    A file that cannot be written is tried again the next time; only the last try is told as trouble.
    """

    def __init__(self, path: Path, refresh_seconds: float = REFRESH_SECONDS) -> None:
        from pytest_rlstability.reports.exposition import registry_of
        from pytest_rlstability.reports.run_state import RunState

        self.trouble = ""
        self._path = path
        self._refresh_seconds = refresh_seconds
        self._state = RunState()
        self._registry = registry_of(self._state)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="rl-prometheus", daemon=True)
        self._write()

    def hear(self, event: Mapping[str, Any]) -> None:
        self._state.hear(event)
        if event["event"] == "started" and self._thread.ident is None:
            # Not before the first test: processes are forked until then, and none must be forked beside a thread.
            self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._state.end()
        self._write()

    def lines(self) -> Sequence[str]:
        return () if self.trouble else (f"metrics in {self._path}",)

    def _refresh(self) -> None:
        while not self._over.wait(self._refresh_seconds):
            self._write()

    def _write(self) -> None:
        from prometheus_client import write_to_textfile

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_to_textfile(str(self._path), self._registry)
            self.trouble = ""
        except OSError as error:
            self.trouble = f"--rl-prometheus={self._path}: {error.strerror or error}; the metrics are not written"


def add_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    text = f"write metrics for Prometheus' textfile collector, every {REFRESH_SECONDS:.0f} s and at the end"
    group.addoption("--rl-prometheus", metavar="PATH", default=None, help=text)


def open_report(config: pytest.Config) -> TextFile | None:
    path = path_option(config, "rl_prometheus")
    if path is None:
        return None
    from pytest_rlstability.reports.exposition import require_library

    require_library("--rl-prometheus")
    return TextFile(Path(path))
