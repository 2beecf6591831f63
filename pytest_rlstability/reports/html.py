"""``--rl-html``: a page with charts at the end of the run. Its events wait in a nameless temporary file until then."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.reports.jsonl import to_line
from pytest_rlstability.reports.registry import path_option


class HtmlReport:
    """Keeps the events of a run and makes its page when it is over."""

    def __init__(self, path: Path, given: str) -> None:
        self._path = path
        self._given = given
        self._written = False
        self.trouble = ""
        try:
            # nameless: nothing is left behind, however this process ends
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115 (open for the whole run)
        except OSError as error:
            self._give_up(error)

    def hear(self, event: Mapping[str, Any]) -> None:
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
        from pytest_rlstability.reports.page_file import write_page
        from pytest_rlstability.reports.reading import read_log

        try:
            self._spool.seek(0)
            write_page(self._path, read_log(self._spool, "this run"))
            self._written = True
        except OSError as error:
            self._give_up(error)
        finally:
            self._spool.close()

    def lines(self) -> Sequence[str]:
        return [f"report written to {self._given}"] if self._written else []

    def _give_up(self, error: OSError) -> None:
        self.trouble = f"--rl-html={self._given}: {error.strerror or error}; no report was written"


def add_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    group.addoption("--rl-html", metavar="PATH", default=None, help="write a page with charts, in one file")


def open_report(config: pytest.Config) -> HtmlReport | None:
    path = path_option(config, "rl_html")
    if path is None:
        return None
    from pytest_rlstability.reports.page_file import INSTALL_LINE, has_charts

    if not has_charts():
        raise pytest.UsageError(f"--rl-html needs plotly for its charts: {INSTALL_LINE}")
    return HtmlReport(Path(path), config.getoption("rl_html"))
