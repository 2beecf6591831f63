"""Values as Python source, for the test that is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def literal(value: Any) -> str:
    """Source that makes *value* again.

    >>> literal(np.int64(3)), literal(np.array([0.5, np.inf], dtype=np.float32))
    ('3', 'np.array([0.5, np.inf], dtype=np.float32)')
    """
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, np.generic):
        return literal(value.item())
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(name)}: {literal(one)}" for name, one in value.items()) + "}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a GraphInstance
        fields = (f"{name}={literal(getattr(value, name))}" for name in value._fields)
        return f"{type(value).__name__}({', '.join(fields)})"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(literal, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return repr(value)


def _array(value: np.ndarray[Any, Any]) -> str:
    first = value.flat[0] if value.size else 0
    if value.size > 8 and (value == first).all():
        return f"np.full({value.shape}, {literal(first)}, dtype=np.{value.dtype})"
    return f"np.array({_numbers(value)}, dtype=np.{value.dtype})"


def _numbers(value: Any) -> str:
    """Nested lists, each number as short as its type allows: ``0.1`` for a float32 that prints so."""
    if isinstance(value, np.ndarray) and value.ndim:
        return "[" + ", ".join(map(_numbers, value)) + "]"
    number = value[()] if isinstance(value, np.ndarray) else value
    return _float(float(str(number))) if isinstance(number, np.floating) else repr(number.item())


def _float(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": 'float("nan")', "inf": "np.inf", "-inf": "-np.inf"}[str(value)].replace('float("nan")', "np.nan")
    return repr(value)
