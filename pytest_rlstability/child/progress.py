"""``stage``, ``heartbeat``, ``probe`` for code that is not a test: a training script, or a library that a test calls.

They reach whoever watches this process, ``rlstability run`` or ``pytest --rl-stability``, and do nothing where nobody
does. Needs no pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import modules
from time import monotonic
from typing import NoReturn

from pytest_rlstability.child.changes import STOP_AFTER
from pytest_rlstability.model.levels import Crossing, Levels
from pytest_rlstability.model.messages import Sampled, StageEntered
from pytest_rlstability.model.progress_channel import Channel, current_channel
from pytest_rlstability.model.units import shorten

_NAME = 500
"""Characters that are kept at each end of a stage's name."""
_DEEPEST = 100
"""Stages inside each other that are sent, the innermost."""


class Stages:
    """The stages that a test or script is in, outermost first."""

    def __init__(self) -> None:
        self._path: list[str] = []

    @contextmanager
    def enter(self, name: str, channel: Channel) -> Iterator[None]:
        self._path.append(shorten(str(name), _NAME))
        channel.send(StageEntered(tuple(self._path[-_DEEPEST:])))
        try:
            yield
        finally:
            self._path.pop()
            channel.send(StageEntered(tuple(self._path[-_DEEPEST:])))
        if name in STOP_AFTER:
            _stop(name)


def _stop(name: str) -> NoReturn:
    """End here, because a diagnosis asks what the stages so far do by themselves."""
    if "_pytest" not in modules:
        raise SystemExit(0)
    from unittest import SkipTest

    raise SkipTest(f"ended after stage {name!r}")


_stages = Stages()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Crash-safe breadcrumbs: a report lists the stages done and the one it died in. Stages may be nested.

    >>> with stage("create model"):
    ...     model = object()
    """
    with _stages.enter(name, current_channel()):
        yield


def heartbeat() -> None:
    """Progress was made. A script that beats is stalled when it stops beating, however busy it is.

    >>> for step in range(3):
    ...     heartbeat()
    """
    current_channel().beat()
    if _probes and monotonic() >= _probes[0].due:
        _read_probes()


class Probe:
    """A counter that is read at heartbeats, at most once a second."""

    def __init__(self, name: str, read: Callable[[], float], levels: Levels) -> None:
        self.name, self.read = name, read
        self.levels = levels
        self.due = 0.0


_probes: list[Probe] = []
_began = monotonic()
_EVERY = 1.0


def probe(
    name: str,
    read: Callable[[], float],
    *,
    warning: float | None = None,
    critical: float | None = None,
    per_minute: float | None = None,
    on_critical: Callable[[], object] | None = None,
) -> None:
    """Watch a counter of your own, at heartbeats. At the *critical* level *on_critical* is called, once each time the
    value comes from below it, and what that freed is recorded. A second call with the same name replaces the first.

    >>> food = [1, 2, 3]
    >>> probe("food", lambda: len(food), warning=50, critical=80, per_minute=5, on_critical=food.clear)
    """

    if not current_channel().is_watched:
        return

    def clean_up() -> float:
        assert on_critical is not None
        on_critical()
        return float(read())

    cleaner = None if on_critical is None else clean_up
    levels = Levels(name, warning=warning, critical=critical, per_minute=per_minute, clean_up=cleaner)
    _probes[:] = [*(one for one in _probes if one.name != name), Probe(name, read, levels)]
    _read_probes()


def _read_probes() -> None:
    """Read all probes, send their values, and what they crossed."""
    now = monotonic()
    values: dict[str, float] = {}
    crossings: list[Crossing] = []
    for one in _probes:
        one.due = now + _EVERY
        values[one.name] = float(one.read())
        crossings += one.levels.note(values[one.name], now - _began)
    judged = [
        {"signal": crossing.probe, "state": crossing.level, "reason": crossing.text, "most": crossing.limit}
        for crossing in crossings
    ]
    channel = current_channel()
    channel.send(Sampled(channel.beats, round(now - _began, 3), values, judged=judged or None))
