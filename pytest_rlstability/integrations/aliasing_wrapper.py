"""A check for Gymnasium envs that return the same buffer as every observation."""

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

from pytest_rlstability.model.references import drop_stale_references
from pytest_rlstability.model.user_code import Site, here

_REMEMBERED = 8


@dataclass
class _Given:
    """An array that was returned to the caller, and its checksum then."""

    array: weakref.ref[Any]
    call: str
    site: Site
    checksum: int
    overwritten_by: str = ""

    def is_changed(self) -> bool:
        array = self.array() if self.overwritten_by else None
        return array is not None and _checksum(array) != self.checksum


class AliasingWrapper(gymnasium.Wrapper):  # type: ignore[misc]
    """*env*, failing the test when an observation that is still referenced has been overwritten by a later one.

    If an env returns its own buffer every time, all stored observations show the newest one. The check runs when the
    next ``step``, ``reset`` or ``close`` begins: a caller that copies, or keeps only the newest, has dropped the one
    before by then. It sees NumPy arrays, alone or in dicts and tuples, and the eight that were returned last.

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
        if not any(given.is_changed() for given in self._given):
            return
        drop_stale_references()
        changed = next((given for given in self._given if given.is_changed()), None)
        if changed is not None:
            self._given.clear()
            pytest.fail(_report(type(self.env.unwrapped).__name__, changed), pytrace=False)

    def _hand_out(self, observation: Any, call: str) -> Any:
        for array in _arrays(observation):
            for given in self._given:
                earlier = given.array()
                if earlier is not None and given.call != call and numpy.shares_memory(earlier, array):
                    given.overwritten_by = call
        return self._viewed(observation, call, here())

    def _viewed(self, observation: Any, call: str, site: Site) -> Any:
        """*observation* with every array replaced by a new view, to which only the caller refers."""
        if isinstance(observation, dict):
            return {name: self._viewed(part, call, site) for name, part in observation.items()}
        if type(observation) is tuple:
            return tuple(self._viewed(part, call, site) for part in observation)
        if not _is_array(observation):
            return observation
        # Not .view(): slices of that would refer to the env's buffer and not keep the view alive.
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
        f"{env} returns one buffer as many observations: that of {given.call} is still referenced, and shows what "
        f"{given.overwritten_by} returned\n  taken at {given.site.innermost}\n"
        "  Return .copy() from the env, or keep .copy() of what it returns."
    )
