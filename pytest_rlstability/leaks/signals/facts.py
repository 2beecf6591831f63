"""The facts about signals that reports need.

The signals of this package are known to every reader of an event log. Those that other plugins add are described in the
log's ``session`` event, because the reader may not have these plugins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import pytest

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.leaks.signals.registry import shipped_signals, signals_of


@dataclass(frozen=True)
class SignalFacts:
    title: str
    unit: str
    compared: bool
    """Whether its growth is caused by the test, so that it can be compared with another run."""
    smallest: float
    resolution: float

    @classmethod
    def of(cls, signal: type[Signal]) -> SignalFacts:
        compared = signal.judged and not signal.foreign
        return cls(signal.title, signal.unit, compared, signal.smallest, signal.resolution)

    @classmethod
    def from_json(cls, data: Any) -> SignalFacts | None:
        """The facts in a log; None if they are malformed."""
        try:
            unit = "bytes" if data["unit"] == "bytes" else "count"
            numbers = float(data["smallest"]), float(data["resolution"])
            return cls(str(data["title"]), unit, bool(data["compared"]), *numbers)
        except (KeyError, TypeError, ValueError):
            return None


@cache
def _shipped() -> Mapping[str, SignalFacts]:
    return {signal.name: SignalFacts.of(signal) for signal in shipped_signals()}


def added_facts(config: pytest.Config) -> dict[str, Any]:
    """The signals that other plugins add, for the ``session`` event."""
    shipped = _shipped()
    return {s.name: asdict(SignalFacts.of(s)) for s in signals_of(config) if s.name not in shipped}


def signal_facts(described: Mapping[str, Any]) -> Mapping[str, SignalFacts]:
    """The signals of a run by name: the package's, and those that its ``Session`` event has *described*.

    >>> signal_facts({})["rss"].unit
    'bytes'
    """
    added = {name: SignalFacts.from_json(data) for name, data in described.items()}
    return {**{name: facts for name, facts in added.items() if facts is not None}, **_shipped()}
