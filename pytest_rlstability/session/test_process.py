"""What pytest's process knows of one test process."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from pytest_rlstability.model.lock_waits import update_waits
from pytest_rlstability.model.messages import (
    LockTaken,
    LockWait,
    LockWaitEnded,
    Message,
    PrepareInterpreter,
    StartFailed,
    TestDone,
    ThreadStarted,
)
from pytest_rlstability.model.progress_counters import ProcessCounters
from pytest_rlstability.model.run import Exit
from pytest_rlstability.model.units import shorten
from pytest_rlstability.osinfo import LINUX, WINDOWS
from pytest_rlstability.osinfo.message_socket import MessageSocket
from pytest_rlstability.session.stack_waits import StackWaits

_MOST_THREADS = 10_000
"""Threads of one process whose names are kept, the newest."""
_THREAD_NAME = 100


@dataclass
class TestProcess:
    """What pytest's process knows of one test process."""

    __test__ = False

    serial: int
    counters: ProcessCounters
    stdout: Path
    stderr: Path
    stacks: Path = Path(os.devnull)
    """Where it writes its stacks by itself (``osinfo.timed_stacks``)."""
    sent: Path = Path(os.devnull)
    """Where it keeps a copy of its messages, if it does."""
    pid: int = 0
    first_order: PrepareInterpreter | None = None
    """Sent as soon as the process connects."""
    messages: MessageSocket | None = None
    crash_socket: socket.socket | None = None
    unread: list[Message] = field(default_factory=list)
    crash_dump: bytearray = field(default_factory=bytearray)
    was_sampled: bool = False
    """Whether it was asked for stacks while it went on. They come where those of a crash do."""
    main_thread: int = 0
    """The system's number of its main thread."""
    thread_names: dict[int, str] = field(default_factory=dict)
    native_names: dict[int, str] = field(default_factory=dict)
    daemon_threads: set[int] = field(default_factory=set)
    inherited_threads: set[int] = field(default_factory=set)
    natives: dict[int, int] = field(default_factory=dict)
    """The system's number of a thread, by its ident."""
    lock_waits: dict[int, LockWait] = field(default_factory=dict)
    stack_waits: StackWaits = field(default_factory=StackWaits)
    own_signals: tuple[int, ...] = ()
    """Signals that we handle in it, besides those that we handle in every test."""
    refused: StartFailed | None = None
    """Why its parent did not start it."""
    exit: Exit | None = None
    killed: bool = False
    """Whether we asked for it to be killed."""

    @property
    def main(self) -> int:
        """The system's number of its main thread, or its own before that is known. Linux has one number for both."""
        return self.pid if LINUX else self.main_thread or self.pid

    @property
    def ready(self) -> bool:
        """Whether it has connected, and its stacks go where they can be read."""
        return self.messages is not None and (self.crash_socket is not None or WINDOWS)

    def send(self, message: Message) -> None:
        """Send *message* to the process; one that died before it connected gets nothing."""
        if self.messages is not None:
            self.messages.send(message)

    def take_messages(self, *, one_test: bool = False) -> list[Message]:
        """What has arrived; of *one_test* only, if the process may already run the next one."""
        end = len(self.unread)
        if one_test:
            ends = (number for number, one in enumerate(self.unread, 1) if isinstance(one, TestDone) and one.stays)
            end = next(ends, end)
        taken, self.unread = self.unread[:end], self.unread[end:]
        return taken

    def handle(self, message: Message) -> None:
        """Keep one message, or what it says about the process itself."""
        match message:
            case ThreadStarted():
                self._add_thread(message)
            case LockWait() | LockTaken() | LockWaitEnded():
                update_waits(self.lock_waits, message)
            case _:
                self.unread.append(message)

    def _add_thread(self, thread: ThreadStarted) -> None:
        name = shorten(thread.name, _THREAD_NAME)
        self.thread_names[thread.ident] = self.native_names[thread.native] = name
        self.natives[thread.ident] = thread.native
        if len(self.native_names) > _MOST_THREADS:
            oldest = next(iter(self.native_names))
            del self.native_names[oldest]
            self.daemon_threads.discard(oldest)
            self.inherited_threads.discard(oldest)
        if len(self.thread_names) > _MOST_THREADS:
            oldest = next(iter(self.thread_names))
            del self.thread_names[oldest]
            self.natives.pop(oldest, None)
        if thread.daemon:
            self.daemon_threads.add(thread.native)
        if not (self.main_thread or thread.inherited):
            self.main_thread = thread.native
        if thread.inherited:
            self.inherited_threads.add(thread.native)
