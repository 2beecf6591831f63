"""From samples to an answer: a verdict, a warning, or nothing to say."""

from __future__ import annotations

import errno
from collections.abc import Generator
from dataclasses import dataclass, replace

from pytest_rlstability.events import Verdict
from pytest_rlstability.leaks.attribution import Finding, inspect_survivors, investigate
from pytest_rlstability.leaks.check import LeakCheck, Watched
from pytest_rlstability.leaks.report import undecided_text, verdict
from pytest_rlstability.signals.registry import GROUPS

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC)

_FEW_LAPS = {"python": 40, "objects": 40, "malloc": 120, "mappings": 120}
"""Below this, growth that nobody holds may be a library that still warms up."""
_LOOKS = 8


@dataclass(frozen=True)
class Outcome:
    """How a check ended: with a *verdict* that fails the test, a *warning* that does not, or neither."""

    verdict: Verdict | None = None
    warning: str = ""


def run(check: LeakCheck) -> Generator[int, None, Outcome]:
    """Yields numbers of laps to run and returns the outcome.

    ``outcome = yield from run(check)`` in a generator that runs the laps; ``check.close()`` is the caller's.
    """
    yield from check.windows()
    return (yield from conclude(check))


def conclude(check: LeakCheck) -> Generator[int, None, Outcome]:
    """What the judgements come to, after a closer look at whatever grows."""
    suspects = check.leaks() or check.undecided()
    if not suspects:
        return Outcome()
    finding = (yield from investigate(check, suspects)) if _worth_a_look(check) else Finding()
    _acquit_bounded(check, finding)
    if not finding.culprit:
        yield from _acquit_stopped(check)
    _acquit_within_limit(check, finding)
    _acquit_arenas(check, finding)
    if check.leaks():
        return Outcome(verdict=verdict(check, finding))
    if check.undecided():
        return Outcome(warning=undecided_text(check, finding))
    return Outcome()


def conclude_cut_short(check: LeakCheck, error: BaseException | None) -> Outcome:
    """What can be said of a check whose loop was left, or in which a lap ran out of what leaked."""
    check.judge_cut_short()
    if not check.leaks():
        return Outcome()
    finding = inspect_survivors()
    if error is not None:
        finding.sections.insert(
            0, ("how it ended", f"lap {check.laps + 1} or later raised {type(error).__name__}: {error}")
        )
    return Outcome(verdict=verdict(check, finding))


def ran_out(error: BaseException) -> bool:
    """Whether *error* is what a leak ends in: no descriptors, threads, memory or stack left."""
    if isinstance(error, OSError):
        return error.errno in _EXHAUSTED
    return isinstance(error, (MemoryError, RecursionError)) or "can't start new thread" in str(error)


def _worth_a_look(check: LeakCheck) -> bool:
    return bool(check.leaks()) or check.measured_laps >= 24


def _acquit_bounded(check: LeakCheck, finding: Finding) -> None:
    """A deque or an lru_cache that has a limit is filling up: that acquits what it takes, and nothing beside it."""
    if finding.bounded:
        explained = set(GROUPS["memory"]) - {"workers", *finding.beside}
        _acquit([entry for entry in check.watched if entry.signal.name in explained], "bounded", finding.bounded)


def _acquit_stopped(check: LeakCheck) -> Generator[int, None, None]:
    """What nobody was found to hold may have been a buffer that is full by now: look whether it still grows."""
    suspects = [entry for entry in check.leaks() if entry.signal.name in _FEW_LAPS]
    laps = int(min(check.measured_laps / 4, check.seconds_left / check.seconds_per_lap))
    if not suspects or laps < max(2 * _LOOKS, check.measured_laps // 16):
        few = [entry for entry in suspects if check.measured_laps < _FEW_LAPS[entry.signal.name]]
        _acquit(few, "undecided", "grows, but nobody was found to hold it, and there was no time to look again")
        return
    values: list[list[float]] = []
    for _ in range(_LOOKS):
        yield laps // _LOOKS
        values.append(check.read(suspects))
    for entry, course in zip(suspects, zip(*values, strict=True), strict=True):
        risen = min(course[_LOOKS // 2 :]) - min(course[: _LOOKS // 2])
        if risen < 0.25 * entry.judgement.per_lap * laps / 2:
            _acquit([entry], "bounded", "grew and stopped")


def _acquit_within_limit(check: LeakCheck, finding: Finding) -> None:
    """Blocks have no size of their own: with a limit in bytes, what tracemalloc measured decides."""
    limit = check.settings.limit
    if limit is not None and finding.python_bytes_per_lap is not None and finding.python_bytes_per_lap <= limit:
        _acquit(
            [entry for entry in check.watched if entry.signal.name in ("python", "objects")], "clean", "within limit"
        )


def _acquit_arenas(check: LeakCheck, finding: Finding) -> None:
    """Python maps the arenas for its small objects itself: such growth is judged by the blocks in them."""
    states = {entry.signal.name: entry.judgement for entry in check.watched}
    if "python" not in states or states["python"].growing or "mappings" not in states:
        return
    if (finding.python_bytes_per_lap or 0.0) >= 0.5 * states["mappings"].per_lap:
        _acquit([entry for entry in check.watched if entry.signal.name == "mappings"], "clean", "Python's own arenas")


def _acquit(entries: list[Watched], state: str, reason: str) -> None:
    for entry in entries:
        if entry.judgement.growing:
            entry.judgement = replace(entry.judgement, state=state, reason=reason)  # type: ignore[arg-type]
