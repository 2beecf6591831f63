"""Which connections a fault strikes, in which direction, and after how many bytes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal, get_args

from pytest_rlstability.kits.proxy.faults import Effect, make_effect
from pytest_rlstability.model.units import parse_size

Direction = Literal["downstream", "upstream"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


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
