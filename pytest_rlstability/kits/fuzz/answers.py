"""Observations and rewards: compared, copied, flattened, and checked against their spaces."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pytest_rlstability.kits.fuzz.calls import Call, Finding, Kind

_FEW = 32
"""An array with at most so many elements is compared and shown element by element."""


def copied(value: Any) -> Any:
    """A copy that shares no memory with *value*."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {name: copied(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [copied(one) for one in value]
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal; NaN equals NaN."""
    if one.__class__ is np.ndarray and other.__class__ is np.ndarray and one.dtype != object:
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return dict(fields(one)) == dict(fields(other))


def fields(value: Any, name: str = "observation") -> Iterator[tuple[str, str]]:
    """The parts of *value*, each by its name, as text that is the same for equal values in every process. Objects of
    unknown types count by their type.

    >>> dict(fields({"power": np.array([0.5, 1.0])}))
    {"observation['power'][0]": '0.5', "observation['power'][1]": '1.0'}
    """
    if isinstance(value, np.ndarray) and value.dtype != object:
        if 0 < value.size <= _FEW and value.ndim:
            for at in np.ndindex(value.shape):
                yield f"{name}[{', '.join(map(str, at))}]", str(value[at])
        else:
            yield name, f"{value.dtype}{value.shape} with checksum {zlib.crc32(np.ascontiguousarray(value).tobytes())}"
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from fields(value[key], f"{name}[{key!r}]")
    elif isinstance(value, tuple | list | np.ndarray):
        yield f"len({name})", str(len(value))
        for number, one in enumerate(value):
            yield from fields(one, f"{name}[{number}]")
    else:
        known = isinstance(value, str | bytes | int | float | np.generic | None)
        yield name, str(value) if known else type(value).__name__


def first_difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The first part in which two answers differ, with both values; empty when they are equal."""
    for name in [*one, *(name for name in other if name not in one)]:
        if one.get(name) != other.get(name):
            return f"{name}: {one.get(name, 'nothing')} and {other.get(name, 'nothing')}"
    return ""


def has_nan(value: Any) -> bool:
    """Whether a NaN is anywhere in *value*."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fc" and bool(np.isnan(value).any())
    if isinstance(value, Mapping):
        return any(has_nan(one) for one in value.values())
    if isinstance(value, tuple | list):
        return any(has_nan(one) for one in value)
    return isinstance(value, float | np.floating) and bool(value != value)


def misfit(space: Any, value: Any, name: str = "observation") -> str:
    """Why *space* does not contain *value*: which part of it, and how; empty when it does."""
    if space is None or space.contains(value):
        return ""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping) and isinstance(value, Mapping):
        if not (parts.keys() >= value.keys() if hasattr(space, "some_of") else parts.keys() == value.keys()):
            return f"{name} has the keys {sorted(value)}, its space has {sorted(parts)}"
        return next((found for key in value if (found := misfit(parts[key], value[key], f"{name}[{key!r}]"))), name)
    if isinstance(parts, tuple | list) and isinstance(value, tuple) and len(parts) == len(value):
        nested = (
            misfit(part, one, f"{name}[{number}]") for number, (part, one) in enumerate(zip(parts, value, strict=True))
        )
        return next(filter(None, nested), f"{name} is not in {space}")
    if not isinstance(value, np.ndarray) or not hasattr(space, "low"):
        return f"{name} is {_short(value)}, which is not in {space}"
    if value.shape != space.shape:
        return f"{name} has the shape {value.shape}, its space has {space.shape}"
    if not np.can_cast(value.dtype, space.dtype):
        return f"{name} is {value.dtype}, its space is {space.dtype}"
    worst = np.argwhere(~((value >= space.low) & (value <= space.high)))[0]
    at = tuple(int(index) for index in worst)
    place = f"{name}[{', '.join(map(str, at))}]" if at else name
    return f"{place} is {value[at]}, outside {space.low[at]} to {space.high[at]}"


def _short(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def misshapen(answer: Any, call: Call, number: int) -> Finding | None:
    """What is wrong with what ``reset`` or ``step`` has returned, before a look at the observation: *flags* are
    *terminated* and *truncated*."""
    wanted = ("observation, reward, terminated, truncated, info") if len(_parts(call)) == 5 else "observation, info"
    if not isinstance(answer, tuple) or len(answer) != len(_parts(call)):
        return Finding(Kind.SPACE, "answer", f"{call.name} returned {_short(answer)}, not ({wanted})", number)
    for name, part in zip(_parts(call), answer, strict=True):
        if name == "info" and not isinstance(part, Mapping):
            return Finding(Kind.SPACE, "info", f"the info of {call.name} is {_short(part)}, not a dict", number)
        if name == "flag" and not is_flag(part):
            text = f"terminated or truncated of {call.name} is {_short(part)}, not a bool"
            return Finding(Kind.SPACE, "flag", text, number)
    return None


def _parts(call: Call) -> tuple[str, ...]:
    return ("", "info") if call.op.name == "RESET" else ("", "", "flag", "flag", "info")


def is_flag(value: Any) -> bool:
    """Whether *value* can stand for True or False: 0 and 1 do, None and a text do not."""
    return isinstance(value, bool | np.bool_) or (isinstance(value, int | np.integer | np.ndarray) and value in (0, 1))


def wrong_answer(space: Any, observation: Any, reward: Any, call: Call, number: int) -> Finding | None:
    """What is wrong with an observation or a reward by itself."""
    if has_nan(observation):
        return Finding(Kind.NAN, "observation", f"the observation of {call.name} has a NaN", number)
    if reason := misfit(space, observation):
        field = reason.split(" ")[0].split("[")[0]
        return Finding(Kind.SPACE, field, f"{reason}, after {call.name}", number)
    if reason := _wrong_reward(reward):
        kind = Kind.NAN if "NaN" in reason else Kind.SPACE
        return Finding(kind, "reward", f"the reward of {call.name} {reason}", number)
    return None


def _wrong_reward(reward: Any) -> str:
    try:
        numbers = np.asarray(reward, dtype=float)
    except (TypeError, ValueError):
        return f"is {reward!r}, which is not a number"
    if np.isnan(numbers).any():
        return "is NaN"
    return "" if np.isfinite(numbers).all() else f"is {reward}, which is not finite"


def change(now: Any, before: Any) -> str:
    """Which part of an observation has changed, and how."""
    if isinstance(now, np.ndarray) and isinstance(before, np.ndarray) and now.shape == before.shape and now.ndim:
        changed = np.argwhere(now != before)
        if len(changed):
            at = tuple(int(index) for index in changed[0])
            return f"element {', '.join(map(str, at))} was {before[at]} and is {now[at]}"
    return first_difference(dict(fields(before)), dict(fields(now))) or "its content has changed"
