"""The markers, one plain function each. Its signature parses the marker, documents it, and rejects a wrong keyword."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_rlstability.model.units import DURATION_FORM, SIZE_FORM, parse_duration, parse_size

BACKENDS = ("auto", "zygote", "spawn", "inprocess")
GROUPS = ("auto", "test", "class", "module", "session")


@dataclass(frozen=True)
class Isolated:
    backend: str | None = None
    memory: int | None = None
    env: tuple[tuple[str, str], ...] = ()
    group: str | None = None
    exit_check: bool = True


@dataclass(frozen=True)
class NoLeak:
    limit: float | None = None
    signals: tuple[str, ...] | None = None
    warmup: int | None = None
    laps: int | None = None


@dataclass(frozen=True)
class NoStall:
    after: float


@dataclass(frozen=True)
class Flaky:
    pass_rate: float
    confidence: float
    max_runs: int


@dataclass(frozen=True)
class Soak:
    duration: float
    every: float | None = None


def rl_isolated(
    *,
    backend: str | None = None,
    memory: str | int | None = None,
    env: Mapping[str, str] | None = None,
    group: str | None = None,
    exit_check: bool = True,
) -> Isolated:
    """run the test in a process of its own. memory="2GiB" caps it; env={...} sets variables before it starts;
    group="module" or "class" lets those tests share one process; exit_check also runs garbage collection, atexit
    and thread shutdown before the test may pass."""
    _one_of("backend", backend, BACKENDS)
    _one_of("group", group, GROUPS)
    if env is not None and not all(isinstance(word, str) for pair in env.items() for word in pair):
        raise ValueError(f"env={env!r} is not a mapping of text to text")
    return Isolated(
        backend=backend,
        memory=None if memory is None else _value("memory", memory, parse_size, SIZE_FORM),
        env=tuple(sorted((env or {}).items())),
        group=group,
        exit_check=bool(exit_check),
    )


def rl_no_leak(
    limit: str | float | None = None,
    *,
    signals: str | Iterable[str] | None = None,
    warmup: int | None = None,
    laps: int | None = None,
) -> NoLeak:
    """nothing may grow with laps by more than limit per lap (default: more than noise). signals=["fds"] judges only
    those; warmup and laps set how many laps there are, which otherwise depends on how long a lap takes."""
    names = (signals,) if isinstance(signals, str) else None if signals is None else tuple(signals)
    return NoLeak(
        limit=limit if isinstance(limit, float) or limit is None else _value("limit", limit, parse_size, SIZE_FORM),
        signals=names,
        warmup=_count("warmup", warmup, least=0),
        laps=_count("laps", laps, least=1),
    )


def rl_no_stall(after: str | float = "30s") -> NoStall:
    """the test may never be this long without progress. Progress is a lap or a heartbeat; in a test that has neither
    it is processor time of any thread of its processes."""
    return NoStall(after=_value("after", after, parse_duration, DURATION_FORM))


def rl_flaky(pass_rate: float = 0.95, *, confidence: float = 0.95, max_runs: int = 60) -> Flaky:
    """the test passes at least this often. It is repeated, each time in a fresh process with a new seed, until the
    promise is kept or broken at this confidence, or max_runs are made."""
    return Flaky(
        pass_rate=_share("pass_rate", pass_rate, lambda rate: 0 < rate <= 1, "a number above 0 and at most 1"),
        confidence=_share("confidence", confidence, lambda level: 0.5 < level < 1, "a number above 0.5 and below 1"),
        max_runs=_number("max_runs", max_runs, least=1),
    )


def rl_soak(duration: str | float = "10min", *, every: str | float | None = None) -> Soak:
    """laps for this long with --rl-soak, else skipped; growth is judged at the end, as rl_no_leak does. every="10s"
    is the time from one sample to the next (default: short at first, then 10 s)."""
    return Soak(
        duration=_value("duration", duration, _positive_duration, DURATION_FORM),
        every=None if every is None else _value("every", every, _positive_duration, DURATION_FORM),
    )


def forked() -> Isolated:
    """pytest-forked's marker: the same as rl_isolated."""
    return Isolated()


