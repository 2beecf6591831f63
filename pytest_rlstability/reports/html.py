"""``--rl-html``: a page with charts at the end of the run. Until then its events are in an unnamed temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_rlstability.config.options import path_option
from pytest_rlstability.model.events import Event, to_line
from pytest_rlstability.reports import page_file
from pytest_rlstability.reports.log_reader import read_log


class HtmlReport:
    """Keeps the events of a run and makes its page when it is over."""

    def __init__(self, path: Path, given: str) -> None:
        self._path = path
        self._given = given
        self._written = False
        self.trouble = ""
        try:
            # Unnamed: nothing is left behind, however this process ends.
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115 (open for the whole run)
        except OSError as error:
            self._give_up(error)

    def handle(self, event: Event) -> None:
        if self.trouble:
            return
        try:
            self._spool.write(to_line(event).encode())
            self._spool.flush()  # a test forked from this process must not hold half of it in its own buffer
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self.trouble:
            return
        try:
            self._spool.seek(0)
            page_file.write_page(self._path, read_log(self._spool, "this run"))
            self._written = True
        except OSError as error:
            self._give_up(error)
        finally:
            self._spool.close()

    def lines(self) -> Sequence[str]:
        return [f"report written to {self._given}"] if self._written else []

    def _give_up(self, error: OSError) -> None:
        self.trouble = f"--rl-html={self._given}: {error.strerror or error}; no report was written"


def open_report(config: pytest.Config) -> HtmlReport | None:
    path = path_option(config, "rl_html")
    if path is None:
        return None
    if not page_file.has_charts():
        raise pytest.UsageError(f"--rl-html needs plotly for its charts: {page_file.INSTALL_LINE}")
    return HtmlReport(path, config.getoption("rl_html"))
