"""What becomes of a Python object whose Box2D body, fixture or joint is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_rlstability.sites import Site

_EPITAPH, _HASH = "_rlstability_epitaph", "_rlstability_hash"


class DestroyedObjectError(RuntimeError):
    """A body, fixture or joint was used after it was destroyed; Box2D would have read freed memory.

    The message says what it was, where it was made and where it was destroyed.
    """


@dataclass(frozen=True)
class Epitaph:
    """What there is to say about something that was destroyed."""

    what: str
    created: Site | None
    destroyed: Site
    because: str

    def error(self, attempt: str) -> DestroyedObjectError:
        made = _indented(self.created) if self.created is not None else "before it was watched"
        gone = _indented(self.destroyed) or "no line of yours: it was garbage-collected"
        return DestroyedObjectError(
            f"{attempt} of a destroyed {self.what}\n  created: {made}\n  destroyed {self.because}: {gone}"
        )

    def __str__(self) -> str:
        return f"<destroyed {self.what}>"


def _indented(site: Site) -> str:
    return "\n    ".join(str(site).split("\n"))


class _Destroyed:
    """Mixed into a class of Box2D's: everything that would reach for the C++ object raises instead, while the
    attributes that the user hung on it, its identity and its hash stay as they were."""

    def __getattribute__(self, name: str) -> Any:
        state = object.__getattribute__(self, "__dict__")
        if name.startswith("__") or name in state:
            return object.__getattribute__(self, name)
        raise state[_EPITAPH].error(f"reading .{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            raise self.__dict__[_EPITAPH].error(f"setting .{name}")
        self.__dict__[name] = value

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return int(self.__dict__[_HASH])

    def __repr__(self) -> str:
        return str(self.__dict__[_EPITAPH])


_classes: dict[type, type] = {}


def bury(wrapper: Any, epitaph: Epitaph) -> None:
    """Cut *wrapper* off from its C++ object, for good."""
    kind = type(wrapper)
    if issubclass(kind, _Destroyed):
        return
    state, number = wrapper.__dict__, hash(wrapper)
    if kind not in _classes:
        _classes[kind] = type(f"Destroyed{kind.__name__}", (_Destroyed, kind), {})
    wrapper.__class__ = _classes[kind]
    state.pop("this", None)
    state[_EPITAPH], state[_HASH] = epitaph, number
