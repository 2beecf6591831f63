"""The path from something a person can name to an object that is still alive."""

from __future__ import annotations

import functools
import gc
import os
import re
import sys
import time
import types
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

from pytest_rlstability.model.user_code import Origin, origin, outwards

Kind = TypeVar("Kind")
_KEY = re.compile(r"^\['(\w+)'\]")
"""The beginning of a step through a dict. It becomes an attribute if the dict is an object's ``__dict__``."""
_REPEATED = re.compile(r"((?:\.\w+|\[\.\.\.\])+?)\1{2,}")
"""The same steps three times and more, as through a tree or a chain."""
MOST_HOPS = 12
MOST_WIDTH = 16
MOST_SECONDS = 3.0
_LAST_ARGUMENT = object()
_UNTRACED: tuple[type, ...] = (types.ModuleType, type, int, str, float, type(None))
"""Types of local variables that are not roots of a path."""
_NOT_BELOW: tuple[type, ...] = (*_UNTRACED, types.CodeType, types.FrameType)
LRU_CACHE = type(functools.lru_cache(bool))


@dataclass(frozen=True)
class _Node:
    thing: object
    steps: str
    variable: str = ""
    """The closure variable that the steps start from, if *thing* is a function."""
    cell: object = None


def path_to(target: object, hidden: Iterable[object] = ()) -> str:
    """The shortest path from a module, a class, a closure or a local variable to *target*; empty if none was found.

    *hidden* are the caller's own containers that refer to it. Call ``gc.unfreeze()`` before: frozen objects are not
    looked at.
    """
    search = _Search([*hidden, target])
    deadline = time.monotonic() + MOST_SECONDS
    level = [_Node(target, "")]
    path = search.path_from_root(level[0])
    for _ in range(MOST_HOPS):
        if path or not level or time.monotonic() > deadline:
            break
        level, path = search.one_up(level)
    return _REPEATED.sub(r"\1 (repeated)", path)


def path_from_a_name(targets: Sequence[object], hidden: Iterable[object] = ()) -> str:
    """The path from a variable of a running function or of the user's modules that leads to most of *targets*, to the
    nearest of them; empty if none does. It finds the name of a tree or a graph, in which ``path_to`` loses its way."""
    search = _Search([*hidden, targets])
    wanted = {id(target) for target in targets}
    deadline = time.monotonic() + MOST_SECONDS
    for root in search.roots():
        found = search.down(root, wanted, deadline)
        if len(found) > len(wanted) / 2:
            return _REPEATED.sub(r"\1 (repeated)", found[0])
    return ""


def is_referred_to(target: object, hidden: Iterable[object] = ()) -> bool:
    """Whether anything but *hidden* refers to *target*."""
    search = _Search([*hidden, target])
    node = _Node(target, "")
    return bool(search.path_from_root(node)) or any(search.one_up([node]))


class _Search:
    def __init__(self, hidden: list[object]) -> None:
        self._seen = {id(thing) for thing in hidden} | {id(hidden)}
        self._locals, self._variables, frames = _local_variables()
        self._seen |= frames
        self._modules = {
            id(vars(module)): name for name, module in list(sys.modules.items()) if isinstance(module, types.ModuleType)
        }

    def path_from_root(self, node: _Node) -> str:
        """The path from *node*, if it is a root: something with a name of its own. Else empty."""
        thing = node.thing
        if id(thing) in self._modules:
            return ""  # the steps would lack the variable's name, which _up adds
        if id(thing) in self._locals and not node.variable:
            return f"{self._locals[id(thing)]}{node.steps}"
        if _is(thing, types.ModuleType):
            return f"{thing.__name__}{node.steps}"
        if _is(thing, type) and _has_a_name(thing):
            return f"{thing.__module__}.{thing.__qualname__}{node.steps}"
        if _is(thing, types.FunctionType):
            return _path_from_function(thing, node)
        return ""

    def roots(self) -> list[object]:
        """What the user's variables refer to: those of running functions, the innermost first, and of modules."""
        modules = [sys.modules[name] for name in list(self._modules.values()) if name in sys.modules]
        users = [module for module in modules if origin(getattr(module, "__file__", None) or "<") is Origin.USER]
        values = [value for module in users for value in list(vars(module).values())]
        return [*self._variables, *(value for value in values if not _is(value, _UNTRACED))]

    def down(self, root: object, wanted: set[int], deadline: float) -> list[str]:
        """The path to the nearest of *wanted* that *root* leads to, and an empty text for each other."""
        holders: dict[int, object] = {id(root): None}
        waiting, found = deque([root]), list[str]()
        self._seen.update((id(holders), id(waiting), id(found)))
        while waiting and time.monotonic() < deadline:
            holder = waiting.popleft()
            for thing in gc.get_referents(holder):
                if id(thing) in self._seen or id(thing) in self._modules or _is(thing, _NOT_BELOW):
                    continue
                self._seen.add(id(thing))
                holders[id(thing)] = holder
                waiting.append(thing)
                if id(thing) in wanted:
                    found.append("" if found else self._path_through(thing, holders))
        return found

    def _path_through(self, thing: object, holders: dict[int, object]) -> str:
        node = _Node(thing, "")
        while not (path := self.path_from_root(node)) and (holder := holders[id(node.thing)]) is not None:
            node = self._up(holder, node)
        return path or "?"

    def one_up(self, level: list[_Node]) -> tuple[list[_Node], str]:
        """What refers to something in *level*, and the path from the first root among it."""
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
            if path := self.path_from_root(node):
                return above, path
            if len(above) < MOST_WIDTH:
                above.append(node)
        return above, ""

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
        if own_dict(holder) is below.thing:
            return _Node(holder, _KEY.sub(r".\1", below.steps))
        return _Node(holder, f"{_step(holder, below.thing)}{below.steps}")


