"""Carries what plugins keep between tests: from a test's process to pytest's, and to the processes of later tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_rlstability.child.plugin_state import plugin_state
from pytest_rlstability.child.verdict_report import stability_of
from pytest_rlstability.model.messages import PluginsChanged
from pytest_rlstability.model.run import Run
from pytest_rlstability.model.verdict import Verdict
from pytest_rlstability.session.other_plugins.missed_hooks import show_missed_report
from pytest_rlstability.session.test_process import TestProcess


class PluginCarrier:
    """``take`` what a run changed; ``bring`` a process up to date before it gets its next test."""

    def __init__(self, session: pytest.Session) -> None:
        self._state = plugin_state(session)
        self._log: list[tuple[int, str]] = []
        """The process that made each change that a later test may depend on, and the change."""
        self._brought: dict[int, int] = {}
        self._last: pytest.Item | None = None

    def take(self, item: pytest.Item, run: Run, process: TestProcess) -> None:
        """Make here what *run* has changed in its process."""
        self._note_here()
        self._last = item
        for changed in run.seen.plugin_changes:
            if changed.changes:
                self._state.apply(changed.changes)
                self._note(process.serial, changed.changes)
            run.seen.plugins_lost |= {*changed.lost}
        run.seen.plugins_lost |= self._state.lost

    def bring(self, process: TestProcess) -> None:
        """Send *process* what others have changed since it was last sent something."""
        self._note_here()
        start, self._brought[process.serial] = self._brought.get(process.serial, 0), len(self._log)
        for version, (serial, changes) in enumerate(self._log[start:], start + 1):
            if serial != process.serial and changes:
                process.send(PluginsChanged(changes, (), version))

    def run_here(self, item: pytest.Item) -> None:
        """*item* is about to run in this process."""
        self._note_here()
        self._state.begin(item)
        self._last = item

    def _note_here(self) -> None:
        """Note what has changed in this process: by a test that ran here, or by hooks that see its reports."""
        lost = {*self._state.lost}
        if self._last is not None and (changes := self._state.changes(self._last)):
            self._state.version += 1
            self._note(0, changes)
        self._state.lost = lost  # here it is where it is read

    def report_death(self, item: pytest.Item, reports: Sequence[pytest.TestReport], verdict: Verdict) -> None:
        """Have the plugins see the reports of *item*, whose process died before it could send what they made of it."""
        if not self._state.plugins:
            return
        self.run_here(item)
        for report in reports:
            try:
                show_missed_report(item, report, verdict, self._state.plugins)
            except Exception as error:  # it needs what only a set-up in this process would have made
                names = ", ".join(sorted({carried.name for carried in self._state.carried}))
                self._state.lost.add(f"{names}: the report of {item.nodeid} ({type(error).__name__}: {error})")
        self._note_here()
        if self._state.lost:
            stability_of(reports[-1])["plugins_lost"] = sorted(self._state.lost)

    def _note(self, serial: int, changes: str) -> None:
        """Changes are numbered, and a process knows how many were made before it was forked."""
        self._log.append((serial, self._state.deciding(changes) if self._state.decides else ""))
