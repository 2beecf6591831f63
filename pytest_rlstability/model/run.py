"""One run of a test in its process: what was asked, what was seen, how it ended. Every verdict is made from this."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_rlstability.model import messages
from pytest_rlstability.model.ends import Ends
from pytest_rlstability.model.messages import Json, Message, ProtocolError
from pytest_rlstability.model.series import MemoryHistory
from pytest_rlstability.model.soak_state import SoakState

_STAGES = 100
"""Stages that are kept of the first, and of the last, that a test has done."""
_STAGES_LEFT_OUT = "[... {:,} stages left out by rl-stability ...]"
_WARNINGS = 500


def _warnings_left_out(count: int) -> messages.WarningRecorded:
    text = f"{count:,} more warnings of this test were left out by rl-stability"
    return messages.WarningRecorded("runtest", "", text, ("builtins", "UserWarning"), "", 0, None)


@dataclass(frozen=True)
class Exit:
    """How a process ended: *status* as ``subprocess`` gives it, None when its parent died before it could say.

    *strays* are the processes that it left running, as text.
    """

    status: int | None
    peak: int = 0
    strays: tuple[str, ...] = ()


@dataclass(frozen=True)
class Killed:
    """Why a watchdog ended a test: ``timeout``, ``memory``, ``stall`` or a word of its own; and what it saw.

    ``Killed("gpu memory", "11.2 GiB used, the limit is 8 GiB", limit=8 * 2**30)``

    *gather* adds more facts. It is called after the test's own stacks were read, because looking may wake a process up.
    """

    reason: str
    detail: str
    limit: float = 0.0
    gather: Callable[[], dict[str, object]] = field(default=dict, compare=False)
    facts: dict[str, object] = field(default_factory=dict)


SCRIPT = "script"
"""The backend of a script, which is not a test."""


@dataclass(frozen=True)
class RunSpec:
    """What was asked."""

    nodeid: str
    backend: str
    seed: int
    memory_limit: int | None = None
    repeated: bool = False
    """Whether it is one of many runs of the same test."""
    stays: bool = False
    """Whether the process waits for another test afterwards."""
    previous_test: str = ""
    """The test that ran before it in the same process, if one did."""
    unsafe_fork: str = ""
    """Why its process, which was forked, should not have been."""

    @property
    def is_script(self) -> bool:
        return self.backend == SCRIPT


@dataclass
class Observed:
    """What was seen of the test while it ran, most of it from its own messages."""

    pid: int = 0
    started: float = field(default_factory=time.time)
    phase: str = "start"
    phase_start: float = 0.0
    lap: int = 0
    reports: list[Json] = field(default_factory=list)
    warnings: Ends[messages.WarningRecorded] | list[messages.WarningRecorded] = field(
        default_factory=lambda: Ends(_WARNINGS, _warnings_left_out)
    )
    stages_done: Ends[str] = field(default_factory=lambda: Ends(_STAGES, _STAGES_LEFT_OUT.format))
    stages_open: tuple[str, ...] = ()
    fixture: str = ""
    """The wide fixture that is being set up."""
    dead_workers: dict[int, messages.WorkerDied] = field(default_factory=dict)
    waiting_tasks: list[Json] = field(default_factory=list)
    """The coroutines that a stalled test waits in, as ``StallDescribed`` has them."""
    tear_down_error: str = ""
    """What wide fixtures raised when they were torn down after the last test, or before this one."""
    resources_left: list[str] = field(default_factory=list)
    suite_properties: list[tuple[str, str]] = field(default_factory=list)
    junit_attributes: dict[str, str] = field(default_factory=dict)
    debugged: bool = False
    """Whether somebody looks at it in a debugger, which no limit may end."""
    plugin_changes: list[messages.PluginsChanged] = field(default_factory=list)
    plugins_lost: set[str] = field(default_factory=set)
    """What plugins kept in the test's process and could not be copied to pytest's."""
    memory: MemoryHistory = field(default_factory=MemoryHistory)
    soak: SoakState | None = None
    soak_seen: float = 0.0
    """When *soak* came, by ``time.monotonic``."""
    done: messages.TestDone | None = None
    clean_exit: bool = False
    session_exit: messages.SessionExit | None = None
    interrupted: bool = False
    internal_error: str = ""

    @property
    def all_passed(self) -> bool:
        """Whether the test reported, and every report is one of passing."""
        return bool(self.reports) and all(report["outcome"] == "passed" for report in self.reports)

    @property
    def missing_phases(self) -> list[str]:
        """The phases of which a test that says it is done has sent no report."""
        phases = {str(report["when"]): report["outcome"] for report in self.reports}
        wanted = ["setup", "call", "teardown"] if phases.get("setup") == "passed" else ["setup", "teardown"]
        return [phase for phase in wanted if phase not in phases]

    def handle(self, message: Message) -> None:
        """Take in one message of the test's process."""
        match message:
            case messages.Sampled():
                self._add_sample(message)
            case messages.PhaseReported(report):
                same = self.reports and "keywords" not in report
                self.reports.append({**report, "keywords": self.reports[-1]["keywords"]} if same else report)
            case messages.WarningRecorded():
                self.warnings.append(message)
            case messages.StageEntered(path):
                self._enter_stage(path)
            case messages.FixtureEntered(name):
                self.fixture = name
            case messages.WorkerDied():
                self.dead_workers[message.pid] = message
            case messages.StallDescribed(tasks):
                self.waiting_tasks = tasks
            case messages.ResourcesLeft(lines):
                self.resources_left = lines
            case messages.JunitRecorded(properties, attributes):
                self.suite_properties += [(name, value) for name, value in properties]
                self.junit_attributes.update(attributes)
            case messages.DebuggerEntered():
                self.debugged = True
            case messages.PluginsChanged():
                self.plugin_changes.append(message)
            case messages.FixturesTornDown(error):
                self.tear_down_error = error
            case messages.SessionExit():
                self.session_exit = message
            case messages.Interrupted():
                self.interrupted = True
            case messages.InternalError(traceback):
                self.internal_error = traceback
            case messages.TestDone():
                self.done, self.lap = message, message.laps
            case messages.CleanExit():
                self.clean_exit = True
            case _:
                raise ProtocolError(f"a test process does not send {type(message).__name__} while its test runs")

    def _add_sample(self, sample: messages.Sampled) -> None:
        if (memory := sample.values.get("rss")) is not None:
            self.memory.add(sample.seconds, sample.lap, memory)
        if sample.soak is not None:
            self.soak, self.soak_seen = SoakState.from_dict(sample.soak), time.monotonic()

    def _enter_stage(self, path: tuple[str, ...]) -> None:
        if len(path) < len(self.stages_open):
            self.stages_done.append(" > ".join(self.stages_open))
        self.stages_open = path


