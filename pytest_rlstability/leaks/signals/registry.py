"""The signals of a run, of this package and of other plugins; and the facts about them that reports need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import pytest

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo import UnavailableError

GROUPS = ("memory", "resources")


def shipped_signals() -> list[type[Signal]]:
    """The signals of this package, most specific first: a report's headline names the first that leaks."""
    from pytest_rlstability.leaks.signals import mappings, memory, processes, resources

    return [
        resources.InotifyInstances, resources.Descriptors, resources.InotifyWatches, resources.Threads,
        processes.Processes, processes.Zombies, processes.WorkerDescriptors,
        resources.SharedMemory, resources.TemporaryFiles, mappings.MappedFiles,
        memory.PythonBlocks, memory.TrackedObjects, memory.TorchStorages, memory.CudaAllocator, memory.CudaDriver,
        memory.MallocBytes, mappings.AnonymousMappings, processes.WorkerMemory,
        memory.ResidentSet, memory.UniqueSet,
    ]  # fmt: skip


class Signals:
    """The signals that a leak check can choose from.

    >>> Signals(shipped_signals()).expand(["threads", "fds"])
    ('fds', 'threads')
    """

    def __init__(self, classes: Iterable[type[Signal]]) -> None:
        self._classes: dict[str, type[Signal]] = {}
        for found in classes:
            other = self._classes.setdefault(found.name, found)
            if other is not found:
                raise pytest.UsageError(
                    f"two signals are called {found.name!r}: {other.__module__}.{other.__qualname__} "
                    f"and {found.__module__}.{found.__qualname__}"
                )

    def __iter__(self) -> Iterator[type[Signal]]:
        return iter(self._classes.values())

    def group(self, name: str) -> tuple[str, ...]:
        """The names of the judged signals in the group *name*."""
        return tuple(signal.name for signal in self if signal.judged and signal.group == name)

    def expand(self, names: Collection[str]) -> tuple[str, ...]:
        """The signals that *names* (signals or groups) stand for. A ``ValueError`` says which name is wrong."""
        chosen: set[str] = set()
        for name in names:
            if name not in self._classes and name not in GROUPS:
                raise ValueError(f"{name!r} is not a signal; there are {', '.join([*GROUPS, *self._classes])}")
            if name in GROUPS:
                chosen.update(self.group(name))
            elif self._classes[name].judged:
                chosen.add(name)
            else:
                title = self._classes[name].title
                raise ValueError(f"{name!r} is charted but never judged: {title} also grows where nothing leaks")
        return tuple(name for name in self._classes if name in chosen)

    def open(self, names: Collection[str] | None = None) -> tuple[list[Signal], dict[str, str]]:
        """Open the signals *names*, or all; those that are only charted always. Returns them, and name -> reason of
        those that this machine lacks. Close each when done.

        ``signals, missing = catalog.open(["fds", "memory"])``
        """
        wanted = self._classes if names is None else self.expand(names)
        signals: list[Signal] = []
        missing: dict[str, str] = {}
        for signal in self:
            if signal.name in wanted or not signal.judged:
                try:
                    signals.append(signal())
                except UnavailableError as reason:
                    missing[signal.name] = str(reason)
        return signals, missing


def signals_of(config: pytest.Config) -> Signals:
    """The signals of the run that *config* belongs to."""
    added: list[list[type[Signal]]] = config.hook.pytest_rlstability_signals()
    return Signals(signal for signals in added for signal in signals)


@dataclass(frozen=True)
class SignalFacts:
    """What reports need to know of a signal.

    Every reader of an event log knows the signals of this package. Those that other plugins add are described in the
    log's ``session`` event, because the reader may not have these plugins.
    """

    title: str
    unit: str
    compared: bool
    """Whether its growth is caused by the test, so that it can be compared with another run."""
    smallest: float
    resolution: float

    @classmethod
    def of(cls, signal: type[Signal]) -> SignalFacts:
        compared = signal.judged and not signal.foreign
        return cls(signal.title, signal.unit, compared, signal.smallest, signal.resolution)

    @classmethod
    def from_json(cls, data: Any) -> SignalFacts | None:
        """The facts in a log; None if they are malformed."""
        try:
            unit = "bytes" if data["unit"] == "bytes" else "count"
            numbers = float(data["smallest"]), float(data["resolution"])
            return cls(str(data["title"]), unit, bool(data["compared"]), *numbers)
        except (KeyError, TypeError, ValueError):
            return None


@cache
def _shipped() -> Mapping[str, SignalFacts]:
    return {signal.name: SignalFacts.of(signal) for signal in shipped_signals()}


def added_facts(config: pytest.Config) -> dict[str, Any]:
    """The signals that other plugins add, for the ``session`` event."""
    shipped = _shipped()
    return {s.name: asdict(SignalFacts.of(s)) for s in signals_of(config) if s.name not in shipped}


def signal_facts(described: Mapping[str, Any]) -> Mapping[str, SignalFacts]:
    """The signals of a run by name: the package's, and those that its ``Session`` event has *described*.

    >>> signal_facts({})["rss"].unit
    'bytes'
    """
    added = {name: SignalFacts.from_json(data) for name, data in described.items()}
    return {**{name: facts for name, facts in added.items() if facts is not None}, **_shipped()}
