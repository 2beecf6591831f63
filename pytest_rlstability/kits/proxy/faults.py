"""What can go wrong with a connection, and which connections a fault strikes.

An *effect* is one fault on one direction of one connection. It never touches a socket: the relay asks it how many bytes
may pass now. The time is an argument, so that every effect can be tested with plain numbers.
"""

from __future__ import annotations

import inspect
import math
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, get_args

from pytest_rlstability.model.units import parse_duration, parse_size

Direction = Literal["downstream", "upstream"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


class Effect:
    """One fault on one direction of one connection. This one lets everything pass: the relay itself ends and refuses
    connections."""

    def arrive(self, units: int, now: float, chance: random.Random) -> None:
        """*units* came from the sender: bytes, or one for the end of the stream."""

    def allowance(self, now: float) -> float:
        """How many units may pass now."""
        return math.inf

    def spend(self, units: int, now: float) -> None:
        """*units* went on to the receiver."""

    def wakes_at(self) -> float:
        """When the allowance grows again by itself."""
        return math.inf


class Stall(Effect):
    """Nothing passes for *seconds* (if not given, ever again), and the connection stays open."""

    def __init__(self, *, seconds: str | float = math.inf) -> None:
        self._seconds = math.inf if seconds == math.inf else parse_duration(seconds)
        self._until: float | None = None

    def allowance(self, now: float) -> float:
        if self._until is None:
            self._until = now + self._seconds
        return math.inf if now >= self._until else 0

    def wakes_at(self) -> float:
        return math.inf if self._until is None else self._until


class Delay(Effect):
    """Every byte arrives *seconds* late, give or take a random *jitter*; the order is kept."""

    def __init__(self, *, seconds: str | float = 0.1, jitter: str | float = 0) -> None:
        self._seconds = parse_duration(seconds)
        self._jitter = parse_duration(jitter)
        self._under_way: deque[tuple[float, int]] = deque()
        self._newest_due = -math.inf

    def arrive(self, units: int, now: float, chance: random.Random) -> None:
        late = max(0.0, self._seconds + chance.uniform(-self._jitter, self._jitter))
        self._newest_due = max(self._newest_due, now + late)
        self._under_way.append((self._newest_due, units))

    def allowance(self, now: float) -> float:
        return sum(units for due, units in self._under_way if due <= now)

    def spend(self, units: int, now: float) -> None:
        while units and self._under_way:
            due, held = self._under_way.popleft()
            if held > units:
                self._under_way.appendleft((due, held - units))
            units -= min(units, held)

    def wakes_at(self) -> float:
        return self._under_way[0][0] if self._under_way else math.inf


class Throttle(Effect):
    """At most *bytes_per_second* pass."""

    # Small enough to look like a thin line to the receiver, large enough to cost few wake-ups.
    _SLICE_SECONDS = 0.02

    def __init__(self, *, bytes_per_second: str | int = 65536) -> None:
        self._rate = parse_size(bytes_per_second)
        if self._rate < 1:
            raise ValueError(f"bytes_per_second must be at least 1, not {bytes_per_second!r}")
        self._slice = max(1, int(self._rate * self._SLICE_SECONDS))
        self._next = -math.inf

    def allowance(self, now: float) -> float:
        return self._slice if now >= self._next else 0

    def spend(self, units: int, now: float) -> None:
        # A late wake-up may catch up by one slice, never by a burst.
        earliest = now - self._slice / self._rate
        self._next = max(self._next, earliest) + units / self._rate

    def wakes_at(self) -> float:
        return self._next


class Drip(Effect):
    """*size* bytes pass every *seconds*: a read timeout never fires and the answer never comes."""

    def __init__(self, *, size: str | int = 1, seconds: str | float = 0.1) -> None:
        self._size = parse_size(size)
        if self._size < 1:
            raise ValueError(f"size must be at least 1, not {size!r}")
        self._seconds = parse_duration(seconds)
        self._next = -math.inf
        self._left = self._size

    def allowance(self, now: float) -> float:
        if now >= self._next:
            self._left = self._size
        return self._left

    def spend(self, units: int, now: float) -> None:
        if self._left == self._size:
            self._next = now + self._seconds
        self._left -= units

    def wakes_at(self) -> float:
        return self._next


FAULTS: dict[str, type[Effect]] = {
    "cut": Effect, "delay": Delay, "drip": Drip, "half_close": Effect, "refuse": Effect, "reset": Effect,
    "stall": Stall, "throttle": Throttle,
}  # fmt: skip


def make_effect(fault: str, how: dict[str, object]) -> Effect:
    """A new effect of *fault*; a wrong name or argument is a ValueError that says what is accepted."""
    if fault not in FAULTS:
        raise ValueError(f"unknown fault {fault!r}; accepted: {', '.join(FAULTS)}")
    kind = FAULTS[fault]
    accepted = [] if kind.__init__ is object.__init__ else list(inspect.signature(kind).parameters)
    unknown = [name for name in how if name not in accepted]
    if unknown:
        takes = f"takes {', '.join(accepted)}" if accepted else "takes no arguments of its own"
        raise ValueError(f"fault {fault!r} {takes}, not {', '.join(unknown)}")
    return kind(**how)


@dataclass(frozen=True)
class Rule:
    """One ``proxy.add(...)``, checked: a wrong value is a ValueError that says what is accepted."""

    fault: str
    every: int | None = None
    rate: float | None = None
    after_bytes: int = 0
    direction: Direction = "downstream"
    how: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.effect()
        if self.every is not None and self.rate is not None:
            raise ValueError("give every=N or rate=P, not both")
        if self.every is not None and (not isinstance(self.every, int) or self.every < 1):
            raise ValueError(f"every must be a whole number of connections from 1, not {self.every!r}")
        if self.rate is not None and not (isinstance(self.rate, (int, float)) and 0 <= self.rate <= 1):
            raise ValueError(f"rate must be a probability between 0 and 1, not {self.rate!r}")
        if self.direction not in DIRECTIONS:
            raise ValueError(f"direction must be {' or '.join(DIRECTIONS)}, not {self.direction!r}")
        object.__setattr__(self, "after_bytes", parse_size(self.after_bytes))
        if self.fault == "refuse" and (self.after_bytes or self.direction != "downstream"):
            raise ValueError("fault 'refuse' strikes before the first byte: it takes neither after_bytes nor direction")

    @property
    def strikes_all(self) -> bool:
        return self.every is None and self.rate is None

    def effect(self) -> Effect:
        """A new effect of the fault, for one direction of one connection."""
        return make_effect(self.fault, self.how)


class Draw:
    """Decides, connection by connection, whether a rule strikes: the same *seed* and order, the same decisions."""

    def __init__(self, rule: Rule, seed: str) -> None:
        self.rule = rule
        self._chance = random.Random(seed)
        self._seen = 0

    def next(self) -> bool:
        """Whether the rule strikes the connection that was just accepted."""
        self._seen += 1
        if self.rule.every is not None:
            return self._seen % self.rule.every == 0
        if self.rule.rate is not None:
            return self._chance.random() < self.rule.rate
        return True
