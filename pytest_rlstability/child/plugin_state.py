"""What plugins and conftest files keep between tests: found, compared after each test, and carried to other processes.

A plugin that gathers in ``pytest_runtest_makereport`` and writes in ``pytest_sessionfinish``, or one that decides in
``pytest_runtest_setup`` by what it has seen, does so in one process under plain pytest.
"""

from __future__ import annotations

import inspect
import io
from _pickle import Pickler, PicklingError, Unpickler  # bound here: a test may replace them
from binascii import a2b_base64, b2a_base64  # bound here: a test may replace them
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType, ModuleType
from typing import Any

import pytest

from pytest_rlstability.compat.pytest import is_fixture
from pytest_rlstability.config.in_process import KNOWN, package_of, path_of
from pytest_rlstability.model.changes import Change, Frozen, apply_change, change_between, freeze, has_plain_attributes
from pytest_rlstability.model.messages import PluginsChanged

_DURING = {
    "pytest_runtest_protocol", "pytest_runtest_setup", "pytest_runtest_call", "pytest_runtest_teardown",
    "pytest_runtest_makereport", "pytest_pyfunc_call", "pytest_fixture_setup", "pytest_fixture_post_finalizer",
    "pytest_assertion_pass", "pytest_exception_interact",
}  # fmt: skip
_DECIDING = {"pytest_runtest_protocol", "pytest_runtest_setup", "pytest_runtest_call", "pytest_pyfunc_call"}
_REPORTING = {"pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish"}
"""Called in pytest's process only."""
_AFTER = {"pytest_sessionfinish", "pytest_terminal_summary", "pytest_unconfigure"}
_NEED_NOTHING = {
    "_pytest", "pytest_rlstability", "xdist", "pytest_timeout", "pytest_rerunfailures", "pytest_cov", "pytest_asyncio",
    "pytest_mock", "anyio", "_hypothesis_pytestplugin", "hypothesis", "allure_pytest", "pytest_html",
    "pytest_jsonreport", "pytest_metadata", *(plugin.package for plugin in KNOWN if not plugin.carried),
}  # fmt: skip
"""Packages that keep nothing in a test's process, or that are taken care of in another way."""
_BY_MARKER = {"pytest_dependency": "dependency", "pytest_depends": "depends"}
"""Packages that do something only for tests with a marker."""
_CARRIED_LIBRARIES = {"collections", "datetime", "decimal", "enum", "fractions", "numpy", "pathlib", "uuid", "_pytest"}
_LARGEST = 4 * 2**20


@dataclass(frozen=True)
class CarriedPlugin:
    """A plugin whose state is carried. *decides*: what it does before a test may depend on the tests before."""

    plugin: Any
    name: str
    decides: bool
    reads_at_end: bool


def carried_plugins(session: pytest.Session) -> Iterator[CarriedPlugin]:
    """The plugins of the run that do something while a test runs and something with it afterwards."""
    config, manager = session.config, session.config.pluginmanager
    for _, plugin in manager.list_name_plugin():
        if plugin is None or (package := package_of(plugin)) in _NEED_NOTHING:
            continue
        if package in _BY_MARKER and not _is_used(_BY_MARKER[package], session):
            continue
        hooks = {caller.name for caller in manager.get_hookcallers(plugin) or ()}
        during, after = hooks & _DURING, hooks & _AFTER
        fixtures = isinstance(plugin, ModuleType) and any(map(is_fixture, vars(plugin).values()))
        decides = bool(hooks & _DECIDING and (len(during) > 1 or hooks & _REPORTING)) or bool(during and fixtures)
        if decides or (after and (during or fixtures)):
            module = plugin if isinstance(plugin, ModuleType) else inspect.getmodule(type(plugin))
            path = path_of(module, config)
            name = path if path.endswith("conftest.py") else package
            yield CarriedPlugin(plugin, name, decides, bool(after))


