"""Stored observations that are one reused buffer fail the test; fresh arrays, copies and dropped ones do not."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium")
numpy = pytest.importorskip("numpy")

from pytest_rlstability.integrations import AliasingWrapper  # noqa: E402


class Counting(gymnasium.Env):  # type: ignore[misc]
    """Counts its steps in ``buffer``; *show* makes the observation of it."""

    def __init__(self, show: Callable[[Any], Any]) -> None:
        self.buffer = numpy.zeros((4, 4))
        self.show = show

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.buffer[:] = 0
        return self.show(self.buffer), {}

    def step(self, action: Any) -> Any:
        self.buffer += action
        return self.show(self.buffer), 0.0, False, False, {}


REUSING = [
    lambda buffer: buffer,
    lambda buffer: buffer[::2, 1:],
    lambda buffer: {"screen": buffer, "score": 3},
    lambda buffer: (1, buffer.T),
]


def array_of(observation: Any) -> Any:
    if isinstance(observation, dict):
        return observation["screen"]
    return observation[1] if isinstance(observation, tuple) else observation


@pytest.mark.parametrize("keep", [lambda array: array, lambda array: array[:1]], ids=["whole", "slice"])
@pytest.mark.parametrize("show", REUSING, ids=["array", "slice", "dict", "tuple"])
def test_a_kept_observation_that_was_overwritten_fails(show: Callable[[Any], Any], keep: Callable[[Any], Any]) -> None:
    env = AliasingWrapper(Counting(show))
    env.reset()
    kept = [keep(array_of(env.step(1)[0])) for _ in range(2)]
    with pytest.raises(pytest.fail.Exception) as caught:
        env.step(1)
    assert str(caught.value).startswith("Counting returns one buffer as many observations: that of step 1 is still")
    assert "shows what step 2 returned" in str(caught.value)
    assert ".copy()" in str(caught.value)
    assert len(kept) == 2


def test_the_last_ones_are_found_by_close() -> None:
    env = AliasingWrapper(Counting(REUSING[0]))
    kept = [env.reset()[0], env.step(1)[0]]
    with pytest.raises(pytest.fail.Exception, match="the reset before step 1 is still referenced"):
        env.close()
    del kept


def test_the_end_of_an_episode_is_found_though_the_reset_was_dropped() -> None:
    env = AliasingWrapper(Counting(REUSING[0]))
    env.reset()
    terminal = env.step(1)[0]
    env.reset()
    with pytest.raises(pytest.fail.Exception, match="shows what the reset before step 2 returned"):
        env.step(1)
    del terminal


def test_a_fresh_array_each_time_may_be_kept() -> None:
    env = AliasingWrapper(Counting(lambda buffer: buffer.copy()))
    kept = [env.reset()[0], *(env.step(1)[0] for _ in range(20))]
    env.close()
    assert [int(observation[0, 0]) for observation in kept] == list(range(21))


@pytest.mark.parametrize("show", REUSING, ids=["array", "slice", "dict", "tuple"])
def test_a_caller_that_copies_or_replaces_may_use_a_reused_buffer(show: Callable[[Any], Any]) -> None:
    env = AliasingWrapper(Counting(show))
    observation, _ = env.reset()
    copies = []
    for _ in range(20):
        following, *_ = env.step(1)
        copies.append(array_of(following).copy())
        observation = following
    env.close()
    assert [int(copy[0, 0]) for copy in copies] == list(range(1, 21))
    assert array_of(observation)[0, 0] == 20


def test_a_buffer_that_never_changes_may_be_kept() -> None:
    env = AliasingWrapper(Counting(REUSING[0]))
    kept = [env.reset()[0], *(env.step(0)[0] for _ in range(20))]
    env.close()
    assert len(kept) == 21


def test_a_kept_cycle_that_is_garbage_is_innocent() -> None:
    env = AliasingWrapper(Counting(REUSING[0]))
    env.reset()
    for _ in range(5):
        cycle: list[Any] = [env.step(1)[0]]
        cycle.append(cycle)
    env.close()


def test_observations_are_held_weakly() -> None:
    env = AliasingWrapper(Counting(lambda buffer: buffer.copy()))
    observation, _ = env.reset()
    dropped = weakref.ref(observation)
    del observation
    assert dropped() is None


def test_other_observations_pass_unchanged() -> None:
    for value in (3, "text", None, numpy.array([object()], dtype=object), [1, 2]):
        env = AliasingWrapper(Counting(lambda buffer, value=value: value))
        assert env.reset()[0] is value
        assert env.step(1)[0] is value
