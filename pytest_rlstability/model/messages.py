"""Every message between two processes of a run: one frozen dataclass a kind, and the text that it crosses as.

A message crosses as one line of JSON, ``["TestDone", {"laps": 3, ...}]``. Readers decide by ``match``. A kind that is
not in this module is an internal error. However many there are, they stand in one module: that is how a reader sees all
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from pytest_rlstability.model.json_text import cut, from_json, plain, printable, to_json
from pytest_rlstability.model.units import KEPT_BYTES

Json = dict[str, Any]
"""A JSON object that belongs to somebody else: a report in pytest's own form, a configuration in coverage's."""

NOT_DELIVERED = 71
"""Exit code of a test process whose last message could not be sent: the test closed its connection."""

LONGEST_MESSAGE = 4 << 20
"""Bytes of one message. ``encode`` cuts what is longer."""


class ProtocolError(Exception):
    """One of our own processes sent something that this module does not define."""


# From any process to pytest's, first on every connection.


@dataclass(frozen=True, slots=True)
class Hello:
    """Says whose connection this is. ``crash_dump`` carries no messages, only faulthandler's text."""

    role: Literal["parent", "test", "crash_dump"]
    token: str
    serial: int = 0
    pid: int = 0


# From pytest's process to the parent of the test processes, and back.


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start a test process. *fixtures_of*: set up the wide fixtures of this test before the fork. The fields after it
    are for a fresh interpreter; a fork needs none of them."""

    serial: int
    canary: bool = False
    fixtures_of: int | None = None
    python: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = ""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """No process was started for *serial*. *again*: the same order may succeed a moment later."""

    serial: int
    reason: str
    again: bool


@dataclass(frozen=True, slots=True)
class TearDownFixtures:
    """No more tests: tear down the wide fixtures that tests were forked with. The answer is ``FixturesTornDown``."""


@dataclass(frozen=True, slots=True)
class FixturesTornDown:
    """All wide fixtures were torn down; or, with the traceback of an *error*, some could not be."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class EndProcess:
    """Kill a test process and everything below it."""

    serial: int


@dataclass(frozen=True, slots=True)
class Quit:
    """The run is over. A connection that closes without this message means that pytest was killed."""


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A test process was reaped. *status* as ``subprocess`` gives it, *peak* in bytes, *strays* as text.

    *strays* are the processes that the test left running. They have been ended too.
    """

    serial: int
    status: int
    peak: int
    strays: tuple[str, ...] = ()


# From pytest's process to a test process.


@dataclass(frozen=True, slots=True)
class PrepareInterpreter:
    """Make a fresh interpreter like pytest's process, and collect the file at *path*; without one, all files."""

    arguments: list[str]
    invocation_directory: str
    path: str
    sys_path: list[str]
    argv: list[str]
    basetemp: str | None
    worker_input: Json | None
    hold_crashes: bool
    seed: int
    coverage: Json | None
    before_import: tuple[str, ...]
    """Functions (``package.module:name``) to call before the test's modules are imported."""
    unimportable: tuple[str, ...] = ()
    """Node ids of files that must not be imported."""


@dataclass(frozen=True, slots=True)
class RunTest:
    """Run *test* (its index, or its node id in a fresh interpreter).

    *next_test* is the test after it, which decides what pytest tears down. *stays* says whether the process waits for
    another test afterwards. A *queued* message was sent before the test before it ended: it counts only if the process
    has said that it continues by itself. *attempts* at the same test have ended with the death of their process.
    *stacks_every* so many seconds it writes its stacks by itself, on a system where nobody can ask for them.
    """

    test: int | str
    next_test: int | str | None
    seed: int
    tests_failed: int
    memory: int | None = None
    exit_check: bool = True
    repeated: bool = False
    stays: bool = False
    queued: bool = False
    attempts: int = 0
    stacks_every: float = 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """No more tests: tear down what is left, check the exit, and end."""


# From a test process to pytest's.


@dataclass(frozen=True, slots=True)
class ThreadStarted:
    """A thread of the test process, so that a stack dump can name it."""

    ident: int
    native: int
    name: str
    daemon: bool
    inherited: bool
    """Whether it was there before the test."""


@dataclass(frozen=True, slots=True)
class LockWait:
    """A thread is about to block on a tracked lock, or on the end of a thread.

    *bound* says whether only the owner can release it. *holds* lists ``(lock, where it was taken)``.
    """

    thread: int
    native: int
    name: str
    lock: int
    what: str
    site: str
    endless: bool
    holds: Sequence[Sequence[str]]
    owner: int | None = None
    owner_name: str = ""
    owner_site: str = ""
    bound: bool = False


@dataclass(frozen=True, slots=True)
class LockTaken:
    """A lock that others have waited for for a while has a new owner."""

    lock: int
    owner: int | None = None
    owner_name: str = ""
    owner_site: str = ""
    bound: bool = False


@dataclass(frozen=True, slots=True)
class LockWaitEnded:
    """The thread has what it waited for."""

    thread: int


@dataclass(frozen=True, slots=True)
class StageEntered:
    """The test is inside these stages of ``rl_stage``, outermost first; none when it left the last one."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FixtureEntered:
    """The test is in the set-up of this fixture, one that other tests use too; empty when it has left it."""

    name: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """Values measured at one moment of a test. *judged* and *soak* come with some samples only."""

    lap: int
    seconds: float
    values: dict[str, float]
    warmup: int | None = None
    cpu_seconds: float | None = None
    lap_seconds: float | None = None
    judged: list[Json] | None = None
    soak: Json | None = None
    waits_for: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker process of the test was ended by a signal that the test did not send."""

    name: str
    pid: int
    signal: str
    stack: str


