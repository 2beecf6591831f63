"""Flags and ini settings in, one frozen ``Settings`` out. A wrong value is a usage error that names it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_rlstability.config.markers import BACKENDS, GROUPS
from pytest_rlstability.model.units import DURATION_FORM, SIZE_FORM, parse_duration, parse_size
from pytest_rlstability.osinfo import CAN_FORK

OPTION_GROUP = "rl-stability"
_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle", "pydevd_frame_evaluator", "_pydevd_frame_eval", "debugpy")
FLAKY = ("auto", "serial", "once")

_Value = TypeVar("_Value")
_SOAK_FORM = f"expected {DURATION_FORM}; a bare --rl-soak (each test its own duration) goes after the tests' paths"
_LEAKS_FORM = f"expected {DURATION_FORM}; a bare --rl-leaks goes after the tests' paths"
_LEAKS_BUDGET = "10s"


@dataclass(frozen=True)
class Settings:
    """How this run was asked to behave."""

    enabled: bool
    scope: str
    backend: str
    backend_given: bool
    group: str
    limit: float
    memory: int
    """0: no cap."""
    stall_after: float
    leak_budget: float
    blame_budget: float
    lap_count: int
    native: str
    seed: int
    flaky: str = "auto"
    soak: bool = False
    soak_duration: float | None = None
    """What ``--rl-soak`` gives every rl_soak test; None: each has its own."""
    leaks: float | None = None
    """The leak budget that ``--rl-leaks`` gives every test without a check of its own; None: they are not checked."""
    remark: str = ""

    @property
    def holds_crashes(self) -> bool:
        """Whether a crash is held where it happened until its native stack has been read."""
        return sys.platform == "linux" and self.native != "off"


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup(OPTION_GROUP, "crashes, leaks and stalls of training code as test failures")
    switch = "run tests in other processes and check them for crashes, stalls and leaks"
    group.addoption("--rl-stability", action="store_true", default=None, help=switch)
    parser.addini("rl_stability", switch, type="bool", default=False)
    for name, metavar, text, default in (
        ("scope", "all|marked", "isolate every test, or only those with an rl_* (or forked) marker", "all"),
        (
            "backend",
            "|".join(BACKENDS),
            "how a test gets a process; auto: zygote (a fork) if that is safe, else spawn",
            "auto",
        ),
        ("group", "|".join(GROUPS), "what gets a process of its own; auto: unmarked tests share one", "auto"),
        (
            "limit",
            "30min",
            "end a test after this time, unless it has a timeout, soak or leak budget; 0: never",
            "30min",
        ),
        ("memory", "2GiB", "memory cap of every isolated test; 0: none", "0"),
        ("stall-after", "60s", "fail an isolated test after this long without progress; 0: never", "60s"),
        ("leak-budget", "30s", "time that one leak check may take; after it the answer is 'undecided'", "30s"),
        ("flaky", "|".join(FLAKY), "repeat rl_flaky tests on all free cores, or one by one, or run them once", "auto"),
    ):
        group.addoption(f"--rl-{name}", metavar=metavar, default=None, help=f"{text} (default: {default})")
        parser.addini(f"rl_{name.replace('-', '_')}", f"{text} (default: {default})", default=default)
    group.addoption(
        "--rl-soak",
        metavar="8h",
        nargs="?",
        const="",
        default=None,
        help="run the rl_soak tests, each for this long (without a value: each for its own duration); "
        "implies --rl-stability",
    )
    group.addoption(
        "--rl-leaks",
        metavar="10s",
        nargs="?",
        const=_LEAKS_BUDGET,
        default=None,
        help=f"repeat every unmarked test whole, and check it for leaks in this time (default: {_LEAKS_BUDGET}); "
        "implies --rl-stability",
    )
    parser.addini("rl_blame_budget", "time to search for the test that made a shared process die", default="60s")
    parser.addini("rl_in_process_plugins", "plugins whose tests run in pytest's own process", type="args", default=[])
    parser.addini("rl_preload", "modules to import before tests are forked", type="args", default=[])
    parser.addini("rl_lap_count", "laps that rl_laps gives where no check needs laps", default="20")
    group.addoption(
        "--rl-native",
        metavar="auto|off",
        default="auto",
        help="read the native stack of a crashed or stalled process (default: auto)",
    )
    group.addoption(
        "--rl-seed",
        metavar="N",
        default=None,
        help="the seed of the run, from which each test's is made (default: a new one)",
    )


def read_settings(config: pytest.Config) -> Settings:
    """The settings of this run: command line before ini before default."""

    def read(name: str, parse: Callable[[str], _Value], form: str) -> _Value:
        key = f"rl_{name.replace('-', '_')}"
        value, source = config.getoption(key, None), f"--rl-{name}"
        if value is None:
            value, source = config.getini(key), key
        try:
            return parse(value)
        except (TypeError, ValueError):
            raise pytest.UsageError(f"{source}={value}: {form}") from None

    def choose(name: str, *accepted: str) -> str:
        return read(name, _checked(str, accepted.__contains__), f"choose from {', '.join(accepted)}")

    backend, remark = choose("backend", *BACKENDS), ""
    if backend == "zygote" and not CAN_FORK:
        raise pytest.UsageError(
            f"--rl-backend=zygote: tests cannot be forked on {sys.platform}; choose from auto, spawn, inprocess"
        )
    for flag, name in (("usepdb", "--pdb"), ("trace", "--trace")):
        if config.getoption(flag, False):
            backend, remark = "inprocess", f"; {name} keeps tests in pytest's own process, where crashes end the run"
    if _debugger_attached() and not remark and config.getoption("rl_backend") is None:
        text = "a debugger is attached, which keeps tests in pytest's own process, where crashes end the run"
        backend, remark = "inprocess", f"; {text} (--rl-backend=auto does not)"
    seed = _drawn_seed(config)
    if config.getoption("rl_seed") is not None:
        seed = read("seed", _checked(int, lambda given: given >= 0), "expected a whole number from 0 up")
    soak, leaks = config.getoption("rl_soak"), config.getoption("rl_leaks")
    switched_on = config.getoption("rl_stability") or config.getini("rl_stability")
    return Settings(
        enabled=bool(switched_on or soak is not None or leaks is not None),
        scope=choose("scope", "all", "marked"),
        backend=backend,
        backend_given=bool(remark) or config.getoption("rl_backend") is not None,
        group=choose("group", *GROUPS),
        limit=read("limit", parse_duration, f"expected {DURATION_FORM}, or 0"),
        memory=read("memory", parse_size, f"expected {SIZE_FORM}, or 0"),
        stall_after=read("stall-after", parse_duration, f"expected {DURATION_FORM}, or 0"),
        leak_budget=read("leak-budget", _checked(parse_duration, bool), f"expected {DURATION_FORM}"),
        blame_budget=read("blame-budget", parse_duration, f"expected {DURATION_FORM}, or 0"),
        lap_count=read("lap-count", _checked(int, lambda laps: laps > 0), "expected a whole number from 1 up"),
        native=choose("native", "auto", "off"),
        seed=seed,
        flaky=choose("flaky", *FLAKY),
        soak=soak is not None,
        soak_duration=read("soak", _checked(parse_duration, bool), _SOAK_FORM) if soak else None,
        leaks=None if leaks is None else read("leaks", _checked(parse_duration, bool), _LEAKS_FORM),
        remark=remark,
    )


def _checked(parse: Callable[[str], _Value], accepts: Callable[[_Value], bool]) -> Callable[[str], _Value]:
    def checked(text: str) -> _Value:
        value = parse(text)
        if not accepts(value):
            raise ValueError(text)
        return value

    return checked


def _debugger_attached() -> bool:
    """Whether somebody steps through this process: with ``python -m pdb``, or in an editor that uses debugpy."""
    trace: Any = sys.gettrace()
    module = getattr(trace, "__module__", None) or type(trace).__module__
    monitoring: Any = getattr(sys, "monitoring", None)
    steps = monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
    return steps or str(module).partition(".")[0] in _DEBUGGERS


def _drawn_seed(config: pytest.Config) -> int:
    """A new seed; in an xdist worker the one its controller drew."""
    given: dict[str, Any] = getattr(config, "workerinput", {})
    return int(given.get("rl_seed", random.SystemRandom().randrange(2**31)))


_settings = pytest.StashKey[Settings]()


def settings_of(config: pytest.Config) -> Settings:
    """The settings of *config*'s run, read once."""
    if _settings not in config.stash:
        config.stash[_settings] = read_settings(config)
    return config.stash[_settings]


def early_settings(config: pytest.Config) -> Settings:
    """The settings as they are known before any conftest is imported."""
    parsed, config.option = config.option, config.known_args_namespace
    try:
        return read_settings(config)
    finally:
        config.option = parsed


def use_seed(config: pytest.Config, seed: int) -> None:
    """From here on this process runs with *seed*: one of a test's many runs has its own."""
    config.stash[_settings] = replace(settings_of(config), seed=seed)


def path_option(config: pytest.Config, name: str) -> Path | None:
    """The path given for an option, seen from the directory pytest was started in."""
    given = config.getoption(name)
    return None if given is None else config.invocation_params.dir / given
