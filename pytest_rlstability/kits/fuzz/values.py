"""Actions drawn from Gymnasium spaces, extremes included, and values that no space allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

Style = Literal["any", "low", "high", "zero", "tiny", "edges"]
"""How a value is drawn: anywhere, at a bound, near zero, or with a random bound for every element."""
STYLES: tuple[Style, ...] = ("low", "high", "zero", "tiny", "edges")

_UNBOUNDED = 1e6
"""Where a space has no bound, values of *low* and *high* lie this far out."""
_MOST_ENUMERATED = 256
_LONGEST = 4
"""Elements of a drawn sequence, nodes of a drawn graph."""


def draw(space: Any, rng: np.random.Generator, style: Style = "any") -> Any:
    """A member of *space*. A space of a kind that is not known here draws for itself, by its ``sample``."""
    drawer = _DRAWERS.get(type(space).__name__)
    if drawer is None:
        space.seed(int(rng.integers(2**31)))
        return space.sample()
    return drawer(space, rng, style)


def action_table(space: Any, rng: np.random.Generator, size: int) -> list[Any]:
    """The actions of one attempt. Those of a small discrete space are all there, in order; of any other the extremes
    come first."""
    if type(space).__name__ == "Discrete" and space.n <= _MOST_ENUMERATED:
        return [np.int64(space.start + number) for number in range(space.n)]
    return [draw(space, rng, style) for style in STYLES] + [draw(space, rng) for _ in range(size - len(STYLES))]


def invalid_actions(space: Any, rng: np.random.Generator) -> list[Any]:
    """Values that *space* does not contain, as a bug in a policy makes them; of a nested space, with one part wrong."""
    usual = draw(space, rng)
    tries: list[Any] = [None, "up", -1, 2**31, 10**30, 1.5, float("nan"), [], {}, np.int64(-(2**40)), b"\0"]
    if isinstance(usual, np.ndarray):
        wide: Any = usual.astype(np.float64)
        tries += [
            np.full_like(wide, np.nan),
            np.full_like(wide, np.inf),
            wide * 1e30 - 1e30,
            wide.ravel()[:0],
            wide[None],
        ]
    parts: Any = getattr(space, "spaces", None)
    if isinstance(usual, dict):
        tries = [{key: one for key, one in usual.items() if key != gone} for gone in usual]
        tries += [{**usual, key: bad} for key in usual for bad in invalid_actions(parts[key], rng)]
    elif isinstance(usual, tuple) and isinstance(parts, tuple) and len(usual) == len(parts):
        tries += [(*usual[:at], bad, *usual[at + 1 :]) for at in range(len(parts))
                  for bad in invalid_actions(parts[at], rng)]  # fmt: skip
    return [one for one in tries if not _contains(space, one)]


def _contains(space: Any, value: Any) -> bool:
    try:
        return bool(space.contains(value))
    except Exception:
        return False


def _discrete(space: Any, rng: np.random.Generator, style: Style) -> Any:
    last = int(space.n) - 1
    at = {"low": 0, "high": last, "zero": 0, "tiny": min(1, last)}.get(style)
    if at is None:
        at = int(rng.integers(last + 1)) if style == "any" else last * int(rng.integers(2))
    return np.int64(space.start + at)


def _box(space: Any, rng: np.random.Generator, style: Style) -> Any:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    far_out = min(_UNBOUNDED, float(np.finfo(space.dtype).max)) if space.dtype.kind == "f" else _UNBOUNDED
    floor, ceiling = np.maximum(low, -far_out), np.minimum(high, far_out)
    # Bounds may both lie further out than that.
    floor, ceiling = np.minimum(floor, high), np.maximum(ceiling, low)
    if style == "low":
        value = floor
    elif style == "high":
        value = ceiling
    elif style == "edges":
        value = np.where(rng.random(space.shape) < 0.5, floor, ceiling)
    elif style in ("zero", "tiny"):
        value = np.clip(np.full(space.shape, 0.0 if style == "zero" else 1e-30), floor, ceiling)
    else:
        # Without bounds most values are small, as a policy's are.
        near, far = np.maximum(floor, -100.0), np.minimum(ceiling, 100.0)
        near, far = np.where(near < far, near, floor), np.where(near < far, far, ceiling)
        value = near + (far - near) * rng.random(space.shape)
        if np.issubdtype(space.dtype, np.integer):
            value = np.floor(near + (far - near + 1) * rng.random(space.shape))
    # Clipped in the space's own type: rounding to float32 may pass a bound.
    with np.errstate(invalid="ignore"):
        return np.asarray(np.clip(value.astype(space.dtype), space.low, space.high))


def _multi_binary(space: Any, rng: np.random.Generator, style: Style) -> Any:
    fixed = {"low": 0, "zero": 0, "high": 1}.get(style)
    value = rng.integers(0, 2, space.shape) if fixed is None else np.full(space.shape, fixed)
    return value.astype(space.dtype)


def _multi_discrete(space: Any, rng: np.random.Generator, style: Style) -> Any:
    last = np.asarray(space.nvec) - 1
    if style in ("low", "zero"):
        value = np.zeros_like(last)
    elif style == "tiny":
        value = np.minimum(last, 1)
    elif style == "high":
        value = last
    else:
        value = rng.integers(0, last + 1) if style == "any" else np.where(rng.random(last.shape) < 0.5, 0, last)
    return (value + getattr(space, "start", 0)).astype(space.dtype)


def _text(space: Any, rng: np.random.Generator, style: Style) -> str:
    length = {"low": space.min_length, "zero": space.min_length, "high": space.max_length}.get(style)
    if length is None:
        length = int(rng.integers(space.min_length, space.max_length + 1))
    letters = sorted(space.character_set)
    return "".join(letters[number] for number in rng.integers(0, len(letters), length))


def _tuple(space: Any, rng: np.random.Generator, style: Style) -> Any:
    return tuple(draw(one, rng, style) for one in space.spaces)


def _dict(space: Any, rng: np.random.Generator, style: Style) -> Any:
    return {name: draw(one, rng, style) for name, one in space.spaces.items()}


def _sequence(space: Any, rng: np.random.Generator, style: Style) -> Any:
    length = {"low": 0, "zero": 0, "tiny": 1, "high": _LONGEST}.get(style)
    values = [
        draw(space.feature_space, rng, style) for _ in range(rng.integers(_LONGEST) if length is None else length)
    ]
    if not space.stack:
        return tuple(values)
    from gymnasium.vector.utils import concatenate, create_empty_array

    room = create_empty_array(space.feature_space, len(values))
    return concatenate(space.feature_space, values, room) if values else room


def _graph(space: Any, rng: np.random.Generator, style: Style) -> Any:
    space.seed(int(rng.integers(2**31)))
    nodes = {"low": 1, "zero": 1, "tiny": 1, "high": 2 * _LONGEST}.get(style) or int(rng.integers(1, _LONGEST + 1))
    return space.sample(num_nodes=nodes)


def _one_of(space: Any, rng: np.random.Generator, style: Style) -> Any:
    which = {"low": 0, "zero": 0, "high": len(space.spaces) - 1}.get(style)
    which = int(rng.integers(len(space.spaces))) if which is None else which
    return np.int64(which), draw(space.spaces[which], rng, style)


_DRAWERS: dict[str, Callable[[Any, np.random.Generator, Style], Any]] = {
    "Discrete": _discrete, "Box": _box, "MultiBinary": _multi_binary, "MultiDiscrete": _multi_discrete, "Text": _text,
    "Tuple": _tuple, "Dict": _dict, "Sequence": _sequence, "Graph": _graph, "OneOf": _one_of,
}  # fmt: skip