@dataclass(frozen=True, slots=True)
class StallDescribed:
    """The tasks of a stalled test that wait, which only its own process can see. Each is a dict: its ``name``, its
    awaits as ``frames`` (file, line, function), newest first, and the names of the tasks that it ``awaits``."""

    tasks: list[Json]


@dataclass(frozen=True, slots=True)
class PhaseReported:
    """pytest's report of one phase, as ``pytest_report_to_serializable`` gives it. Without ``keywords`` it has those of
    the report before it."""

    report: Json


@dataclass(frozen=True, slots=True)
class WarningRecorded:
    """A Python warning that pytest recorded. *category* is the module and the name of its class."""

    when: str
    nodeid: str
    message: str
    category: tuple[str, str]
    filename: str
    lineno: int
    line: str | None


@dataclass(frozen=True, slots=True)
class DebuggerEntered:
    """The test has reached ``breakpoint()`` and waits for the user."""


@dataclass(frozen=True, slots=True)
class PluginsChanged:
    """What plugins keep has changed in another process (see ``child.plugin_state``). Sent both ways; *version* numbers
    those from pytest's. *lost*: what could not be copied."""

    changes: str
    lost: tuple[str, ...] = ()
    version: int = 0


@dataclass(frozen=True, slots=True)
class JunitRecorded:
    """What the test wrote to pytest's JUnit log: properties of the suite, attributes of the test case."""

    suite_properties: Sequence[Sequence[str]]
    attributes: dict[str, str]


@dataclass(frozen=True, slots=True)
class ResourcesLeft:
    """Threads, descriptors, processes and the like that the test did not clean up, one line each."""

    lines: list[str]


@dataclass(frozen=True, slots=True)
class SessionExit:
    """The test called ``pytest.exit``."""

    reason: str
    code: int | None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The test raised KeyboardInterrupt."""


@dataclass(frozen=True, slots=True)
class InternalError:
    """Our own code failed in the test process."""

    traceback: str


@dataclass(frozen=True, slots=True)
class TestDone:
    """The test is over, tear-down included.

    *stays*: the process waits for another test. *continues*: it starts the queued test by itself. *peak*: the most
    bytes it used. *left*: what it left behind or changed in a process that other tests share, one line each.
    *imported*: the libraries that it imported itself, in a process of its own.
    *should_stop* and *should_fail* are what the test set on pytest's session.
    """

    __test__ = False

    laps: int
    continues: bool
    stays: bool = True
    peak: int = 0
    left: tuple[str, ...] = ()
    imported: tuple[str, ...] = ()
    should_stop: bool | str = False
    should_fail: bool | str = False


@dataclass(frozen=True, slots=True)
class CleanExit:
    """The exit checks are done; what is left is the end of the process."""


Message = (
    Hello | StartProcess | StartFailed | TearDownFixtures | FixturesTornDown | EndProcess | Quit | ProcessEnded
    | PrepareInterpreter | RunTest | Finish | ThreadStarted | LockWait | LockTaken | LockWaitEnded | StageEntered
    | FixtureEntered | Sampled | WorkerDied | StallDescribed | PhaseReported | WarningRecorded | JunitRecorded
    | ResourcesLeft | DebuggerEntered | PluginsChanged | SessionExit | Interrupted | InternalError | TestDone
    | CleanExit
)  # fmt: skip
_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__args__}
_FIELDS = {kind: tuple(one.name for one in fields(kind)) for kind in _KINDS.values()}
_TUPLES = {kind: tuple(one.name for one in fields(kind) if "tuple[" in str(one.type)) for kind in _KINDS.values()}


def encode(message: Message) -> str:
    """*message* as one line of JSON. A value that JSON does not know crosses as text; what is too long is cut."""
    kind = type(message)
    values: object = [kind.__name__, {name: getattr(message, name) for name in _FIELDS[kind]}]
    try:
        line = to_json(values)
    except Exception:  # odd keys, circles, endless depth
        values = plain(values, printable)
        line = to_json(values)
    return line if len(line) <= LONGEST_MESSAGE else _cut_line(values, len(line))


def _cut_line(values: object, size: int) -> str:
    """*values* as JSON of a size that is allowed: long texts and lists lose their middle."""
    kept = KEPT_BYTES
    while True:
        values = cut(values, kept)
        match values:
            case ["PhaseReported", {"report": {"sections": list() as sections}}] if kept == KEPT_BYTES:
                sections.append(("rl-stability", f"Parts of this report were left out: it had {size:,} characters."))
        line = to_json(values)
        if len(line) <= LONGEST_MESSAGE or kept == 1:
            return line
        kept //= 4


def decode(line: str | bytes) -> Message:
    """The message that ``encode`` made *line* of. ``ValueError``: not JSON. ``ProtocolError``: not one of ours."""
    try:
        sent = from_json(line.decode() if isinstance(line, bytes) else line)
    except RecursionError:
        raise ProtocolError(f"not a message of ours: {line[:200]!r}") from None
    try:
        name, values = sent
        kind = _KINDS[name]
        values.update({key: tuple(values[key]) for key in _TUPLES[kind]})
        return kind(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a message of ours ({error!r}): {line[:200]!r}") from None
