"""Watches worlds: counts what they hold at each lap, and judges its growth."""

from __future__ import annotations

import functools
import gc
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from pytest_rlstability.kits.box2d.census import PREFIX, TOTALS, UNKNOWN, Census, Classify, take_census
from pytest_rlstability.kits.box2d.growth import Counts, Limits
from pytest_rlstability.kits.box2d.registry import LIBRARY_LEAKS, Registry, users_site
from pytest_rlstability.model.series import SampleTable
from pytest_rlstability.model.user_code import Site
from pytest_rlstability.model.verdict import Fact, Location, Section, Verdict, VerdictFailure, Word

SHOWN_SITES = 12
FIRST_HORIZON = 16
PROBED = ("bodies", "fixtures", "joints")
_JUDGED_ONLY_BY_LIMIT = frozenset({"contacts", UNKNOWN})
_WORLDS = "worlds"
_ROWS = 128

LimitsByName = Mapping[str, Limits | dict[str, float]]
OnLap = Callable[[int, dict[str, float]], None]


class Box2DWarning(UserWarning):
    """A count of a watched world is beyond its warning limit."""


class Watch:
    """What ``box2d_world.watch()`` gives: one watched world, or the world of one environment, each ``reset()`` of which
    ends a lap."""

    def __init__(
        self,
        target: Any,
        registry: Registry,
        classify: Classify | None,
        limits: LimitsByName | None,
        lap_over: Callable[[Watch], None],
    ) -> None:
        self._target = weakref.ref(target)
        self._lap_over = lap_over
        self._registry = registry
        self.classify = classify
        self.limits = {name: Limits.of(value) for name, value in (limits or {}).items()}
        self._table = SampleTable(_ROWS, reserve=True)
        self.laps = 0
        self._warned: set[str] = set()
        self._baseline: Counter[tuple[str, Site]] = Counter()
        self._failed = False
        if self.world is not None:
            self._count()

    @property
    def world(self) -> Any:
        """The world as it is now; environments replace theirs on reset. ``None`` when it is gone."""
        return _world_of(self._target())

    def census(self) -> Census:
        """Counts of everything in the world, with the number of worlds that this process keeps alive."""
        census = take_census(self.world, self.classify)
        census[_WORLDS] = self._registry.world_count()
        self._warn(census)
        return census

    def lap(self) -> Census:
        """End a lap: keep its counts and judge them. Growth beyond its limits raises the LEAK verdict at once."""
        self.laps += 1
        census = self._count()
        if self.laps == 1:
            self._baseline = self._registry.survivors(self.world)
        self._lap_over(self)
        # Growth without a limit is judged rarely before the end, because each look is another chance to be wrong.
        is_horizon = self.laps >= FIRST_HORIZON and self.laps.bit_count() == 1
        self._judge(self._table.names if is_horizon else self.limits)
        return census

    def finish(self) -> None:
        """Judge what the world holds at its end or the test's; for the fixture."""
        if not self._failed and self.world is not None and (self.limits or self.laps):
            self._count()
            self._judge(self._table.names)

    def _count(self) -> Census:
        census = self.census()
        self._table.add(self.laps, time.monotonic(), census)
        return census

    def _judge(self, names: Iterable[str]) -> None:
        """Raise the LEAK verdict if one of the counts is beyond its limits, unless it was raised before."""
        if not self._failed and (problems := self._problems(names)):
            self._failed = True
            raise VerdictFailure(self._verdict(problems))

    def _warn(self, census: Census) -> None:
        for name, limits in self.limits.items():
            if limits.warning is not None and census[name] > limits.warning and name not in self._warned:
                self._warned.add(name)
                text = f"box2d_world: {name} is {census[name]}, beyond the warning limit of {limits.warning:g}"
                ((path, line, _),) = users_site().lines[:1] or (("unknown", 0, ""),)
                warnings.warn_explicit(text, Box2DWarning, path, line)

    # Judging

    def _problems(self, judged: Iterable[str]) -> dict[str, str]:
        """What is wrong with the counts, by name: those with limits of their own first, totals last."""
        names = [name for name in judged if name in self.limits or name not in _JUDGED_ONLY_BY_LIMIT]
        names.sort(key=lambda name: (name not in self.limits, name in TOTALS, name))
        found = {name: Counts.of(self._table, name).beyond(self.limits.get(name, Limits())) for name in names}
        if found.get(_WORLDS) and not self._worlds_survive_collection():
            del found[_WORLDS]
        return {name: f"{name} {problem}" for name, problem in found.items() if problem}

    def _worlds_survive_collection(self) -> bool:
        """Worlds in a reference cycle are freed by a collection; only those that stay are leaked."""
        before = self._registry.world_count()
        gc.collect()
        return self._registry.world_count() >= before

    def _verdict(self, problems: Mapping[str, str]) -> Verdict:
        headline, *others = problems.values()
        if others:
            headline = f"{headline} (and {len(others)} more)"
        sections: list[Section] = [("", "\n".join(others))] if others else []
        sections.append(("counts", self._table_text()))
        sections.append(("created and never destroyed", self._survivors_text()))
        sections.append(("lost by Box2D itself, and allowed for", library_share(self._registry.library_leaks)))
        made_at = next((Location(*line) for (_, site), _ in self._survivors() for line in site.lines), None)
        return Verdict(Word.LEAK, f"box2d: {headline}", tuple(sections), self._facts(next(iter(problems))), made_at)

    def _facts(self, name: str) -> dict[str, Fact]:
        """The facts of the count that the headline names."""
        limits = self.limits.get(name, Limits())
        promised = (limits.critical, limits.per_lap, limits.per_minute)
        return {
            "class": "box2d",
            "signal": name,
            "per_lap": round(Counts.of(self._table, name).per_lap, 3),
            "limit": next((limit for limit in promised if limit is not None), 0),
            "laps": self.laps,
        }

    def _table_text(self) -> str:
        lines = [f"{'':<12} {'first':>7} {'last':>7} {'per lap':>9} {'per minute':>11}"]
        for name in sorted(self._table.names):
            counts = Counts.of(self._table, name)
            per_minute = "-" if counts.per_minute is None else f"{counts.per_minute:.3g}"
            first, last = counts.values[0], counts.values[-1]
            lines.append(f"{name:<12} {first:>7} {last:>7} {counts.per_lap:>9.3g} {per_minute:>11}")
        return "\n".join(lines)

    def _survivors(self) -> list[tuple[tuple[str, Site], int]]:
        """What was made since the first lap and never destroyed, by kind and line, the most frequent first."""
        survivors = self._registry.survivors(self.world)
        survivors.subtract(self._baseline)
        return [(made, count) for made, count in survivors.most_common(SHOWN_SITES) if count > 0]

    def _survivors_text(self) -> str:
        lines: list[str] = []
        for (what, site), count in self._survivors():
            lines += [f"{count} x {what}, made at", *(f"    {line}" for line in str(site).split("\n"))]
        return "\n".join(lines) or "nothing since the first lap"


