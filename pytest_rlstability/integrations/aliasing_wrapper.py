"""A Gymnasium env that is caught handing out one buffer as many observations."""

from __future__ import annotations

import weakref
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy
import pytest

from pytest_rlstability.pyboy.views import let_go
from pytest_rlstability.sites import Site, here

_REMEMBERED = 8


@dataclass
class _Given:
    """An array that was handed out: weakly held, with what it looked like."""

    array: weakref.ref[Any]
    call: str
    site: Site
    checksum: int
    overwritten_by: str = ""

    def is_spoilt(self) -> bool:
        array = self.array() if self.overwritten_by else None
        return array is not None and _checksum(array) != self.checksum


class AliasingWrapper(gymnasium.Wrapper):  # type: ignore[misc]
    """*env*, failing the test when an observation that is still referenced has been overwritten by a later one.

    An env that returns its own buffer every time makes all stored observations the newest one. Looked at when the next
    ``step``, ``reset`` or ``close`` begins: by then a caller that copies, or keeps none but the newest, has let go of
    the one before. Knows NumPy arrays, alone or in dicts and tuples, and the eight that were handed out last.

    >>> env = AliasingWrapper(gymnasium.make("CartPole-v1"))
    >>> observations = [env.reset(seed=1)[0], env.step(0)[0], env.step(1)[0]]
    >>> env.close()
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._given: deque[_Given] = deque(maxlen=_REMEMBERED)
        self._steps = 0

    def reset(self, **how: Any) -> Any:
        self._look()
        observation, info = self.env.reset(**how)
        return self._hand_out(observation, f"the reset before step {self._steps + 1}"), info

    def step(self, action: Any) -> Any:
        self._look()
        observation, *rest = self.env.step(action)
        self._steps += 1
        return self._hand_out(observation, f"step {self._steps}"), *rest

    def close(self) -> None:
        self._look()
        super().close()

    def _look(self) -> None:
        if not any(given.is_spoilt() for given in self._given):
            return
        let_go()
        spoilt = next((given for given in self._given if given.is_spoilt()), None)
        if spoilt is not None:
            self._given.clear()
            pytest.fail(_report(type(self.env.unwrapped).__name__, spoilt), pytrace=False)

    def _hand_out(self, observation: Any, call: str) -> Any:
        for array in _arrays(observation):
            for given in self._given:
                earlier = given.array()
                if earlier is not None and given.call != call and numpy.shares_memory(earlier, array):
                    given.overwritten_by = call
        return self._viewed(observation, call, here())

    def _viewed(self, observation: Any, call: str, site: Site) -> Any:
        """*observation* with every array replaced by a view of its own, which only the caller refers to."""
        if isinstance(observation, dict):
            return {name: self._viewed(part, call, site) for name, part in observation.items()}
        if type(observation) is tuple:
            return tuple(self._viewed(part, call, site) for part in observation)
        if not _is_array(observation):
            return observation
        # Not .view(): slices of that would refer to the env's buffer and let the view go.
        view = numpy.lib.stride_tricks.as_strided(observation)
        self._given.append(_Given(weakref.ref(view), call, site, _checksum(view)))
        return view


def _is_array(value: Any) -> bool:
    return type(value) is numpy.ndarray and not value.dtype.hasobject


def _arrays(observation: Any) -> Iterator[Any]:
    if isinstance(observation, (dict, tuple)):
        for part in observation.values() if isinstance(observation, dict) else observation:
            yield from _arrays(part)
    elif _is_array(observation):
        yield observation


def _checksum(array: Any) -> int:
    return zlib.crc32(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8))


def _report(env: str, given: _Given) -> str:
    return (
        f"{env} hands out one buffer as many observations: that of {given.call} is still referenced, and shows what "
        f"{given.overwritten_by} returned\n  taken at {given.site.innermost}\n"
        "  Return .copy() from the env, or keep .copy() of what it returns."
    )