@dataclass
class Ending:
    """How the run ended, as seen from outside. *exit* is None when the process lives on after the test."""

    time: float = field(default_factory=time.time)
    exit: Exit | None = None
    killed: Killed | None = None
    killed_by_kernel: bool = False
    """Whether the kernel's out-of-memory killer ended it."""
    dump: str = ""
    """faulthandler's text."""
    thread_names: dict[int, str] = field(default_factory=dict)
    native_stack: str = ""
    left_before: list[str] = field(default_factory=list)
    """What earlier tests left in the process that died."""
    stdout: str = ""
    stderr: str = ""


@dataclass
class Run:
    """Everything known of one run."""

    spec: RunSpec
    seen: Observed = field(default_factory=Observed)
    ending: Ending = field(default_factory=Ending)

    @property
    def completed_cleanly(self) -> bool:
        """The test said that it is done, the exit checks passed, and the status is 0. In a process that waits for more
        tests, the first of these is enough."""
        if self.ending.killed is not None or self.seen.done is None:
            return False
        return self.ending.exit is None or (self.seen.clean_exit and self.ending.exit.status == 0)

    @property
    def peak_memory(self) -> int:
        """The most bytes that the test used; of a process that died, the most that it ever used. 0: unknown."""
        measured = 0 if self.seen.done is None else self.seen.done.peak
        return measured or (0 if self.ending.exit is None else self.ending.exit.peak)

    @property
    def seconds(self) -> float:
        return self.ending.time - self.seen.started