def _is_used(marker: str, session: pytest.Session) -> bool:
    with suppress(ValueError):  # no such setting
        if session.config.getini(f"automark_{marker}"):
            return True
    return any(item.get_closest_marker(marker) is not None for item in session.items)


_state = pytest.StashKey["PluginState"]()


def plugin_state(session: pytest.Session) -> PluginState:
    """The state of the plugins of this process; a forked one has that of its parent."""
    if _state not in session.config.stash:
        session.config.stash[_state] = PluginState(session)
    return session.config.stash[_state]


@dataclass(frozen=True)
class _Place:
    """Somewhere that plugins keep things. *owner* is the plugin that reads it at the end, if it is one's own."""

    owner: str
    decides: bool
    read: Callable[[], dict[str, Any]]
    write: Callable[[str, Any], None]


class PluginState:
    """``changes()`` since it was last asked, as text; ``apply()`` those of another process.

    Of the user's classes nothing is run but attribute access, and nothing is raised.
    """

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self.carried = list(carried_plugins(session))
        self._places: dict[str, _Place] = {}
        self._keys_of = defaultdict[str, list[str]](list)
        """The places on each node; those that are on none are under the empty name."""
        self._frozen: dict[tuple[str, str], Frozen] = {}
        self._too_large: dict[tuple[str, str], int] = {}
        self._nodes: dict[str, Any] = {"config": session.config}
        self._stash_keys: dict[str, Any] = {}
        self.version = 0
        """How many changes of other processes are in it. A fork inherits them."""
        self.lost: set[str] = set()
        """What has changed and could not be carried, of plugins that read it when the session ends."""
        self._read_at_end = any(carried.reads_at_end for carried in self.carried)
        self.decides = any(carried.decides for carried in self.carried)
        if self.carried:
            self._find_places()
            self._add_nodes([session])
            self._look_at(self._places)

    @property
    def plugins(self) -> list[Any]:
        return [carried.plugin for carried in self.carried]

    def begin(self, item: pytest.Item) -> None:
        """Before *item* runs: look at what is kept in plugins, on *item* and above it."""
        if self.carried:
            self._add_nodes(_chain(item))
            self._look_at(self._places_for(item))

    def changes(self, item: pytest.Item) -> str:
        """What has changed since this was last asked: in plugins, on *item* and above it."""
        changed: list[tuple[str, str, bytes]] = []
        for key, place in self._places_for(item).items():
            for name, value in place.read().items():
                old, new = self._frozen.get((key, name)), self._freeze(key, name, value)
                if new == old:
                    continue
                self._frozen[key, name] = new
                try:
                    changed.append((key, name, self._dump(change_between(old, new, value))))
                except Exception:  # an object that has no copy
                    self._lose(place, name)
        return b2a_base64(self._dump(changed)).decode() if changed else ""

    def _places_for(self, item: pytest.Item) -> dict[str, _Place]:
        nodes = ["", *map(_key_of, _chain(item))] if self.carried else []
        return {key: self._places[key] for node in nodes for key in self._keys_of[node]}

    def apply(self, text: str, version: int = 0) -> None:
        """Make the changes of another process here, unless this one was forked from one that had them."""
        if version and version <= self.version:
            return
        self.version = version or self.version + 1
        changed = self._load(a2b_base64(text))
        for key, name, data in changed:
            place = self._find_place(key)
            try:
                if place is not None:
                    self._apply(place, name, self._load(data))
            except Exception:  # it is of another kind here, or has something that this process does not know
                self._lose(place, name)
        if not version:  # a test's process looks at everything when its test begins
            self._look_at({key for key, _, _ in changed if key in self._places})

    def deciding(self, text: str) -> str:
        """The part of *text* that a test's set-up may depend on; empty when there is none."""
        places = ((one, self._find_place(one[0])) for one in self._load(a2b_base64(text)))
        kept = [one for one, place in places if place is not None and place.decides]
        return b2a_base64(self._dump(kept)).decode() if kept else ""

    def _apply(self, place: _Place, name: str, change: Change) -> None:
        held = place.read()
        missing = {"add": 0, "extend": [], "dict": {}, "set": set()}
        place.write(name, apply_change(change, held[name] if name in held else missing.get(change[0])))

    def _look_at(self, keys: Iterable[str]) -> None:
        for key in [*keys]:
            for name, value in self._places[key].read().items():
                self._frozen[key, name] = self._freeze(key, name, value)

    def _freeze(self, key: str, name: str, value: Any) -> Frozen:
        unknown = Frozen("other", id(value))
        if self._too_large.get((key, name)) == id(value):
            return unknown
        try:
            return freeze(value, _is_reference)
        except Exception:  # too large, or an attribute that cannot be read
            self._too_large[key, name] = id(value)
            if (key, name) in self._frozen:
                self._lose(self._places[key], name)
            return unknown

    def _lose(self, place: _Place | None, name: str) -> None:
        if place is not None and place.owner:
            self.lost.add(f"{place.owner}: {name}")

    # where things are kept

    def _find_places(self) -> None:
        seen: set[int] = set()
        for carried in self.carried:
            owner = carried.name if carried.reads_at_end else ""
            for holder in _holders(carried.plugin):
                if id(holder) in seen:
                    continue
                seen.add(id(holder))
                key = f"{carried.name} {type(holder).__name__} {getattr(holder, '__name__', '')}"
                while key in self._places:  # plugins of the same class are registered in the same order everywhere
                    key += "'"
                self._add_place("", key, _Place(owner, carried.decides, *_attributes(holder, frozenset())))
                keys = vars(holder).items()
                self._stash_keys.update({name: one for name, one in keys if isinstance(one, pytest.StashKey)})
        self._add_node("config", self._session.config)

    def _add_place(self, node: str, key: str, place: _Place) -> None:
        self._places[key] = place
        self._keys_of[node].append(key)

    def _add_nodes(self, nodes: Iterable[pytest.Item | pytest.Collector]) -> None:
        for node in nodes:
            self._add_node(_key_of(node), node)

    def _add_node(self, key: str, node: Any) -> None:
        self._nodes[key] = node
        is_test = isinstance(node, pytest.Item)
        if f"{key} attributes" in self._places or (is_test and not self._read_at_end):
            return
        kinds = {"attributes": _attributes(node, _names_of_pytest(type(node).__mro__))}
        if self._stash_keys:
            kinds["stash"] = _stash(node, self._stash_keys)
        for kind, access in kinds.items():
            decides = self.decides and not is_test  # no other test looks at what is kept on this one
            self._add_place("" if key == "config" else key, f"{key} {kind}", _Place("", decides, *access))

    def _find_place(self, key: str) -> _Place | None:
        """A place; that of a node may not have been looked at here before."""
        if key not in self._places:
            name = key.rpartition(" ")[0]
            with suppress(KeyError):
                self._add_node(name, self._find_node(name))
        return self._places.get(key)

    def _find_node(self, key: str) -> Any:
        if key not in self._nodes:
            self._nodes.update({_key_of(node): node for item in self._session.items for node in _chain(item)})
        return self._nodes[key]

    # crossing to another process

    def _dump(self, value: Any) -> bytes:
        buffer = io.BytesIO()
        _PlainPickler(buffer, 5).dump(value)
        if buffer.tell() > _LARGEST:
            raise PicklingError("too large")
        return buffer.getvalue()

    def _load(self, data: bytes) -> Any:
        return _PlainUnpickler(io.BytesIO(data), self._find_node).load()


