"""What the terminal says besides pytest's own: a header line, and one closing line with the tally."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from pytest_rlstability.markers import is_marked
from pytest_rlstability.options import Settings
from pytest_rlstability.units import format_duration

_SHOWN = 20
_WORDS = {"CRASH": ("crash", "crashes"), "LEAK": ("leak", "leaks"), "STALL": ("stall", "stalls")}


def header(settings: Settings) -> str | None:
    if not settings.enabled:
        return None
    scope = "every test" if settings.scope == "all" else "marked tests"
    how = f"{scope} in its own process" if settings.group == "test" else f"{scope}, a process per {settings.group}"
    soak = ""
    if settings.soak:
        each = "its own duration" if settings.soak_duration is None else format_duration(settings.soak_duration)
        soak = f", each rl_soak test for {each}"
    return f"rl-stability: on, {how} ({settings.backend}){soak}, seed {settings.seed}{settings.remark}"


def unchecked_line(items: Sequence[pytest.Item], settings: Settings) -> str | None:
    """Say once which promises in the markers are not being checked: all without the switch, and with it those about
    pass rates where tests are not repeated."""
    if settings.enabled:
        return _unrepeated_line(items, settings)
    marked = sum(is_marked(item) and item.get_closest_marker("rl_soak") is None for item in items)
    if not marked:
        return None
    tests = "1 marked test runs" if marked == 1 else f"{marked} marked tests run"
    return f"rl-stability: off, {tests} unchecked (--rl-stability checks them)"


def _unrepeated_line(items: Sequence[pytest.Item], settings: Settings) -> str | None:
    marked = sum(item.get_closest_marker("rl_flaky") is not None for item in items)
    reason = "--rl-flaky=once" if settings.flaky == "once" else "no fresh processes in the inprocess backend"
    if not marked or (settings.flaky != "once" and settings.backend != "inprocess"):
        return None
    return f"rl-stability: {_counted(marked, 'rl_flaky test runs', 'rl_flaky tests run')} once, unchecked ({reason})"


class Tally:
    """Counts what the reports of a run carry; works in an xdist controller as in a single process."""

    def __init__(self) -> None:
        self.tests = 0
        self.processes = 0
        self.backends: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self._left: list[str] = []

    def count(self, report: pytest.TestReport) -> None:
        known = getattr(report, "rl_stability", {})
        if "backend" in known:
            self.tests += 1
            self.processes += known["own_process"]
            self.backends[known["backend"]] += 1
            if verdict := known.get("verdict"):
                self.verdicts[verdict["word"]] += 1
            elif left := known.get("left_behind"):
                self._left.append(
                    f"{report.nodeid} left behind: {', '.join(left[:4])}{' ...' if len(left) > 4 else ''}"
                )

    def left_lines(self) -> list[str]:
        """A line for each test that left something behind without being asked about it."""
        more = len(self._left) - _SHOWN
        return [*self._left[:_SHOWN], *([f"... and {more} more tests left something behind"] if more > 0 else [])]

    def line(self) -> str | None:
        """``rl-stability: 214 tests in 214 processes (zygote), 1 crash, 1 leak, 0 stalls``"""
        if not self.tests:
            return None
        backends = ", ".join(name for name, _ in self.backends.most_common())
        found = [_counted(self.verdicts[word], *names) for word, names in _WORDS.items()]
        if flaky := self.verdicts["FLAKY"]:
            found.append(f"{flaky} flaky")
        tests, processes = _counted(self.tests, "test", "tests"), _counted(self.processes, "process", "processes")
        return f"rl-stability: {tests} in {processes} ({backends}), {', '.join(found)}"


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
