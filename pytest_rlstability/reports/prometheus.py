"""``--rl-prometheus=PATH``: the run's metrics in a file for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_rlstability.config.options import path_option
from pytest_rlstability.model.events import Event, Started
from pytest_rlstability.reports.exposition import FindFamily, kit_families, registry_of, require_library
from pytest_rlstability.reports.files import FileReport
from pytest_rlstability.reports.run_state import RunState

REFRESH_SECONDS = 15.0


class TextFile(FileReport):
    """Rewrites the metrics every few seconds: to another file first, which then replaces the old one.

    A failed write is repeated the next time; only the last failure is reported.
    """

    def __init__(
        self,
        path: Path,
        find_family: FindFamily = lambda name: None,
        *,
        option: str = "--rl-prometheus",
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        super().__init__(f"{option}={path}", "the metrics are not written")
        self._path = path
        self._refresh_seconds = refresh_seconds
        self._state = RunState()
        self._registry = registry_of(self._state, find_family)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="rl-prometheus", daemon=True)
        self._write()

    def handle(self, event: Event) -> None:
        self._state.handle(event)
        if isinstance(event, Started) and self._thread.ident is None:
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

        with self._writing():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_to_textfile(str(self._path), self._registry)


def open_report(config: pytest.Config) -> TextFile | None:
    path = path_option(config, "rl_prometheus")
    if path is None:
        return None
    require_library("--rl-prometheus")
    return TextFile(path, kit_families(config))
