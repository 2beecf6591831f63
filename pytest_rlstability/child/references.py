"""Finds the native call that gives up a reference which it does not own. The crash comes much later, in the garbage
collection or where the object is used.

Between the lines of the user's code, and around each call of a library's native function, the references that variables
and containers hold are counted. An object that has fewer than that has lost one since the last look.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from gc import get_referents
from inspect import CO_OPTIMIZED
from os import O_APPEND, O_CREAT, O_WRONLY, _exit, write
from os import open as open_descriptor
from sysconfig import get_config_var
from threading import setprofile as setprofile_in_threads
from threading import settrace as settrace_in_threads
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from pytest_rlstability.model.user_code import Origin, origin

VARIABLE = "RLSTABILITY_REFERENCES"
"""Holds the path of the file to write."""
FOUND = 86
"""The exit status of a process in which a reference is missing."""
_DEEPEST = 4
_MOST_REFERENCES = 1000
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_LEFT_OUT = (type, ModuleType, FunctionType, FrameType, CodeType, str, bytes, int, float)
"""Of which it is not looked at what they refer to."""
_FREE_LISTS = 100
_never_released: list[Any] = []
"""To give up what was found would free it a second time, before that is written down."""
_MOST_LOOKS_AT_A_LINE = 200


def watch_references(environment: Mapping[str, str]) -> None:
    """Begin, if the variable asks for it, and this interpreter counts references exactly."""
    path = environment.get(VARIABLE)
    if path and not get_config_var("Py_GIL_DISABLED"):
        watch = _Watch(open_descriptor(path, O_WRONLY | O_CREAT | O_APPEND, 0o600))
        settrace_in_threads(watch.trace)
        sys.settrace(watch.trace)
        setprofile_in_threads(watch.profile)
        sys.setprofile(watch.profile)


def lacks_reference(names: Mapping[str, Any], owners: int) -> bool:
    """Whether an object has fewer references than are held by the variables *names*, *owners* by each, and by
    the containers in them. It must not be looked at more closely: it may be gone already."""
    values = list(names.values())
    known: Counter[int] = Counter()
    ours: Counter[int] = Counter()
    for address in map(id, values):
        known[address] += owners
        ours[address] += 1
    layer, kept, seen = [values], [values], {id(names)}
    for _ in range(_DEEPEST):
        if any(_lacks(one, known, ours) for one in layer):
            _never_released.append(kept)
            return True
        layer = _next_layer(layer, seen)
        kept += layer  # because they are counted as ours
        for referents in layer:
            known.update(map(id, referents))
            ours.update(map(id, referents))
    _never_released.append(kept)
    found = any(_lacks(one, known, ours) for one in layer)
    if not found:
        _never_released.clear()
    return found


def _lacks(values: list[Any], known: Counter[int], ours: Counter[int]) -> bool:
    for value in values:
        address = id(value)
        if sys.getrefcount(value) - ours[address] - _OVERHEAD < known[address]:
            return True
    return False


def _overhead() -> int:
    """What ``getrefcount`` counts too many in ``_lacks``."""
    values = [object()]
    for value in values:
        return sys.getrefcount(value) - 1
    return 0


_OVERHEAD = _overhead()


def _next_layer(layer: list[list[Any]], seen: set[int]) -> list[list[Any]]:
    """What the containers in *layer* refer to, a list for each, small ones first. These lists are the only references
    that are added."""
    found: list[list[Any]] = []
    room = _MOST_REFERENCES
    for container in sorted(_containers(layer, seen), key=len):
        room -= len(container)
        if room >= 0:
            found.append(get_referents(container))
    return found


def _containers(layer: list[list[Any]], seen: set[int]) -> Iterator[Any]:
    """Each container once, also where it is both a variable and the attributes of an object. Nothing of the objects
    themselves is called."""
    for values in layer:
        for value in values:
            if issubclass(type(value), _LEFT_OUT):
                continue
            container = value if type(value) in _CONTAINERS else _attributes(value)
            if container is not None and id(container) not in seen:
                seen.add(id(container))
                yield container


def _attributes(value: Any) -> Any:
    try:
        found = object.__getattribute__(value, "__dict__")
    except Exception:
        return None
    return found if type(found) is dict else None


class _Watch:
    """The trace and profile functions of all threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._users: dict[str, bool] = {}
        self._looks: Counter[tuple[str, int]] = Counter()
        self._calls: dict[str, None] = {}
        """The native functions that were called since the last look at a line, in order."""
        self._line = ""

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._is_users(frame):
            return None
        if event == "line":
            self._look(frame)
            self._calls.clear()
            self._line = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        return self.trace

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("c_call", "c_return") or not (name := _native_name(argument)):
            return
        if self._is_users(frame):
            self._look(frame, f"{name} " if event == "c_return" else "")
        self._calls[name] = None

    def _is_users(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        if file not in self._users:
            self._users[file] = origin(file) is Origin.USER
        return self._users[file]

    def _look(self, frame: FrameType, returned: str = "") -> None:
        """End the process if a reference is missing. *returned*: the function that has just returned, and before whose
        call all was well."""
        place = (frame.f_code.co_filename, frame.f_lineno)
        self._looks[place] += 1
        if not self._calls and not returned and self._looks[place] > _MOST_LOOKS_AT_A_LINE:
            return
        names = frame.f_locals
        owners = bool(frame.f_code.co_flags & CO_OPTIMIZED) + (type(names) is dict)
        if lacks_reference(names, owners):
            calls = [returned.strip()] if returned else list(self._calls)
            write(self._descriptor, "\n".join([self._line, *calls, ""]).encode())
            _exit(FOUND)
        _fill_free_lists()


def _fill_free_lists() -> None:
    """CPython keeps some lists and dicts that are gone for later use, with a count that looks right then. When it has
    enough of them, one that is gone too early is freed and, with the debug allocator, filled."""
    lists = [[None] for _ in range(_FREE_LISTS)]
    dicts = [{} for _ in range(_FREE_LISTS)]  # type: ignore[var-annotated]
    del lists, dicts


def _native_name(function: Any) -> str:
    """The name of a library's native function; empty for those of the standard library."""
    owner = getattr(function, "__objclass__", None) or getattr(function, "__self__", None)
    module = function.__module__ if isinstance(function.__module__, str) else ""
    if not module and owner is not None:
        module = getattr(owner, "__name__" if isinstance(owner, ModuleType) else "__module__", None) or ""
    known = module.partition(".")[0] in sys.stdlib_module_names or not module
    return "" if known else f"{module}.{function.__qualname__}"
