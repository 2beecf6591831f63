"""How two snapshots of a model differ, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""How far predictions may be apart where the processor's instructions or the number of threads differ."""

_MAX_LINES = 8


def differences(expected: Mapping[str, Any], found: Mapping[str, Any], *, exact: bool) -> list[str]:
    """What is not the same in *found*, one line per array, worst kinds first.

    Everything stored must be the same bit for bit. What is computed (``predict/...``) must be too when *exact*, and
    within the stated tolerance otherwise.
    """
    lines: list[str] = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            lines.append(f"{name} is {'missing' if name in expected else 'new'} after loading")
        else:
            tolerant = not exact and name.startswith("predict/")
            lines += _compare(name, expected[name], found[name], tolerant)
    if len(lines) > _MAX_LINES:
        lines = [*lines[:_MAX_LINES], f"and {len(lines) - _MAX_LINES} more differences"]
    return lines


def fact_differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """What plain facts (class, spaces, settings) changed on the way."""
    for name in ("class", "observation_space", "action_space"):
        if name in expected and expected[name] != found.get(name):
            yield f"{name} was {expected[name]}, is {found.get(name)}"
    for group in ("settings", "normalisation"):
        before, after = expected.get(group, {}), found.get(group, {})
        for name in before.keys() & after.keys():
            if before[name] != after[name] and not (before[name] != before[name] and after[name] != after[name]):
                yield f"{name} was {before[name]!r}, is {after[name]!r}"


def not_finite(arrays: Mapping[str, Any]) -> list[str]:
    """The arrays that hold a NaN or an infinity."""
    import numpy

    return [
        f"{name} is not finite"
        for name, array in arrays.items()
        if array.dtype.kind == "f" and not numpy.isfinite(array).all()
    ]


def _compare(name: str, expected: Any, found: Any, tolerant: bool) -> Iterator[str]:
    import numpy

    if expected.shape != found.shape or expected.dtype != found.dtype:
        yield f"{name} was {_form(expected)}, is {_form(found)}"
        return
    if tolerant and expected.dtype.kind == "f":
        same = numpy.isclose(found, expected, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    else:
        same = (found == expected) | ((found != found) & (expected != expected))
    if not same.all():
        wrong = numpy.argwhere(~same)
        place = tuple(int(index) for index in wrong[0])
        where = f" at {list(place)}" if place else ""
        yield (
            f"{name}: {len(wrong)} of {expected.size} values differ, first{where}:"
            f" {expected[place]!s} was saved, {found[place]!s} came back"
        )


def _form(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"