MARKERS: dict[str, Callable[..., Any]] = {
    marker.__name__: marker for marker in (rl_isolated, rl_no_leak, rl_no_stall, rl_flaky, rl_soak, forked)
}


def marker_lines() -> list[str]:
    """What ``pytest --markers`` shows."""
    return [
        f"{name}{marker_signature(marker)}: {' '.join((marker.__doc__ or '').split())}"
        for name, marker in MARKERS.items()
    ]


def marker_signature(marker: Callable[..., Any]) -> str:
    """The arguments of *marker* with their defaults, without types; empty if it takes none."""
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(marker).parameters.values()]
    return str(inspect.Signature(parameters)) if parameters else ""


def read_marker(item: pytest.Item | pytest.Collector, name: str) -> Any:
    """The closest marker *name* of *item*, parsed; None when it has none."""
    mark = item.get_closest_marker(name)
    return None if mark is None else MARKERS[name](*mark.args, **mark.kwargs)


def is_marked(item: pytest.Item) -> bool:
    """Whether any marker of ours is on *item*."""
    return any(mark.name in MARKERS for mark in item.iter_markers())


def marker_errors(items: Iterable[pytest.Item], check_signals: Callable[[Collection[str]], object]) -> list[str]:
    """One line for each marker that cannot be understood: where it is, and what is wrong. *check_signals* raises a
    ``ValueError`` for the name of a signal that does not exist."""
    errors: dict[str, None] = {}
    for item in items:
        for mark in item.iter_markers():
            try:
                if mark.name in MARKERS:
                    parsed = MARKERS[mark.name](*mark.args, **mark.kwargs)
                    if isinstance(parsed, NoLeak) and parsed.signals is not None:
                        check_signals(parsed.signals)
                elif mark.name.startswith("rl_"):
                    _reject_unknown(mark.name, item.config)
            except (TypeError, ValueError) as error:
                path, line, _ = item.location
                errors[f"{path}:{(line or 0) + 1}: {item.name}: {_blame(mark.name, error)}"] = None
    return list(errors)


def _reject_unknown(name: str, config: pytest.Config) -> None:
    """Raise a ``ValueError`` for a marker that looks like ours, unless the suite has registered it as its own."""
    registered = {re.split(r"[:(]", line)[0].strip() for line in config.getini("markers")}
    if name not in registered:
        nearest = difflib.get_close_matches(name, MARKERS, n=1, cutoff=0.5)
        raise ValueError(f"unknown marker {name}" + (f"; did you mean {nearest[0]}?" if nearest else ""))


def skip_soaks(items: Iterable[pytest.Item]) -> None:
    """Mark the soak tests of *items* as skipped, with the flag that runs them."""
    for item in items:
        if item.get_closest_marker("rl_soak") is not None:
            item.add_marker(pytest.mark.skip(reason="rl_soak: runs only under --rl-soak (or --rl-soak=8h)"))


def _blame(name: str, error: Exception) -> str:
    text = str(error)
    return text if name in text else f"{name}: {text}"


def _one_of(keyword: str, value: str | None, accepted: tuple[str, ...]) -> None:
    if value is not None and value not in accepted:
        raise ValueError(f"{keyword}={value!r} is not one of {', '.join(accepted)}")


def _value(keyword: str, value: Any, parse: Callable[[Any], Any], form: str) -> Any:
    try:
        return parse(value)
    except ValueError:
        raise ValueError(f"{keyword}={value!r} is not {form}") from None


def _positive_duration(value: str | float) -> float:
    seconds = parse_duration(value)
    if not seconds:
        raise ValueError(value)
    return seconds


def _share(keyword: str, value: float, accepted: Callable[[float], bool], form: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not accepted(value):
        raise ValueError(f"{keyword}={value!r} is not {form}")
    return float(value)


def _count(keyword: str, value: int | None, *, least: int) -> int | None:
    return None if value is None else _number(keyword, value, least=least)


def _number(keyword: str, value: int, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{keyword}={value!r} is not a whole number from {least} up")
    return value