def library_share(leaks: Counter[str]) -> str:
    """What Box2D lost by itself, by name and size."""
    sizes = {name: f", about {leaks[name] * size} bytes" for name, size in LIBRARY_LEAKS.items()}
    lines = [f"{count} x {name}{sizes.get(name, '')}" for name, count in sorted(leaks.items()) if count]
    return "\n".join(lines) or "nothing"


def _unwrapped(target: Any) -> Any:
    return getattr(target, "unwrapped", target)


def _world_of(target: Any) -> Any:
    return getattr(_unwrapped(target), "world", target)


class WorldFactory:
    """What the ``box2d_world`` fixture gives: ``world = box2d_world(gravity=(0, -10))`` makes a watched world,
    ``box2d_world.watch(world_or_env, classify=..., limits=...)`` watches one of yours."""

    def __init__(self, probe: Callable[..., Any] | None = None, on_lap: OnLap | None = None) -> None:
        """The leak judge gets every count through *probe*. *on_lap* is called with the counts at the end of each lap of
        the world that was made or watched last."""
        self.registry = Registry()
        self._probe, self._on_lap = probe, on_lap
        self._watches: list[Watch] = []
        self._newest: Any = None
        self._verdicts: list[VerdictFailure] = []
        self._stack = ExitStack()
        self._counted: set[str] = set()

    def __call__(
        self, *arguments: Any, classify: Classify | None = None, limits: LimitsByName | None = None, **keywords: Any
    ) -> Any:
        """A new ``Box2D.b2World`` made with these arguments, with ``census()`` and ``lap()`` of its own."""
        world = _checked_world_class()(*arguments, **keywords)
        watch = self._watch(world, classify, limits)
        world.census, world.lap, world.retire = watch.census, watch.lap, functools.partial(self._retire, watch)
        return world

    def watch(self, target: Any, classify: Classify | None = None, *, limits: LimitsByName | None = None) -> Watch:
        """Watch a world, or an environment that has one.

        *classify* names the class of a body (``lambda body: body.userData``), or maps names to conditions;
        *limits* maps the name of a count to ``{"warning": 50, "critical": 100, "per_lap": 0, "per_minute": 5}``.
        """
        if _world_of(target) is not None:
            self.registry.adopt(_world_of(target))
        watch = self._watch(target, classify, limits)
        # The newest is kept alive, to be judged when the test ends. Keeping all would leak one world per lap.
        self._newest = target
        return watch

    def _watch(self, target: Any, classify: Classify | None, limits: LimitsByName | None) -> Watch:
        watch = Watch(target, self.registry, classify, limits, self._lap_over)
        environment = _unwrapped(target)
        if callable(getattr(target, "reset", None)) and hasattr(environment, "world"):
            self._end_laps_at_reset(environment, watch)
        self._watches = [*(old for old in self._watches if old.world is not None), watch]
        if self._probe is not None:
            self._offer_probes(self._probe, watch.limits)
        return watch

    def census(self, target: Any = None) -> Census:
        """The counts of *target*, or of the world that was made or watched last."""
        watches = [watch for watch in self._watches if target is None or watch.world is _world_of(target)]
        if not watches:
            raise LookupError("no watched world: box2d_world.watch(world) first")
        return watches[-1].census()

    def counts(self) -> dict[str, float]:
        """What is in all watched worlds together, under the names that samples have: ``box2d dynamic``. A class
        that has no bodies any more counts 0."""
        counted = Counter(dict.fromkeys(self._counted, 0))
        for watch in self._watches:
            if watch.world is not None:
                counted.update(take_census(watch.world, watch.classify))
        counted[_WORLDS] = self.registry.world_count()
        self._counted.update(counted)
        return {f"{PREFIX}{name}": float(count) for name, count in counted.items()}

    def _lap_over(self, watch: Watch) -> None:
        if self._on_lap is not None and watch is self._watches[-1]:
            self._on_lap(watch.laps, self.counts())

    def _offer_probes(self, probe: Callable[..., Any], limits: Mapping[str, Limits]) -> None:
        for name in sorted({*PROBED, *limits}):
            its = limits.get(name, Limits(per_lap=0))
            read = functools.partial(self._count, name)
            probe(f"{PREFIX}{name}", read, limit=its.critical, per_minute=its.per_minute, per_lap=its.per_lap)

    def _count(self, name: str) -> int:
        return sum(watch.census()[name] for watch in self._watches if watch.world is not None)

    def _end_laps_at_reset(self, environment: Any, watch: Watch) -> None:
        reset = environment.reset

        @functools.wraps(reset)
        def reset_and_count(*arguments: Any, **keywords: Any) -> Any:
            result = reset(*arguments, **keywords)
            watch.lap()
            return result

        environment.reset = reset_and_count
        self._stack.callback(environment.__dict__.pop, "reset", None)

    def _retire(self, watch: Watch) -> None:
        """Judge a world that is about to be freed, and keep the verdict for the end of the test."""
        try:
            watch.finish()
        except VerdictFailure as verdict:
            self._verdicts.append(verdict)

    def __enter__(self) -> WorldFactory:
        self._stack.enter_context(self.registry)
        return self

    def __exit__(self, *exception: object) -> None:
        for watch in self._watches:
            self._retire(watch)
        self._newest = None
        self._stack.close()
        if self._verdicts:
            raise self._verdicts[0]


@functools.cache
def _checked_world_class() -> Any:
    import Box2D

    class CheckedWorld(Box2D.b2World):  # type: ignore[misc]
        """A world that is judged when it is freed."""

        def __del__(self) -> None:
            if "retire" in self.__dict__:
                self.retire()

    return CheckedWorld
