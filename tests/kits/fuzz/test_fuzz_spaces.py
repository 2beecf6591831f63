"""Actions of every kind of space: drawn from it, written as source, and broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("gymnasium")

import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    GraphInstance,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)

from pytest_rlstability.kits.fuzz.values import STYLES, draw, invalid_actions
from pytest_rlstability.kits.fuzz.written_test import literal

INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
FLOATS = (np.float16, np.float32, np.float64)
SPACES: list[Space[Any]] = [
    Discrete(5, start=-2),
    MultiBinary((2, 3)),
    MultiDiscrete([3, 4], start=[-1, 10]),
    MultiDiscrete(np.array([[2, 3], [4, 5]])),
    Text(5),
    Text(min_length=0, max_length=3, charset="ab"),
    Tuple((Discrete(2), Box(-1, 1, (2,)))),
    Dict({"a": Discrete(2), "b": Dict({"c": Box(0, 1, (1,)), "d": Text(3)})}),
    Sequence(Discrete(4)),
    Sequence(Box(0, 1, (2,)), stack=True),
    Sequence(Dict({"x": Discrete(2)})),
    Graph(Box(-1, 1, (2,)), Discrete(3)),
    Graph(Discrete(4), None),
    OneOf((Discrete(3), Box(0, 1, (2,)))),
    Box(-1, 1, (), np.float32),
    Box(1e9, 1e10, (2,), np.float64),
    *(Box(low, high, (2,), kind) for kind in FLOATS for low, high in ((-np.inf, np.inf), (0, np.inf), (0.1, 0.1))),
    *(Box(np.iinfo(kind).min, np.iinfo(kind).max, (2,), kind) for kind in INTEGERS),
    *(Box(np.iinfo(kind).max - 1, np.iinfo(kind).max, (1,), kind) for kind in INTEGERS),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_are_in_their_space_and_invalid_ones_are_not(space: Space[Any]) -> None:
    rng = np.random.default_rng(0)
    for style in (*STYLES, "any", "any"):
        action = draw(space, rng, style)
        assert space.contains(action)
        assert space.contains(eval(literal(action), {"np": np, "GraphInstance": GraphInstance}))
    wrong = invalid_actions(space, rng)
    assert wrong
    for action in wrong:
        literal(action)
        assert action is None or not _is_in(space, action)


def _is_in(space: Space[Any], action: Any) -> bool:
    try:
        return bool(space.contains(action))
    except Exception:
        return False
