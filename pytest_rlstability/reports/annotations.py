"""Annotations of GitHub Actions: each failure at its line in the diff, by workflow commands at the end of the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_rlstability.model.events import Event, Finished
from pytest_rlstability.model.paths import without_root
from pytest_rlstability.model.verdict import PLAIN_FAILURE, Location, Word
from pytest_rlstability.reports.files import FileReport
from pytest_rlstability.reports.page_text import cause_lines

MOST = 10
"""GitHub shows so many errors of a step."""
_ORDER = (*Word, PLAIN_FAILURE)
_OTHER_PLUGIN = "pytest_github_actions_annotate_failures"


class Annotations(FileReport):
    """Collects the failures of a run, and writes one command for each, worst first. Paths are below *workspace*, where
    GitHub has checked the repository out; *root* is pytest's."""

    def __init__(self, root: Path, workspace: Path, *, plain: bool = True) -> None:
        super().__init__("", "")
        self._root, self._workspace, self._plain = root, workspace, plain
        self._found: list[tuple[int, str]] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Finished) and event.failed and (event.verdict or self._plain):
            word = event.verdict.word if event.verdict else PLAIN_FAILURE
            self._found.append((_ORDER.index(word), self._command(word, event)))

    def close(self) -> None:
        """The commands are written with the summary, when nothing is captured any more."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for command in self.commands():
            terminalreporter.write_line(command)

    def commands(self) -> list[str]:
        return [command for _, command in sorted(self._found, key=lambda found: found[0])[:MOST]]

    def _command(self, word: str, event: Finished) -> str:
        location = event.verdict.location if event.verdict else event.location
        file, line = self._place(location, event.test)
        causes = [without_root(cause, str(self._root)) for cause in cause_lines(event)]
        message = "\n".join([*causes, *([f"Reproduce: {event.reproduce}"] if event.reproduce else [])])
        where = f"file={_property(file)}" + (f",line={line}" if line else "")
        return f"::error {where},title={_property(f'{word}: {event.test}')}::{_escaped(message)}"

    def _place(self, location: Location | None, test: str) -> tuple[str, int]:
        """The line to look at, if it is in the repository; else the file of the test."""
        if location is not None:
            file = os.path.relpath(self._root / location.file, self._workspace)
            if not file.startswith(".."):
                return Path(file).as_posix(), location.line
        return Path(os.path.relpath(self._root / test.partition("::")[0], self._workspace)).as_posix(), 0


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """
    >>> _property("CRASH: 100%, in a,b")
    'CRASH%3A 100%25%2C in a%2Cb'
    """
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def open_report(config: pytest.Config) -> Annotations | None:
    """The annotations, in a job of GitHub Actions. The other plugin for this is left its ordinary failures."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return None
    workspace = Path(os.environ.get("GITHUB_WORKSPACE") or config.rootpath)
    plain = not any(_OTHER_PLUGIN in str(name) for name, _ in config.pluginmanager.list_name_plugin())
    report = Annotations(config.rootpath, workspace, plain=plain)
    config.pluginmanager.register(report, "rlstability-annotations")
    return report
