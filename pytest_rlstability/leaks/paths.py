"""The path from something a person can name to an object that is still alive."""

from __future__ import annotations

import gc
import os
import re
import sys
import time
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

Kind = TypeVar("Kind")
_KEY = re.compile(r"^\['(\w+)'\]")
"""How a step through a dict begins, which is an attribute when the dict is an object's own."""
MOST_HOPS = 12
MOST_WIDTH = 16
MOST_SECONDS = 4.0
_LAST_ARGUMENT = object()
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@dataclass(frozen=True)
class Path:
    """Who holds an object: a root with a name, and the steps from it."""

    root: str
    steps: str = ""

    def __str__(self) -> str:
        return f"{self.root}{self.steps}"


@dataclass(frozen=True)
class _Node:
    thing: object
    steps: str
    variable: str = ""
    """The closure variable that the steps start from, while *thing* is the cell or the tuple of cells."""
    cell: object = None


def path_to(target: object, hidden: Iterable[object] = ()) -> Path | None:
    """The shortest path from a module, a class, a closure or a local variable to *target*; None when none was found.

    *hidden* are containers of the caller's own that refer to it. Needs ``gc.unfreeze()``: frozen objects are not
    looked at.
    """
    search = _Search([*hidden, target])
    deadline = time.monotonic() + MOST_SECONDS
    root = search.root_of(_Node(target, ""))
    if root is not None:
        return root
    level = [_Node(target, "")]
    for _ in range(MOST_HOPS):
        above = search.one_up(level)
        if isinstance(above, Path):
            return above
        if not above or time.monotonic() > deadline:
            return None
        level = above
    return None


def is_referred_to(target: object, hidden: Iterable[object] = ()) -> bool:
    """Whether anything but *hidden* refers to *target*, path or no path."""
    search = _Search([*hidden, target])
    node = _Node(target, "")
    return search.root_of(node) is not None or bool(search.one_up([node]))


class _Search:
    def __init__(self, hidden: list[object]) -> None:
        self._seen = {id(thing) for thing in hidden} | {id(hidden)}
        self._locals, frames = _local_variables()
        self._seen |= frames
        self._modules = {
            id(vars(module)): name for name, module in list(sys.modules.items()) if isinstance(module, types.ModuleType)
        }

    def root_of(self, node: _Node) -> Path | None:
        thing = node.thing
        if id(thing) in self._modules:
            return None  # its steps would lack the variable's name: see _up
        if _is(thing, types.FunctionType) and node.variable:
            return _function_root(thing, node)
        if id(thing) in self._locals:
            return Path(self._locals[id(thing)], node.steps)
        if _is(thing, types.ModuleType):
            return Path(thing.__name__, node.steps)
        if _is(thing, type):
            return Path(f"{thing.__module__}.{thing.__qualname__}", node.steps)
        if _is(thing, types.FunctionType):
            return _function_root(thing, node)
        return None

    def one_up(self, level: list[_Node]) -> list[_Node] | Path:
        """The first root that refers to something in *level*, or else everything that does."""
        things = [node.thing for node in level]
        nodes = {id(node.thing): node for node in level}
        referrers = gc.get_referrers(*things, _LAST_ARGUMENT)
        self._seen.update((id(things), id(level), id(nodes), id(referrers)))
        self._seen.update(id(vars(node)) for node in level)
        above: list[_Node] = []
        for holder in referrers:
            if id(holder) in self._seen or _is(holder, (types.FrameType, _Node)) or _is_ours(holder):
                continue
            self._seen.add(id(holder))
            below = next((nodes[id(held)] for held in gc.get_referents(holder) if id(held) in nodes), None)
            if below is None:
                continue
            node = self._up(holder, below)
            root = self.root_of(node)
            if root is not None:
                return root
            if len(above) < MOST_WIDTH:
                above.append(node)
        return above

    def _up(self, holder: object, below: _Node) -> _Node:
        if _is(holder, dict) and id(holder) in self._modules:
            module = sys.modules[self._modules[id(holder)]]
            return _Node(module, f".{_key_of(holder, below.thing)}{below.steps}")
        if _is(holder, types.CellType):
            return _Node(holder, below.steps, cell=holder)
        if _is(below.cell, types.CellType) and _is(holder, tuple):
            return _Node(holder, below.steps, cell=below.cell)
        if _is(holder, types.FunctionType):
            return _Node(holder, below.steps, variable=_free_variable(holder, below), cell=below.thing)
        if _own_dict(holder) is below.thing:
            return _Node(holder, _KEY.sub(r".\1", below.steps))
        return _Node(holder, f"{_step(holder, below.thing)}{below.steps}")