class PluginWatch:
    """A pytest plugin in a test's process. It sees what changes within the innermost ``pytest_runtest_protocol``: those
    around it run in pytest's process too."""

    def __init__(self, state: PluginState, send: Callable[[PluginsChanged], object]) -> None:
        self._state = state
        self._send = send

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._state.begin(item)
        result = yield
        changes = self._state.changes(item)
        if changes or self._state.lost:
            self._send(PluginsChanged(changes, tuple(sorted(self._state.lost))))
        return result


class _PlainPickler(Pickler):
    """Copies plain data only: no object whose class has its own idea of a copy, which may be a large or a live one."""

    def persistent_id(self, value: Any) -> str | None:
        if not _is_reference(value):
            return None
        if isinstance(value, pytest.PytestPluginManager):
            raise PicklingError("not data")
        return "config" if isinstance(value, pytest.Config) else _key_of(value)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) or package_of(value) in _CARRIED_LIBRARIES:
            return NotImplemented
        if has_plain_attributes(value) or isinstance(value, tuple):
            return NotImplemented
        raise PicklingError("not plain data")


class _PlainUnpickler(Unpickler):
    def __init__(self, buffer: io.BytesIO, find_node: Callable[[str], Any]) -> None:
        super().__init__(buffer)
        self._find_node = find_node

    def persistent_load(self, key: str) -> Any:
        return self._find_node(key)


