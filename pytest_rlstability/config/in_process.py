"""Which tests run in pytest's own process because a plugin that they use keeps its data there.

Such a plugin gathers while tests run and writes at the end of the session. If the tests ran elsewhere it would see
nothing, and some would then overwrite or delete the user's files.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from pytest_rlstability.compat.pytest import fixture_functions, is_fixture
from pytest_rlstability.config.markers import is_marked
from pytest_rlstability.model.units import counted


@dataclass(frozen=True)
class InProcessPlugin:
    """Tests use it by one of its *fixtures*, by a *marker*, or by what their module imported of the *package*; every
    test does if none of these is given. With *switches* it gathers only if one of these options is on."""

    name: str
    package: str
    fixtures: tuple[str, ...] = ()
    marker: str = ""
    imported: bool = False
    switches: tuple[str, ...] = ()
    carried: bool = False
    """Whether what it keeps of other tests is carried here (see ``child.plugin_state``)."""

    def is_on(self, config: pytest.Config) -> bool:
        if not any(package_of(plugin) == self.package for plugin in config.pluginmanager.get_plugins()):
            return False
        values = [config.getoption(name, None) for name in self.switches]
        return not values or any(value and value != "disable" for value in values)

    def is_used_by(self, item: pytest.Item) -> bool:
        if not self.fixtures and not self.marker and not self.imported:
            return True
        if self.marker and item.get_closest_marker(self.marker) is not None:
            return True
        names = vars(item.module) if self.imported and isinstance(item, pytest.Function) else {}
        if any(package_of(value) == self.package for value in [*names.values()]):
            return True
        functions = fixture_functions(item)
        return any(name in functions and package_of(functions[name]) == self.package for name in self.fixtures)


KNOWN = (
    InProcessPlugin("pytest-benchmark", "pytest_benchmark", fixtures=("benchmark", "benchmark_weave")),
    InProcessPlugin("pytest-codspeed", "pytest_codspeed", switches=("codspeed",)),
    InProcessPlugin("syrupy", "syrupy", fixtures=("snapshot",)),
    InProcessPlugin("snapshottest", "snapshottest", fixtures=("snapshot",), imported=True),
    InProcessPlugin("pytest-insta", "pytest_insta", fixtures=("snapshot",)),
    InProcessPlugin("inline-snapshot", "inline_snapshot", imported=True),
    InProcessPlugin("inline-snapshot", "inline_snapshot", switches=("inline_snapshot",)),
    InProcessPlugin(
        "pytest-mpl",
        "pytest_mpl",
        marker="mpl_image_compare",
        switches=("mpl", "mpl_generate_path", "mpl_generate_hash_library"),
    ),
    InProcessPlugin("pytest-bdd", "pytest_bdd", imported=True, switches=("cucumber_json_path",)),
    InProcessPlugin("pytest-bdd", "pytest_bdd", imported=True, switches=("gherkin_terminal_reporter",)),
    InProcessPlugin("pytest-monitor", "pytest_monitor"),
    InProcessPlugin("pytest-steps", "pytest_steps", imported=True),
    InProcessPlugin(
        "pytest-harvest",
        "pytest_harvest",
        fixtures=("session_results_dct", "session_results_df", "module_results_dct", "module_results_df"),
        carried=True,
    ),
    InProcessPlugin("pytest-memray", "pytest_memray", switches=("memray",)),
    InProcessPlugin("pytest-profiling", "pytest_profiling", switches=("profile", "profile_svg")),
    InProcessPlugin("pytest-testmon", "testmon", switches=("testmon", "testmon_noselect", "testmon_forceselect")),
)
"""Plugins whose data cannot be carried from one process to another. ``rl_in_process_plugins`` adds to them."""


class InProcessTests:
    """Asks for each test whether it uses such a plugin."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = [plugin for plugin in KNOWN if plugin.is_on(config)]
        self._named = [*config.getini("rl_in_process_plugins")]

    def plugin_of(self, item: pytest.Item) -> str:
        """The plugin for whose sake *item* runs in pytest's own process; empty when it need not."""
        if not self._plugins and not self._named:
            return ""
        for plugin in self._plugins:
            if plugin.is_used_by(item):
                return plugin.name
        return next((name for name in self._named if _uses_named(item, name)), "")

    def line(self, items: Iterable[pytest.Item]) -> str | None:
        """What the terminal says about them, once."""
        plugins = {item: plugin for item in items if (plugin := self.plugin_of(item))}
        if not plugins:
            return None
        users = ", ".join(f"{number} for {name}" for name, number in Counter(plugins.values()).most_common())
        marked = sum(map(is_marked, plugins))
        unchecked = f"; {counted(marked, 'marked test', 'marked tests')} unchecked" if marked else ""
        runs = counted(len(plugins), "test runs", "tests run")
        return f"rl-stability: {runs} in pytest's own process, where a crash ends the run: {users}{unchecked}"


_tests = pytest.StashKey[InProcessTests]()


def in_process_tests(config: pytest.Config) -> InProcessTests:
    """Which tests of *config*'s run stay in pytest's own process."""
    if _tests not in config.stash:
        config.stash[_tests] = InProcessTests(config)
    return config.stash[_tests]


def _uses_named(item: pytest.Item, name: str) -> bool:
    """A plugin of ``rl_in_process_plugins`` that has fixtures is used by the tests that have one of them; every test
    uses one that has none. A conftest.py is named by its path from the root directory."""
    config = item.config
    plugins = [one for one in config.pluginmanager.get_plugins() if name in (package_of(one), path_of(one, config))]
    if not any(is_fixture(one) for plugin in plugins for one in [*getattr(plugin, "__dict__", {}).values()]):
        return bool(plugins)
    return any(name in (package_of(one), path_of(one, config)) for one in fixture_functions(item).values())


def package_of(thing: object) -> str:
    """The top-level package that *thing*, a module, an instance, a class or a function, comes from."""
    if inspect.ismodule(thing):
        module = thing.__name__
    else:
        module = (thing if inspect.isclass(thing) or inspect.isroutine(thing) else type(thing)).__module__
    return str(module).partition(".")[0]


def path_of(thing: object, config: pytest.Config) -> str:
    """The file of a plugin or a function, seen from the root directory."""
    code = getattr(inspect.unwrap(thing), "__code__", None) if callable(thing) else None
    path = getattr(thing, "__file__", None) if code is None else code.co_filename
    return path.removeprefix(f"{config.rootpath}/") if isinstance(path, str) else ""
