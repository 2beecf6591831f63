"""Runs a piece of work in a forked process, and knows after its death which call it was in.

Every call is written to the journal before it is made. The journal is memory that both processes share, so it survives
the process, and a journal without a new entry for some time means that a call does not return.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np

from pytest_rlstability.model.stack_dump import StackDump, parse_dump
from pytest_rlstability.osinfo.fatal_signals import STACKS_SIGNAL, ask_for_stacks, default_fatal_signals, signal_of_exit
from pytest_rlstability.osinfo.process_control import die_with_parent, exit_descriptor, kill_tree
from pytest_rlstability.osinfo.processes import delay_of

_LOOK_EVERY = 0.1
_TAIL = 2000
_FAILED = 70
"""Exit status of a fork in which our own code failed."""


@dataclass(frozen=True)
class Ended:
    """How the work ended: with its *result*, or by a *signal* or *exit_code*, or *stalled* in a call. *codes* are the
    journal's entries."""

    result: Any
    codes: list[int]
    signal: str = ""
    exit_code: int | None = None
    stalled: bool = False
    stack: StackDump = field(default_factory=StackDump)
    output: str = ""

    @property
    def died(self) -> bool:
        return self.stalled or bool(self.signal) or self.exit_code is not None


class Forks:
    """Forks this process again and again, one fork at a time. ``close()`` gives back the journal and the files."""

    def __init__(self, capacity: int = 1 << 17) -> None:
        self.capacity = capacity
        self._memory = mmap(-1, 8 * capacity)
        self.cells = memoryview(self._memory).cast("Q")
        self._entries = np.frombuffer(self._memory, dtype=np.uint64)
        self._scratch = tempfile.TemporaryDirectory(prefix="rlstability-fuzz-", ignore_cleanup_errors=True)
        self._stacks = Path(self._scratch.name) / "stacks"
        self._output = Path(self._scratch.name) / "output"
        self._temporary = Path(self._scratch.name) / "tmp"
        self._running = 0

    def close(self) -> None:
        self.cells.release()
        self._scratch.cleanup()

    def run(self, work: Callable[[], Any], stall_after: float) -> Ended:
        """Do *work* in a fork. Its result comes back pickled; a call that takes longer than *stall_after* ends it."""
        if sys.platform == "win32":
            raise NotImplementedError
        self._entries[: self._used()] = 0
        for path in (self._stacks, self._output):
            path.write_bytes(b"")
        shutil.rmtree(self._temporary, ignore_errors=True)
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            self._in_fork(work, writer)
        os.close(writer)
        self._running = pid
        try:
            return self._watch(pid, reader, stall_after)
        finally:
            os.close(reader)
            self._end(pid)

    def _in_fork(self, work: Callable[[], Any], writer: int) -> None:
        """The forked process, which does not return."""
        if sys.platform == "win32":
            raise NotImplementedError
        status = _FAILED
        try:
            os.setpgid(0, 0)
            die_with_parent()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
            self._redirect()
            warnings.simplefilter("ignore")
            answer = pickle.dumps(work())
            with os.fdopen(writer, "wb") as stream:
                stream.write(answer)
            status = 0
        except BaseException:
            self._output.write_text(traceback.format_exc())
        finally:
            os._exit(status)

    def _redirect(self) -> None:
        """Output and stacks go to files: the terminal belongs to the process that searches. Temporary files go to a
        directory of their own."""
        self._temporary.mkdir(exist_ok=True)
        tempfile.tempdir = os.environ["TMPDIR"] = str(self._temporary)
        output = os.open(self._output, os.O_WRONLY | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        faulthandler.disable()
        default_fatal_signals()
        stacks = os.open(self._stacks, os.O_WRONLY | os.O_APPEND)
        faulthandler.enable(stacks)
        if sys.platform != "win32" and STACKS_SIGNAL is not None:
            faulthandler.register(STACKS_SIGNAL, stacks)
        gc.freeze()  # a collection visits only what the env makes

    def _watch(self, pid: int, reader: int, stall_after: float) -> Ended:
        """Read what it sends until it ends, or until no call was begun for *stall_after* seconds."""
        descriptor = exit_descriptor(pid)
        answer = bytearray()
        seen, since, open_ends = -1, 0.0, [reader]
        try:
            while True:
                waits = [*open_ends, *([descriptor] if descriptor is not None else [])]
                ready = select.select(waits, [], [], _LOOK_EVERY)[0]
                if reader in ready:
                    if chunk := os.read(reader, 1 << 16):
                        answer += chunk
                    else:
                        open_ends = []
                if (descriptor in ready and reader not in ready) or (descriptor is None and not open_ends):
                    return self._ended(pid, answer)
                # The time in which the fork waits for a processor does not count: the machine may be busy.
                now = time.monotonic() - delay_of(pid)
                if (used := self._used()) != seen or reader in ready:
                    seen, since = used, now
                elif now - since > stall_after:
                    return self._stalled(pid)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _stalled(self, pid: int) -> Ended:
        codes = self._codes()
        dump = ask_for_stacks(pid, self._stacks, seconds=2.0)
        return Ended(None, codes, stalled=True, stack=parse_dump(dump), output=self._tail())

    def _ended(self, pid: int, answer: bytearray) -> Ended:
        if sys.platform == "linux":  # not reaped yet: the number of its group stays its own
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            self._kill_group(pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._kill_group(pid)
        self._running = 0
        if status == _FAILED and not answer and "Traceback" in self._tail():
            raise RuntimeError(f"the fuzzer itself failed in a forked process\n{self._tail()}")
        dump = parse_dump(self._stacks.read_text(errors="replace"))
        result = pickle.loads(bytes(answer)) if answer and status == 0 else None
        died = None if status < 0 or (answer and status == 0) else status
        return Ended(result, self._codes(), signal_of_exit(status), died, stack=dump, output=self._tail())

    def _end(self, pid: int) -> None:
        if self._running:
            kill_tree(pid)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self._running = 0

    def _kill_group(self, pid: int) -> None:
        """Whatever it started and left: workers of a vector env, an emulator."""
        if sys.platform == "win32":
            raise NotImplementedError
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def _used(self) -> int:
        return int(np.count_nonzero(self._entries))

    def _codes(self) -> list[int]:
        codes: list[int] = self._entries[: self._used()].tolist()
        return codes

    def _tail(self) -> str:
        return self._output.read_bytes()[-_TAIL:].decode("utf-8", "replace")
