"""Runs what ends with a test's process: objects in modules, destructors of native libraries, C's exit handlers.

The destructors of everything that is loaded take half a second with torch. A process of one test therefore runs only
what may be the test's doing: the user's own native libraries, and what was registered since the test began. A process
that several tests shared runs all destructors, once. All of it happens while the interpreter still works, so that a
crash there has its Python and native stacks.

Of the objects in the user's modules, only those that were not there before the fork are dropped. The others belong to
the whole run: a temporary directory or a server that a module holds must outlive the test.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from os import _exit  # bound here: a test may replace it
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NoReturn

from pytest_rlstability.child.gc_freeze import collect
from pytest_rlstability.model.user_code import Origin, origin
from pytest_rlstability.osinfo.loaded_libraries import exit_before_inherited_handlers, exit_process, loaded_libraries

_WITHOUT_DESTRUCTOR = (BuiltinFunctionType, FunctionType, ModuleType, type, str, bytes, int, float, type(None))
_SYSTEM = ("/lib", "/usr/lib", sys.prefix, sys.base_prefix)


class Finalizers:
    """``begin()`` before each test of a process, ``end_process()`` after its exit checks. What is there when this is
    made belongs to no test."""

    def __init__(self) -> None:
        self._modules = sys.modules
        self._others: frozenset[str] = frozenset()
        """Modules that are not the user's. They are many, and to look at them again takes time."""
        self._before = {name: {*map(id, variables.values())} for name, variables in self._users_modules()}
        self._others = frozenset(self._modules) - self._before.keys()
        self._shared = False
        self._begun = False

    def begin(self, *, shared: bool) -> None:
        """A test begins. *shared*: others will run in this process."""
        if not self._begun and not shared:
            exit_before_inherited_handlers()
        self._begun = True
        self._shared |= shared

    def end_process(self) -> NoReturn:
        self._drop_objects()
        if not self._shared:
            for library in [*loaded_libraries()]:
                if _is_users(library.path):
                    library.finalize()
        exit_process()
        _exit(0)

    def _drop_objects(self) -> None:
        """The newest module first, as the interpreter does at its end."""
        for module, variables in reversed([*self._users_modules()]):
            before = self._before.get(module, ())
            for name, value in [*variables.items()]:
                if id(value) not in before and not issubclass(type(value), _WITHOUT_DESTRUCTOR) and name[:2] != "__":
                    variables[name] = None
        collect()

    def _users_modules(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name in [name for name in self._modules if name not in self._others]:
            module = self._modules.get(name)
            if type(module) is ModuleType:
                variables = vars(module)
                if type(path := variables.get("__file__")) is str and origin(path) is Origin.USER:
                    yield name, variables


def _is_users(path: str) -> bool:
    """Whether a native library is the user's own. One that comes with the system may have no directory in its path."""
    return "/" in path and not path.startswith(_SYSTEM) and origin(path) is Origin.USER
