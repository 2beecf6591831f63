"""The Python objects for bodies, fixtures and joints. Box2D makes a new one whenever one is asked for. When what they
stand for is destroyed, using one raises instead of reading freed memory."""

from __future__ import annotations

import gc
from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from pytest_rlstability.model.user_code import Site

Place = tuple[str, int]
"""Kind and address of the C++ object that a wrapper stands for."""
ById = WeakValueDictionary[int, Any]
_DESTRUCTION, _HASH = "_rlstability_destruction", "_rlstability_hash"


class DestroyedObjectError(RuntimeError):
    """A body, fixture or joint was used after it was destroyed; Box2D would have read freed memory."""


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


def _mark_destroyed(wrapper: Any, destruction: Destruction) -> None:
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


class LiveWrappers:
    """Knows every wrapper that is still referenced, to mark all that stand for an object when it is destroyed.
    Wrappers are indexed by address only when something is destroyed, never in a step."""

    def __init__(self) -> None:
        self._fresh: ById = WeakValueDictionary()
        self._by_place: defaultdict[Place, ById] = defaultdict(WeakValueDictionary)

    def make(self, kind: type, *arguments: Any, **keywords: Any) -> Any:
        """``__new__`` of the classes of wrappers."""
        wrapper: Any = object.__new__(kind)
        self._fresh[id(wrapper)] = wrapper
        return wrapper

    def find_existing(self) -> None:
        """Remember the wrappers that were made before this object began to watch."""
        kinds = classes()
        known = {*self._fresh, *(key for home in self._by_place.values() for key in home)}
        for thing in gc.get_objects():
            if issubclass(type(thing), kinds) and id(thing) not in known:
                self._fresh[id(thing)] = thing

    def mark_destroyed(self, place: Place, destruction: Destruction) -> None:
        """Mark every wrapper of the object that was at *place*."""
        self._index()
        for wrapper in list(self._by_place.pop(place, {}).values()):
            _mark_destroyed(wrapper, destruction)

    def _index(self) -> None:
        for key, wrapper in list(self._fresh.items()):
            if "this" in wrapper.__dict__:
                self._by_place[place_of(wrapper)][key] = wrapper
        self._fresh.clear()


def classes() -> tuple[Any, ...]:
    import Box2D

    return Box2D.b2Body, Box2D.b2Fixture, Box2D.b2Joint


def place_of(thing: Any) -> Place:
    """What *thing* stands for; equal for all wrappers of one body, fixture or joint."""
    kinds = zip(("body", "fixture", "joint"), classes(), strict=True)
    return next(name for name, kind in kinds if isinstance(thing, kind)), int(thing.this)
