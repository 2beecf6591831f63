"""Which calls are compared with which, and what is said of the first difference."""

from __future__ import annotations

import pytest

pytest.importorskip("gymnasium")

import numpy as np

from pytest_rlstability.kits.fuzz.calls import Call, Op
from pytest_rlstability.kits.fuzz.differences import alone, beside_another, compare, seeded_calls

CALLS = seeded_calls([0, 1], None, np.random.default_rng(0), 4)


def test_alone_is_the_last_episode_on_a_new_env() -> None:
    assert [call.op for call in CALLS] == [Op.MAKE, Op.RESET, *[Op.STEP] * 4, Op.RESET, *[Op.STEP] * 2]
    assert alone(CALLS) == (Call(Op.MAKE), *CALLS[-3:])


def test_the_same_episode_is_played_beside_another_env() -> None:
    mixed = beside_another(CALLS)
    assert tuple(call for call in mixed if call.env == 0) == alone(CALLS)
    assert [call.op for call in mixed if call.env == 1] == [Op.MAKE, Op.RESET, Op.STEP, Op.STEP]
    assert alone(mixed) == alone(CALLS)


def test_the_first_difference_is_named() -> None:
    one = [(1, {"observation['x'][2]": "0.5", "reward": "0.0"}), (2, {"reward": "1.0"})]
    other = [(1, {"observation['x'][2]": "0.25", "reward": "0.0"}), (2, {"reward": "2.0"})]
    assert compare(CALLS, one, one).finding is None
    played = compare(CALLS, one, other)
    assert played.finding is not None
    assert "another observation['x'][2]: 0.5 and 0.25, in another process, at call 2, reset()" in played.finding.text
    assert played.calls == tuple(CALLS[:2])
