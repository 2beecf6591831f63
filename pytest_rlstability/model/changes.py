"""What has changed in plain data since it was last looked at, as something that can be sent and applied elsewhere.

A list that grew is sent as what was appended, a number as a difference: two processes may both have changed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

_LOOKED_AT = 100
"""How many of a container's newest entries are compared. Older ones count as unchanged, so that looking takes no longer
the more there is."""
_PARTS = 20_000
_ATOMS = (str, int, float, complex, bool, bytes, type(None))

_REDUCE_EX: Any = object.__reduce_ex__
_REDUCE: Any = object.__reduce__

Change = tuple[str, Any, Any]


class Frozen(NamedTuple):
    """What a value looked like. *kind* is ``atom``, ``list``, ``dict``, ``set``, ``object`` or ``other``."""

    kind: str
    value: Any
    size: int = 0


class TooLargeError(Exception):
    """A value of more parts than can be looked at after every test."""


def freeze(value: Any, is_reference: Callable[[Any], bool]) -> Frozen:
    """Remember *value*. What *is_reference* says of is not looked into. Raises ``TooLargeError``."""
    return _Freezer(is_reference).freeze(value)


class _Freezer:
    def __init__(self, is_reference: Callable[[Any], bool]) -> None:
        self._is_reference = is_reference
        self._inside: set[int] = set()
        self._left = _PARTS

    def freeze(self, value: Any) -> Frozen:
        if isinstance(value, _ATOMS):
            return Frozen("atom", (type(value), value))
        self._left -= 1
        if not self._left:
            raise TooLargeError
        if id(value) in self._inside or self._is_reference(value):
            return Frozen("other", id(value))
        self._inside.add(id(value))
        try:
            return self._look_inside(value)
        finally:
            self._inside.discard(id(value))

    def _look_inside(self, value: Any) -> Frozen:
        if type(value) is list:
            return Frozen("list", [self.freeze(one) for one in value[-_LOOKED_AT:]], len(value))
        if isinstance(value, dict):
            newest = islice(reversed(value), _LOOKED_AT)
            return Frozen("dict", {key: self.freeze(value[key]) for key in newest}, len(value))
        if type(value) is set:
            return Frozen("set", frozenset(value), len(value))
        if isinstance(value, tuple):
            return Frozen("tuple", [self.freeze(one) for one in value])
        if has_plain_attributes(value):
            return Frozen("object", {name: self.freeze(one) for name, one in vars(value).items()})
        is_container = type(value).__module__ == "collections"
        return Frozen("other", id(value), len(value) if is_container else 0)


def has_plain_attributes(value: Any) -> bool:
    """Whether *value* is all in its attributes: nothing of its class says how it is copied."""
    kind: Any = type(value)
    is_plain = kind.__reduce_ex__ is _REDUCE_EX and kind.__reduce__ is _REDUCE
    return is_plain and isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, type)


def change_between(old: Frozen | None, new: Frozen, value: Any) -> Change:
    """How to get from *old* to *new*, which *value* looks like."""
    if old is None or old.kind != new.kind:
        return ("replace", value, None)
    match new.kind:
        case "atom" if new.value[0] is old.value[0] in (int, float):
            return ("add", new.value[1] - old.value[1], None)
        case "list" if new.size >= old.size:
            first = new.size - len(new.value)
            known = {number: one for number, one in enumerate(old.value, old.size - len(old.value)) if number >= first}
            changed = {
                number: change_between(one, new.value[number - first], value[number])
                for number, one in known.items()
                if one != new.value[number - first]
            }
            return ("extend", changed, value[old.size :])
        case "dict" | "object":
            entries = value if new.kind == "dict" else vars(value)
            changed = {
                key: change_between(old.value.get(key), one, entries[key])
                for key, one in new.value.items()
                if old.value.get(key) != one
            }
            return (new.kind, changed, [key for key in old.value if key not in entries])
        case "set":
            return ("set", new.value - old.value, old.value - new.value)
    return ("replace", value, None)


def apply_change(change: Change, value: Any) -> Any:
    """*value* with *change*; containers are changed in place. Raises where *value* is of another kind."""
    what, first, second = change
    match what:
        case "add":
            return first + value
        case "extend":
            for number, inner in first.items():
                value[number] = apply_change(inner, value[number])
            value.extend(second)
        case "dict" | "object":
            entries = value if what == "dict" else vars(value)
            _apply_entries(first, second, entries)
        case "set":
            value.update(first)
            value.difference_update(second)
        case _:
            return first
    return value


def _apply_entries(changed: dict[Any, Change], removed: Iterable[Any], entries: dict[Any, Any]) -> None:
    for key, change in changed.items():
        entries[key] = apply_change(change, entries.get(key, 0 if change[0] == "add" else None))
    for key in removed:
        entries.pop(key, None)
