"""The end of a leak check: a verdict, a warning, or neither."""

from __future__ import annotations

import errno
import gc
from collections.abc import Iterator
from dataclasses import replace
from warnings import WarningMessage

import pytest

from pytest_rlstability.leaks.attribution import Finding, inspect_survivors, investigate
from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.report import too_slow_text, undecided_text, verdict
from pytest_rlstability.leaks.watched import Watched
from pytest_rlstability.verdicts.leak import LeakState

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC)

_FEW_LAPS = {"python": 40, "objects": 40, "malloc": 120, "mappings": 120}
"""Over fewer laps, growth without a known holder may be a library that still warms up."""
_LOOKS = 8


class LeakWarning(pytest.PytestWarning):
    """A leak check that could not be decided, or whose loop was left too early."""


def warn(item: pytest.Item, text: str) -> None:
    """Say *text* about *item*, whatever the filters are: with ``-W ignore`` an undecided test would look as if it
    had passed, with ``-W error`` it would fail."""
    path, line, _ = item.location
    message = WarningMessage(LeakWarning(text), LeakWarning, path, (line or 0) + 1)
    item.ihook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": message, "when": "runtest", "nodeid": item.nodeid, "location": None}
    )


def run(check: LeakCheck) -> Iterator[int]:
    """Yields numbers of laps to run, and sets the verdict or the warning of *check* after a closer look at what grows.

    The caller runs the laps and closes *check*.
    """
    yield from check.windows()
    if check.too_slow:
        check.unjudged = too_slow_text(check)
        if not check.settings.sweep:
            check.warning = f"{check.settings.marker} undecided: nothing was judged, because {check.unjudged}"
    elif suspects := check.leaks() or check.undecided():
        yield from _look_closer(check, suspects)
    _note_unread(check)


def _look_closer(check: LeakCheck, suspects: list[Watched]) -> Iterator[int]:
    """Find the holder of what grows, downgrade what is not a leak, and set the verdict or the warning."""
    worth_a_look = check.leaks() or check.measured_laps >= 24
    finding = (yield from investigate(check, suspects)) if worth_a_look else Finding()
    _downgrade_bounded(check, finding)
    if not finding.culprit:
        yield from _downgrade_stopped(check)
    _downgrade_within_limit(check, finding)
    if finding.capacity:
        memory = {entry.signal.name for entry in check.watched if entry.signal.collected}
        _downgrade(_named(check, memory), LeakState.UNDECIDED, f"grows, but {finding.capacity}")
    _downgrade_arenas(check, finding)
    if check.leaks():
        check.verdict = verdict(check, finding)
    elif check.undecided() and not check.settings.sweep:
        check.warning = undecided_text(check, finding)


def conclude_cut_short(check: LeakCheck, error: BaseException | None) -> None:
    """Set the verdict of a check whose loop was left early, or in which a lap ran out of what leaked."""
    finding = inspect_survivors()  # before the judgement, which ends the freeze that shows what is new
    check.judge_cut_short()
    if not check.leaks():
        return
    if error is not None:
        how = f"lap {check.laps + 1} or later raised {type(error).__name__}: {error}"
        finding.sections.insert(0, ("how it ended", how))
    check.verdict = verdict(check, finding)


def ran_out(error: BaseException) -> bool:
    """Whether *error* says that descriptors, threads, memory or stack are used up."""
    if isinstance(error, OSError):
        return error.errno in _EXHAUSTED
    return isinstance(error, (MemoryError, RecursionError)) or "can't start new thread" in str(error)


def _note_unread(check: LeakCheck) -> None:
    """A signal that the test names and that cannot be read here is not clean."""
    unread = [f"{name} ({why})" for name, why in check.missing.items() if name in (check.settings.signals or ())]
    if unread and check.verdict is None:
        text = f"{check.settings.marker}: not measured: {', '.join(unread)}"
        check.warning = f"{check.warning}; {text}" if check.warning else text


def _downgrade_bounded(check: LeakCheck, finding: Finding) -> None:
    """Downgrade the memory that goes into a deque or an lru_cache with a limit, and nothing else."""
    if finding.bounded:
        memory = {entry.signal.name for entry in check.watched if entry.signal.group == "memory"}
        _downgrade(_named(check, memory - {"workers", *finding.beside}), LeakState.BOUNDED, finding.bounded)


def _downgrade_stopped(check: LeakCheck) -> Iterator[int]:
    """Growth without a known holder may be a buffer that is full by now: look whether it still grows."""
    suspects = [entry for entry in (*check.leaks(), *check.undecided()) if entry.signal.name in _FEW_LAPS]
    laps = int(min(check.measured_laps / 4, check.seconds_left / check.seconds_per_lap))
    gc.freeze()
    if not suspects or laps < max(2 * _LOOKS, check.measured_laps // 16):
        few = [
            entry for entry in check.leaks() if entry in suspects and check.measured_laps < _FEW_LAPS[entry.signal.name]
        ]
        _downgrade(few, LeakState.UNDECIDED, "grows, but no holder was found, and there was no time to look again")
        return
    values: list[list[float]] = []
    for _ in range(_LOOKS):
        yield laps // _LOOKS
        values.append(check.read(suspects))
    for entry, course in zip(suspects, zip(*values, strict=True), strict=True):
        expected, spread = entry.judgement.per_lap * laps / 2, max(course) - min(course)
        risen = min(course[_LOOKS // 2 :]) - min(course[: _LOOKS // 2])
        leaks = entry.judgement.state == LeakState.LEAK
        # noise may hide the growth of what is undecided
        if risen < 0.25 * expected and (leaks or spread < expected):
            _downgrade([entry], LeakState.BOUNDED, "grew and stopped")


def _downgrade_within_limit(check: LeakCheck, finding: Finding) -> None:
    """A limit in bytes does not apply to a count of blocks: for those, the bytes that tracemalloc measured decide."""
    limit = check.settings.limit
    if limit is not None and finding.python_bytes_per_lap is not None and finding.python_bytes_per_lap <= limit:
        _downgrade(_named(check, {"python", "objects"}), LeakState.CLEAN, "within limit")


def _downgrade_arenas(check: LeakCheck, finding: Finding) -> None:
    """Python maps arenas for its small objects. Their growth is judged by the blocks in them."""
    states = {entry.signal.name: entry.judgement for entry in check.watched}
    if "python" not in states or states["python"].growing or "mappings" not in states:
        return
    if (finding.python_bytes_per_lap or 0.0) >= 0.5 * states["mappings"].per_lap:
        _downgrade(_named(check, {"mappings"}), LeakState.CLEAN, "Python's own arenas")


def _named(check: LeakCheck, names: set[str]) -> list[Watched]:
    return [entry for entry in check.watched if entry.signal.name in names]


def _downgrade(entries: list[Watched], state: LeakState, reason: str) -> None:
    for entry in entries:
        if entry.judgement.growing:
            entry.judgement = replace(entry.judgement, state=state, reason=reason)
