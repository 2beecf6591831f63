"""One run of a test in its process, as facts: what every verdict is reached from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pytest_rlstability.soak.history import MemoryHistory
from pytest_rlstability.soak.state import SoakState
from pytest_rlstability.soak.thinning import Thinning

Record = dict[str, Any]


@dataclass
class Exit:
    """How a process ended: ``status`` as subprocess gives it, None when its keeper was lost with it."""

    status: int | None
    peak: int = 0
    leftovers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Killed:
    """Why the supervisor ended a test: ``timeout``, ``memory`` or ``stall``; and what it saw.

    *gather* adds to it. It is called after the test's own stacks are known, because looking may wake a process up.
    """

    reason: str
    detail: str
    limit: float = 0.0
    gather: Callable[[], dict[str, object]] = field(default=dict, compare=False)
    facts: dict[str, object] = field(default_factory=dict)


@dataclass
class Run:
    """Everything known of one run once it is over (or, in a shared process, once its test is)."""

    nodeid: str
    backend: str
    seed: int
    pid: int
    started: float
    memory_limit: int | None = None
    after: str = ""
    """The test that ran before it in the same process, if one did."""
    repeated: bool = False
    """Whether it is one of many runs of the same test."""
    reports: list[Record] = field(default_factory=list)
    warnings: list[Record] = field(default_factory=list)
    stages_done: list[str] = field(default_factory=list)
    stages_open: tuple[str, ...] = ()
    dead_workers: list[Record] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    suite_properties: list[tuple[str, str]] = field(default_factory=list)
    junit_attributes: dict[str, str] = field(default_factory=dict)
    phase: str = "start"
    phase_start: float = 0.0
    lap: int = 0
    thinning: Thinning = field(default_factory=Thinning)
    memory: MemoryHistory = field(default_factory=MemoryHistory)
    soak: SoakState | None = None
    soak_heard: float = 0.0
    """When *soak* came, by ``time.monotonic``."""
    done: bool = False
    clean: bool = False
    shared: bool = False
    goes_on: bool = False
    """Whether the process, told already, went on with the next test."""
    stop: Record | None = None
    stops: Record = field(default_factory=dict)
    """What the test has set ``session.shouldstop`` and ``shouldfail`` to."""
    interrupted: bool = False
    fault: str = ""
    killed: Killed | None = None
    dump: str = ""
    threads: dict[int, str] = field(default_factory=dict)
    native: str = ""
    stdout: str = ""
    stderr: str = ""
    exit: Exit | None = None
    killed_by_kernel: bool = False
    ended: float = field(default_factory=time.time)

    @property
    def passed_the_rule(self) -> bool:
        """Every phase reported, a clean-exit record, and status 0; in a process that others go on using, the
        test's own end takes the place of the last two."""
        if self.killed is not None:
            return False
        if self.exit is None:
            return self.done
        return self.done and self.clean and self.exit.status == 0

    def hear(self, record: Record) -> None:
        """Take in one record of the test's process."""
        kind = record["kind"]
        if kind == "sample":
            self._take_sample(record)
        elif kind == "report":
            self.reports.append(record["data"])
        elif kind == "warning":
            self.warnings.append(record)
        elif kind == "stage":
            self._enter_stage(tuple(record["path"]))
        elif kind == "dead-workers":
            self.dead_workers = record["workers"]
        elif kind == "leftovers":
            self.left_behind = record["what"]
        elif kind == "junit":
            self.suite_properties += [(name, value) for name, value in record["suite"]]
            self.junit_attributes.update(record["attributes"])
        elif kind == "stop":
            self.stop = record
        elif kind == "interrupt":
            self.interrupted = True
        elif kind == "fault":
            self.fault = record["traceback"]
        elif kind == "done":
            self.done, self.lap = True, record["laps"]
            self.goes_on, self.stops = record["goes_on"], record["stops"]
        elif kind == "clean":
            self.clean = True

    def _take_sample(self, sample: Record) -> None:
        self.memory.add(sample)
        if "soak" in sample:
            self.soak = SoakState.from_dict(sample["soak"])
            self.soak_heard = time.monotonic()

    def _enter_stage(self, path: tuple[str, ...]) -> None:
        if len(path) < len(self.stages_open):
            self.stages_done.append(" > ".join(self.stages_open))
        self.stages_open = path
