"""Observations compared, copied and summarised: any nesting of arrays, tuples, dicts and plain values."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np


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
    return digest(one) == digest(other)


def digest(value: Any) -> int:
    """A number that is the same for equal values in every process. Objects of unknown types count by their type."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return zlib.crc32(np.ascontiguousarray(value).tobytes(), zlib.crc32(f"{value.dtype}{value.shape}".encode()))
    if isinstance(value, Mapping):
        return _together("dict", [(str(name), digest(one)) for name, one in value.items()])
    if isinstance(value, tuple | list | np.ndarray):
        return _together("list", [digest(one) for one in value])
    if isinstance(value, str | bytes | int | float | bool | np.generic | None):
        return zlib.crc32(repr(value).encode())
    return zlib.crc32(type(value).__name__.encode())


def _together(kind: str, parts: list[Any]) -> int:
    return zlib.crc32(repr((kind, sorted(parts) if kind == "dict" else parts)).encode())


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
        if parts.keys() != value.keys():
            return f"{name} has the keys {sorted(value)}, its space has {sorted(parts)}"
        return next((found for key in parts if (found := misfit(parts[key], value[key], f"{name}[{key!r}]"))), name)
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
