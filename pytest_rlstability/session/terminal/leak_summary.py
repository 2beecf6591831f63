"""What ``--rl-leaks`` found in a run: a table of what grew, and the tests that could not be judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_rlstability.leaks.report import amount
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.model.events import Event, Judged, Sample
from pytest_rlstability.model.units import counted, format_duration
from pytest_rlstability.model.verdict import Word
from pytest_rlstability.session.terminal.run_lines import first_lines
from pytest_rlstability.verdicts.leak import LeakState

_BLOCK = 64.0
"""About so many bytes has a block or an object; only the order of the table depends on it."""


@dataclass(frozen=True)
class _Row:
    test: str
    judged: Judged
    signal: type[Signal]
    laps: int

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Leaks first, then what a process has to give back, then memory; the fastest growth first."""
        is_memory = self.signal.group == "memory"
        size = self.judged.slope * (_BLOCK if is_memory and self.signal.unit == "count" else 1.0)
        return self.judged.state != LeakState.LEAK, is_memory, -size

    def cells(self) -> tuple[str, str, str, str, str]:
        word = Word.LEAK if self.judged.state == LeakState.LEAK else self.judged.state
        growth = f"+{amount(self.judged.slope, self.signal.unit)} per {self.judged.per}"
        return word, self.signal.title, growth, f"{self.laps} laps", self.test


class LeakSummary:
    """Handles the events of a run in which every test is checked. *signals* are the known ones by name."""

    def __init__(self, budget: float, signals: Mapping[str, type[Signal]]) -> None:
        self._budget = budget
        self._signals = signals
        self._checked: dict[str, Sample] = {}

    def handle(self, event: Event) -> None:
        if isinstance(event, Sample) and event.judged is not None:
            self._checked[event.test] = event

    def lines(self) -> list[str]:
        """The closing lines: how many tests were checked, what grew, and what could not be judged."""
        rows = sorted((row for row in map(self._row, self._checked.values()) if row is not None), key=lambda r: r.rank)
        unjudged = [f"not judged: {name}: {reason}" for name, reason in self._unjudged().items()]
        leaks = sum(row.judged.state == LeakState.LEAK for row in rows)
        found = [Word.LEAK.counted(leaks), f"{len(rows) - leaks} undecided", f"{len(unjudged)} not judged"]
        tests = counted(len(self._checked), "test")
        head = f"growth of {tests} (--rl-leaks={format_duration(self._budget).replace(' ', '')}): {', '.join(found)}"
        return [head, *first_lines(_table(rows), "tests that grew"), *first_lines(unjudged, "tests not judged")]

    def _row(self, sample: Sample) -> _Row | None:
        """What grew in one test: the first signal that leaks, or else the first that is undecided."""
        laps = sample.lap - (sample.warmup or 0)
        for state in (LeakState.LEAK, LeakState.UNDECIDED):
            for judged in (one for one in sample.judged or () if one.state == state):
                signal = self._signals.get(judged.signal)
                if signal is not None and (state == LeakState.LEAK or not (signal.expensive or signal.foreign)):
                    return _Row(sample.test, judged, signal, laps)
        return None

    def _unjudged(self) -> dict[str, str]:
        return {
            test: entry.reason
            for test, sample in self._checked.items()
            for entry in sample.judged or ()
            if entry.state == LeakState.NOT_JUDGED and not entry.signal
        }


def _table(rows: Sequence[_Row]) -> list[str]:
    cells = [row.cells() for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