def _has_a_name(cls: type) -> bool:
    """Whether a person can name *cls*: one that was made at run time may itself be what leaks."""
    outermost = cls.__qualname__.partition(".")[0]
    return "<locals>" in cls.__qualname__ or outermost in vars(sys.modules.get(cls.__module__, object))


def _path_from_function(function: types.FunctionType, node: _Node) -> str:
    name = f"{function.__module__}.{function.__qualname__}"
    if node.variable:
        return f"closure variable {node.variable!r} of {name}{node.steps}"
    if node.cell is not None and node.cell is function.__defaults__:
        return f"default argument of {name}{node.steps}"
    attribute = _key_of(vars(function), node.cell)
    return f"{name}.{attribute}{node.steps}" if attribute else f"{name}{node.steps}"


def _free_variable(function: types.FunctionType, below: _Node) -> str:
    names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return next((name for name, cell in names if cell is below.cell), "")


def _step(holder: object, thing: object) -> str:
    """The step from *holder* to *thing*, as Python code where there is any."""
    if _is(holder, dict):
        key = _key_of(holder, thing)
        return f"[{key!r:.40}]" if key is not None else "[...]"
    if _is(holder, (list, tuple)):
        return "[...]"
    if _is(holder, types.MethodType):
        return ".__self__" if holder.__self__ is thing else ".__func__"
    if _is(holder, types.GeneratorType):
        return f" (generator {holder.__qualname__})"
    if name := _attribute_of(holder, thing):
        return f".{name}"
    if type(holder) is LRU_CACHE:
        return f" (lru_cache of {getattr(holder, '__qualname__', '?')})"
    return f" ({type(holder).__name__})"


def _attribute_of(holder: object, thing: object) -> str:
    name = _key_of(own_dict(holder) or {}, thing)
    if name is not None:
        return str(name)
    for cls in type(holder).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if _slot(holder, name) is thing:
                return str(name)
    return ""


def _is(thing: object, kinds: type[Kind] | tuple[type[Kind], ...]) -> TypeGuard[Kind]:
    """``isinstance`` that does not call *thing*: a dead proxy, or a class with its own ``__class__``, may raise."""
    return issubclass(type(thing), kinds)


def own_dict(holder: object) -> dict[str, object] | None:
    found = _slot(holder, "__dict__")
    return found if isinstance(found, dict) else None


def _slot(holder: object, name: str) -> object:
    """The attribute *name*, without the class's own ``__getattr__`` and ``__getattribute__``."""
    try:
        return object.__getattribute__(holder, name)
    except (AttributeError, TypeError, ReferenceError):
        return None


def _key_of(mapping: dict[str, object], thing: object) -> str | None:
    return next((key for key, value in list(mapping.items()) if value is thing), None)


def _is_ours(holder: object) -> bool:
    """Whether *holder* is our own generator, the tuple of arguments of our call to the collector, or what an abstract
    class remembers of the classes that it was compared with."""
    if type(holder).__name__ == "_abc_data":
        return True
    if _is(holder, types.GeneratorType):
        return origin(holder.gi_code.co_filename) is Origin.OURS
    return type(holder) is tuple and len(holder) > 1 and holder[-1] is _LAST_ARGUMENT


def _local_variables() -> tuple[dict[int, str], list[object], set[int]]:
    """id -> name of everything in a local variable of the user's running functions; the values; and the ids of the
    dicts that reading ``f_locals`` made, which refer to it as well.

    ``gc.get_referrers`` does not see the variables of a running frame, so they are read here.
    """
    found: dict[int, str] = {}
    values: list[object] = []
    dicts: set[int] = set()
    for frame in sys._current_frames().values():
        for current in outwards(frame):
            code = current.f_code
            if origin(code.co_filename) in (Origin.OURS, Origin.PYTEST):
                continue
            place = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
            variables = current.f_locals
            dicts.add(id(variables))
            for name, value in variables.items():
                # pytest's rewritten assertions use names with an @
                if not name.startswith("@") and not _is(value, _UNTRACED):
                    found.setdefault(id(value), f"local variable {name!r} of {code.co_name} ({place})")
                    values.append(value)
    return found, values, dicts | {id(values)}
