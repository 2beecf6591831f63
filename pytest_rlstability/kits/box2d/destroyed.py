"""Python objects whose Box2D body, fixture or joint is destroyed: using one raises instead of reading freed memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_rlstability.model.user_code import Site

_DESTRUCTION, _HASH = "_rlstability_destruction", "_rlstability_hash"


class DestroyedObjectError(RuntimeError):
    """A body, fixture or joint was used after it was destroyed; Box2D would have read freed memory.

    The message says what it was, where it was made and where it was destroyed.
    """


@dataclass(frozen=True)
class Destruction:
    """What was destroyed, where it was created and destroyed, and by what."""

    what: str
    created: Site | None
    destroyed: Site
    because: str

    def error(self, attempt: str) -> DestroyedObjectError:
        made = _indented(self.created) if self.created is not None else "before it was watched"
        gone = _indented(self.destroyed) or "by the garbage collector, not by a line of yours"
        return DestroyedObjectError(
            f"{attempt} of a destroyed {self.what}\n  created: {made}\n  destroyed {self.because}: {gone}"
        )

    def __str__(self) -> str:
        return f"<destroyed {self.what}>"


def _indented(site: Site) -> str:
    return "\n    ".join(str(site).split("\n"))


class _Destroyed:
    """Mixed into a Box2D class: everything that would use the C++ object raises. The attributes that the user added,
    the identity and the hash stay as they were."""

    def __getattribute__(self, name: str) -> Any:
        state = object.__getattribute__(self, "__dict__")
        if name.startswith("__") or name in state:
            return object.__getattribute__(self, name)
        raise state[_DESTRUCTION].error(f"reading .{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            raise self.__dict__[_DESTRUCTION].error(f"setting .{name}")
        self.__dict__[name] = value

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return int(self.__dict__[_HASH])

    def __repr__(self) -> str:
        return str(self.__dict__[_DESTRUCTION])


_classes: dict[type, type] = {}


def mark_destroyed(wrapper: Any, destruction: Destruction) -> None:
    """Separate *wrapper* from its C++ object."""
    kind = type(wrapper)
    if issubclass(kind, _Destroyed):
        return
    state, number = wrapper.__dict__, hash(wrapper)
    if kind not in _classes:
        _classes[kind] = type(f"Destroyed{kind.__name__}", (_Destroyed, kind), {})
    wrapper.__class__ = _classes[kind]
    state.pop("this", None)
    state[_DESTRUCTION], state[_HASH] = destruction, number
