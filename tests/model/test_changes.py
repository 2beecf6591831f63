"""What changed in plain data, and how it is applied to another copy of it."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from typing import Any

import pytest

from pytest_rlstability.model import changes


class Record:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def frozen(value: Any) -> changes.Frozen:
    return changes.freeze(value, lambda one: False)


CASES: list[tuple[Any, Any]] = [
    ([1, 2], [1, 2, 3]),
    ([1, {"a": [1]}], [1, {"a": [1, 2]}]),
    ([1, 2, 3], [1]),
    ({"a": 1}, {"a": 2, "b": {"c": 1}}),
    ({"a": 1, "b": 2}, {"b": 2}),
    ({1, 2}, {2, 3}),
    ((1, 2), (1, 3)),
    (3, 7),
    (None, "text"),
    (True, False),
    (defaultdict(list, a=[1]), defaultdict(list, a=[1, 2], b=[3])),
    (Counter("a"), Counter("aab")),
    ([*range(500)], [*range(501)]),
    ({"x": Record(results={"setup": None})}, {"x": Record(results={"setup": "passed"}, more=1)}),
]


@pytest.mark.parametrize("before, after", CASES)
def test_a_change_leads_from_one_state_to_the_next(before, after):
    old, new = frozen(before), frozen(after)
    assert old != new
    there = copy.deepcopy(before)
    assert frozen(changes.apply_change(changes.change_between(old, new, after), there)) == new


@pytest.mark.parametrize("before, after, elsewhere, both", [
    ([1], [1, 2], [1, 9], [1, 9, 2]),
    ({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}, {"a": 1, "b": 2, "c": 3}),
    ({1}, {1, 2}, {1, 9}, {1, 2, 9}),
    (10, 11, 15, 16),
])  # fmt: skip
def test_what_two_processes_have_changed_is_kept(before, after, elsewhere, both):
    change = changes.change_between(frozen(before), frozen(after), after)
    assert changes.apply_change(change, elsewhere) == both


def test_a_container_stays_the_same_object():
    there = kept = {"results": [1]}
    change = changes.change_between(frozen({"results": [1]}), frozen({"results": [1, 2]}), {"results": [1, 2]})
    assert changes.apply_change(change, there) is kept
    assert kept == {"results": [1, 2]}


def test_an_object_that_holds_itself_ends():
    value = Record(items=[])
    value.items.append(value)
    assert frozen(value) == frozen(value)


def test_what_is_too_large_is_not_looked_at():
    with pytest.raises(changes.TooLargeError):
        frozen([[[[*map(Record, ())], *([Record(a=1)] * 99)] for _ in range(99)] for _ in range(99)])
