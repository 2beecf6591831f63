"""``--rl-html``: a page with charts at the end of the run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from pytest_rlstability.config.options import path_option
from pytest_rlstability.reports import page_file
from pytest_rlstability.reports.jsonl import EventLog
from pytest_rlstability.reports.log_reader import read_log


class HtmlReport(EventLog):
    """Keeps the events of a run in a temporary file, and makes its page when it is over."""

    def __init__(self, path: Path, option: str = "--rl-html") -> None:
        super().__init__(path, option, "no report was written")

    def _open(self) -> IO[bytes]:
        # Unnamed: nothing is left behind, however this process ends.
        return tempfile.TemporaryFile()

    def close(self) -> None:
        if not self.trouble:
            with self._writing(), self._file as spool:
                spool.seek(0)
                page_file.write_page(self._path, read_log(spool, "this run"))

    def lines(self) -> Sequence[str]:
        return [] if self.trouble else [f"report written to {self._path}"]


def require_charts(flag: str) -> None:
    """Raise a usage error with the line to type if plotly is missing."""
    if not page_file.has_charts():
        raise pytest.UsageError(f"{flag} needs plotly for its charts: {page_file.INSTALL_LINE}")


def open_report(config: pytest.Config) -> HtmlReport | None:
    path = path_option(config, "rl_html")
    if path is None:
        return None
    require_charts("--rl-html")
    return HtmlReport(path)