_CODE = (ModuleType, FunctionType, type, property, staticmethod, classmethod, pytest.StashKey)


def _key_of(node: pytest.Item | pytest.Collector) -> str:
    return f"{type(node).__name__} {node.nodeid}"


def _chain(item: pytest.Item) -> list[Any]:
    return item.listchain()


def _is_reference(value: Any) -> bool:
    kind: Any = type(value)
    return _is_reference_type(kind)


@cache
def _is_reference_type(kind: type) -> bool:
    return issubclass(kind, (pytest.Item, pytest.Collector, pytest.Config, pytest.PytestPluginManager))


def _holders(plugin: Any) -> list[Any]:
    """What has the state of *plugin* as its attributes: itself, its module, other modules of its package, and their own
    classes."""
    module = plugin if isinstance(plugin, ModuleType) else inspect.getmodule(type(plugin))
    found = [plugin] if plugin is not module and hasattr(plugin, "__dict__") else []
    for one in [] if module is None else [module, *_siblings(module)]:
        found += [one, *_classes(one)]
    return found


def _siblings(module: ModuleType) -> list[ModuleType]:
    package = package_of(module)
    return [one for one in vars(module).values() if isinstance(one, ModuleType) and package_of(one) == package]


def _classes(module: ModuleType) -> list[type]:
    return [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]


Access = tuple[Callable[[], dict[str, Any]], Callable[[str, Any], None]]
"""Reads all that is kept in a place, and writes one thing there."""


def _attributes(holder: Any, hidden: frozenset[str]) -> Access:
    def read() -> dict[str, Any]:
        return {
            name: value
            for name, value in [*vars(holder).items()]
            if name not in hidden
            and not name.startswith("__")
            and not isinstance(value, _CODE)
            and not is_fixture(value)
        }

    return read, partial(setattr, holder)


def _stash(node: Any, keys: Mapping[str, Any]) -> Access:
    def read() -> dict[str, Any]:
        return {name: node.stash[key] for name, key in keys.items() if key in node.stash}

    def write(name: str, value: Any) -> None:
        node.stash[keys[name]] = value

    return read, write


@cache
def _names_of_pytest(classes: tuple[type, ...]) -> frozenset[str]:
    """The attributes that pytest's own classes use: all others are a plugin's."""
    names = {"cache", "exitstatus", "workerinput", "workeroutput"}
    for base in classes:
        if package_of(base) == "_pytest":
            names.update(base.__annotations__ if "__annotations__" in vars(base) else ())
            for function in vars(base).values():
                inner = getattr(function, "fget", None) or getattr(function, "__func__", function)
                names.update(getattr(getattr(inner, "__code__", None), "co_names", ()))
    return frozenset(names)