def _function_root(function: types.FunctionType, node: _Node) -> Path:
    name = f"{function.__module__}.{function.__qualname__}"
    if node.variable:
        return Path(f"closure variable {node.variable!r} of {name}", node.steps)
    if node.cell is not None and node.cell is function.__defaults__:
        return Path(f"default argument of {name}", node.steps)
    attribute = _key_of(vars(function), node.cell)
    return Path(name, f".{attribute}{node.steps}" if attribute else node.steps)


def _free_variable(function: types.FunctionType, below: _Node) -> str:
    cells = function.__closure__ or ()
    names = zip(function.__code__.co_freevars, cells, strict=False)
    return next((name for name, cell in names if cell is below.cell), "")


def _step(holder: object, thing: object) -> str:
    """How one gets from *holder* to *thing*, as one would write it."""
    if _is(holder, dict):
        key = _key_of(holder, thing)
        return f"[{key!r:.40}]" if key is not None else "[...]"
    if _is(holder, (list, tuple)):
        return "[...]"
    if _is(holder, types.MethodType):
        return ".__self__" if holder.__self__ is thing else ".__func__"
    if _is(holder, types.GeneratorType):
        return f" (generator {holder.__qualname__})"
    name = _attribute_of(holder, thing)
    return f".{name}" if name else f" ({_describe(holder)})"


def _describe(holder: object) -> str:
    if type(holder).__name__ == "_lru_cache_wrapper":
        return f"lru_cache of {getattr(holder, '__qualname__', '?')}"
    return type(holder).__name__


def _attribute_of(holder: object, thing: object) -> str:
    attributes = _own_dict(holder)
    if attributes is not None:
        name = _key_of(attributes, thing)
        if name is not None:
            return str(name)
    for cls in type(holder).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if _slot(holder, name) is thing:
                return str(name)
    return ""


def _is(thing: object, kinds: type[Kind] | tuple[type[Kind], ...]) -> TypeGuard[Kind]:
    """``isinstance`` without a word to *thing*: a dead proxy, or a class with a mind of its own, raises at that."""
    return issubclass(type(thing), kinds)


def _own_dict(holder: object) -> dict[str, object] | None:
    found = _slot(holder, "__dict__")
    return found if isinstance(found, dict) else None


def _slot(holder: object, name: str) -> object:
    """What is kept under *name*, past whatever the class makes of reading an attribute."""
    try:
        return object.__getattribute__(holder, name)
    except (AttributeError, TypeError, ReferenceError):
        return None


def _key_of(mapping: dict[str, object], thing: object) -> str | None:
    return next((key for key, value in list(mapping.items()) if value is thing), None)


def _is_ours(holder: object) -> bool:
    """Whether *holder* is a generator of ours, or the arguments with which the collector was asked."""
    if _is(holder, types.GeneratorType):
        return holder.gi_code.co_filename.startswith(_OWN)
    return type(holder) is tuple and len(holder) > 1 and holder[-1] is _LAST_ARGUMENT


def _local_variables() -> tuple[dict[int, str], set[int]]:
    """id -> name of everything that a running function of the user's holds in a local variable; and the ids of the
    dicts that this makes of them, which refer to it now as well.

    A running frame's variables are invisible to ``gc.get_referrers``, so they are looked up beforehand.
    """
    found: dict[int, str] = {}
    dicts: set[int] = set()
    for frame in sys._current_frames().values():
        current: types.FrameType | None = frame
        while current is not None:
            code = current.f_code
            if not code.co_filename.startswith(_OWN) and "_pytest" not in code.co_filename:
                place = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
                variables = current.f_locals
                dicts.add(id(variables))
                for name, value in variables.items():
                    # names with an @ are those of pytest's rewritten assertions
                    if not name.startswith("@") and not _is(
                        value, (types.ModuleType, type, int, str, float, type(None))
                    ):
                        found.setdefault(id(value), f"local variable {name!r} of {code.co_name} ({place})")
            current = current.f_back
    return found, dicts
