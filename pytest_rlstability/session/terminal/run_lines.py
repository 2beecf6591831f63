"""What the terminal shows besides pytest's own lines: a header line, and a closing line with the tally."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from pytest_rlstability.config.in_process import in_process_tests
from pytest_rlstability.config.markers import is_marked
from pytest_rlstability.config.options import Settings
from pytest_rlstability.model.units import counted, format_duration
from pytest_rlstability.model.verdict import Word

_SHOWN = 20


def header(settings: Settings) -> str | None:
    if not settings.enabled:
        return None
    how = "every test" if settings.scope == "all" else "marked tests"
    if settings.group == "auto" and settings.scope == "all":
        how = "unmarked tests share a process until it dies, marked ones have their own"
    elif settings.group in ("auto", "test"):
        how += " in its own process"
    else:
        how += f", a process per {settings.group}"
    soak = ""
    if settings.soak:
        each = "its own duration" if settings.soak_duration is None else format_duration(settings.soak_duration)
        soak = f", each rl_soak test for {each}"
    if settings.leaks is not None:
        how = f"every test in its own process, repeated for {format_duration(settings.leaks)} to find what grows"
    return f"rl-stability: on, {how} ({settings.backend}){soak}, seed {settings.seed}{settings.remark}"


def unchecked_line(items: Sequence[pytest.Item], settings: Settings) -> str | None:
    """Lines about tests that are not checked: all marked ones without the switch; with it, those with ``rl_flaky`` if
    tests are not repeated, and those that a plugin keeps in this process."""
    if settings.enabled:
        kept = in_process_tests(items[0].config).line(items) if items and settings.backend != "inprocess" else None
        return "\n".join(line for line in (_unrepeated_line(items, settings), kept) if line) or None
    marked = sum(is_marked(item) and item.get_closest_marker("rl_soak") is None for item in items)
    if not marked:
        return None
    tests = counted(marked, "marked test runs", "marked tests run")
    return f"rl-stability: off, {tests} unchecked (--rl-stability checks them)"


def _unrepeated_line(items: Sequence[pytest.Item], settings: Settings) -> str | None:
    marked = sum(item.get_closest_marker("rl_flaky") is not None for item in items)
    reason = "--rl-flaky=once" if settings.flaky == "once" else "no fresh processes in the inprocess backend"
    if not marked or (settings.flaky != "once" and settings.backend != "inprocess"):
        return None
    return f"rl-stability: {counted(marked, 'rl_flaky test runs', 'rl_flaky tests run')} once, unchecked ({reason})"


def first_lines(lines: Sequence[str], kind: str = "") -> list[str]:
    """The first *lines*, and how many more of a *kind* there are."""
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"... and {more} more {kind}".rstrip()] if more > 0 else [])]


class Tally:
    """Counts tests, processes and verdicts from the reports of a run, also in an xdist controller."""

    def __init__(self) -> None:
        self.tests = 0
        self.processes = 0
        self.backends: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.undecided = 0
        self._left: list[str] = []
        self._plugins_lost: dict[str, None] = {}

    def count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        known = getattr(report, "rl_stability", {})
        if (verdict := known.get("verdict")) and ("backend" in known or known.get("late")):
            self.verdicts[verdict["word"]] += 1
        self._plugins_lost.update(dict.fromkeys(known.get("plugins_lost", ())))
        if "backend" in known:
            self.tests += 1
            self.processes += known["own_process"]
            self.backends[known["backend"]] += 1
            self.undecided += not verdict and bool(known.get("undecided"))
            if not verdict and (left := known.get("resources_left")):
                names = f"{', '.join(left[:4])}{' ...' if len(left) > 4 else ''}"
                self._left.append(f"{report.nodeid} left behind: {names}")

    def resource_lines(self) -> list[str]:
        """A line for each test without a verdict that left resources behind."""
        return first_lines(self._left, "tests left something behind")

    def plugin_lines(self) -> list[str]:
        """A line for each thing that a plugin kept in a test's process, where it does not see it at the end."""
        advice = "rl_in_process_plugins runs its tests in pytest's own process"
        lines = [f"{lost} changed in a test's process only ({advice})" for lost in self._plugins_lost]
        return first_lines(lines, "things changed in a test's process only")

    def line(self) -> str | None:
        """``rl-stability: 214 tests in 214 processes (zygote), 1 crash, 0 stalls, 1 leak, 0 flaky tests``"""
        if not self.tests:
            return None
        backends = ", ".join(name for name, _ in self.backends.most_common())
        found = [word.counted(self.verdicts[word]) for word in Word if self.verdicts[word] or word is not Word.MODEL]
        found += [f"{self.undecided:,} undecided"] if self.undecided else []
        tests, processes = counted(self.tests, "test"), counted(self.processes, "process", "processes")
        return f"rl-stability: {tests} in {processes} ({backends}), {', '.join(found)}"
