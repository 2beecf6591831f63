"""The guard of a vector env: watches its workers, reports how they ended, and kills those that outlive the test."""

from __future__ import annotations

import os
import queue
import select
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

import psutil

from pytest_rlstability.compat.cpython import OwnReadAndWrite
from pytest_rlstability.kits.vec_env import worker_stacks
from pytest_rlstability.kits.vec_env.judge import WorkerFacts, judge_dead, judge_stuck
from pytest_rlstability.model.verdict import Location, StallClass, Verdict, VerdictFailure, Word
from pytest_rlstability.osinfo.process_control import exit_descriptor, kill_tree

_EXIT_SECONDS = 5.0
_CLOSE_SECONDS = 5.0
_LOOK_SECONDS = 0.2
_BOUNDED = ("join", "terminate", "kill")
_poll: Any = getattr(select, "poll", None)
_READABLE, _WRITABLE = getattr(select, "POLLIN", 1), getattr(select, "POLLOUT", 4)
"""The plugin skips the fixture where there is none."""


class VecEnvGuard:
    """Guards *venv* in place: an SB3 ``SubprocVecEnv`` or a Gymnasium ``AsyncVectorEnv``, wrapped or bare. If a worker
    dies, or does not answer for *limit* seconds, the call that waits for it raises a ``VerdictFailure``."""

    def __init__(self, venv: Any, limit: float) -> None:
        self._venv = _unwrap(venv)
        attribute = _pipes_attribute(self._venv)
        self.limit = limit
        self._processes: list[BaseProcess] = list(self._venv.processes)
        self._death_descriptors: list[int] = []
        self._ended_on_purpose: set[int] = set()
        self._failure: BaseException | None = None
        self.released = False
        self._close = self._venv.close
        self._venv.close = self.close
        pipes = zip(getattr(self._venv, attribute), self._processes, strict=True)
        self._connections = [
            BoundedConnection(pipe, index, self._signs_of_death(process), limit, self)
            for index, (pipe, process) in enumerate(pipes)
        ]
        setattr(self._venv, attribute, list(self._connections))
        self._errors = getattr(self._venv, "error_queue", None)
        if self._errors is not None:
            self._venv.error_queue = BoundedErrors(self._errors, self)
        for index, process in enumerate(self._processes):
            self._bound_process(index, process)

    def lost(self, index: int) -> NoReturn:
        """Worker *index* is dead, or has closed its end of the pipe."""
        self._raise_again()
        process = self._processes[index]
        BaseProcess.join(process, _EXIT_SECONDS)
        code = process.exitcode
        if code is None and psutil.pid_exists(process.pid or 0):
            self._fail(EOFError(f"vector env worker {index} (pid {process.pid}) closed its pipe and is still running"))
        if code in (0, 1):
            traceback = worker_stacks.uncaught_exception(process)
            if traceback or (code == 1 and traceback is None):
                # SB3 raises an EOFError too, without a text.
                self._fail(EOFError(self._exception_text(index, traceback)))
        self._fail(VerdictFailure(self._judge_dead(index, code)))

    def failed_workers(self) -> list[int]:
        """Workers that said that they failed, and end."""
        return [connection.index for connection in self._connections if connection.has_failed]

    def have_ended(self, indices: list[int]) -> bool:
        return all(self._processes[index].exitcode is not None for index in indices)

    def lost_exception(self, reason: str) -> NoReturn:
        """A worker has raised, and its exception did not arrive because it does not pickle."""
        failed = [self._facts(index, "") for index in self.failed_workers()]
        names, call = ", ".join(worker.name for worker in failed), failed[0].call if failed else "its work"
        self._fail(
            RuntimeError(
                f"vector env {names} raised in {call} an exception that does not pickle, so that Gymnasium could not "
                f"send it ({reason}). Catch it in the env and raise one with a plain text."
            )
        )

    def stuck(self, index: int) -> NoReturn:
        """Worker *index* is alive and has neither read nor written for the whole limit."""
        self._raise_again()
        silent = [index] + [other.index for other in self._connections if other.index != index and other.is_silent()]
        doing = self._activities(silent)
        workers = [self._facts(worker, *worker_stacks.stack_of_alive(self._processes[worker])) for worker in silent]
        self._fail(VerdictFailure(judge_stuck(workers, doing, self._connections[index].limit)))

    def close(self, *args: Any, **kwargs: Any) -> None:
        """``venv.close()``, bounded. After a failure that was reported it only cleans up."""
        if self.released:
            return
        if self._failure is not None:
            self._clear_up()
            return
        for connection in self._connections:
            connection.command = "close"
        self._raise_if_crashed()
        self._close(*args, **kwargs)
        self._raise_if_crashed()
        self._clear_up()

    def release(self) -> None:
        """The test has ended: report a worker that died unnoticed, close what is open, and kill what is left."""
        if self.released:
            return
        for connection in self._connections:
            connection.limit = min(self.limit, _CLOSE_SECONDS)
        try:
            if not self._venv.closed and self._failure is None:
                self.close()
        except VerdictFailure as failure:
            if failure.verdict.word is Word.CRASH:
                raise
        except (OSError, EOFError):
            pass  # a worker ended by itself, after an ordinary error
        finally:
            self._clear_up()

    def _bound_process(self, index: int, process: Any) -> None:
        """Bound the waits for the process itself, and note when it is ended on purpose."""

        def join(timeout: float | None = None) -> None:
            limit = self._connections[index].limit
            BaseProcess.join(process, limit if timeout is None else min(timeout, limit))
            if timeout is None and process.exitcode is None:
                self.stuck(index)

        def on_purpose(end: Callable[[], None]) -> Callable[[], None]:
            def ending() -> None:
                self._ended_on_purpose.add(index)
                end()

            return ending

        process.join = join
        process.terminate = on_purpose(process.terminate)
        process.kill = on_purpose(process.kill)

    def _signs_of_death(self, process: BaseProcess) -> list[int]:
        """The sentinel does not suffice: processes that the worker forked keep it open."""
        assert process.pid is not None
        descriptor = exit_descriptor(process.pid)
        if descriptor is None:
            return [process.sentinel]
        self._death_descriptors.append(descriptor)
        return [process.sentinel, descriptor]

    def _raise_again(self) -> None:
        if isinstance(self._failure, VerdictFailure):
            raise VerdictFailure(self._failure.verdict)
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def _fail(self, failure: BaseException) -> NoReturn:
        self._failure = failure
        self._end_workers()
        raise failure

    def _raise_if_crashed(self) -> None:
        """A status of 1 is an exception in the env. It was printed on stderr, and is not a crash."""
        for index, process in enumerate(self._processes):
            code = process.exitcode
            if code not in (None, 0, 1) and index not in self._ended_on_purpose:
                self._fail(VerdictFailure(self._judge_dead(index, code)))

    def _judge_dead(self, index: int, code: int | None) -> Verdict:
        return judge_dead(self._facts(index, *worker_stacks.stack_of_dead(self._processes[index], code)), code)

    def _facts(self, index: int, stack: str, location: Location | None = None) -> WorkerFacts:
        pid = self._processes[index].pid or 0
        return WorkerFacts(index, len(self._processes), pid, self._connections[index].command, stack, location)

    def _exception_text(self, index: int, traceback: str | None) -> str:
        call = self._facts(index, "").call
        last_line = traceback.rstrip().rpartition("\n")[2] if traceback else "its traceback is on stderr"
        text = f"vector env worker {index} (pid {self._processes[index].pid}) raised in {call}: {last_line}"
        return f"{text}\n\n{traceback}" if traceback else text

    def _activities(self, indices: list[int]) -> list[str]:
        before = [_cpu_seconds(self._processes[index]) for index in indices]
        time.sleep(_LOOK_SECONDS)
        return [_activity(self._processes[index], start) for index, start in zip(indices, before, strict=True)]

    def _end_workers(self) -> None:
        """Kill the workers and what they started."""
        for process in self._processes:
            if process.pid and process.is_alive():
                kill_tree(process.pid)
            if process.exitcode != 0:
                process.kill()  # crashed ones too: it tells the engine that this death has been handled
        for process in self._processes:
            BaseProcess.join(process, _EXIT_SECONDS)

    def _clear_up(self) -> None:
        """Kill the remaining workers, close every descriptor, and drop every reference to processes and env."""
        if self.released:
            return
        self._end_workers()
        for connection in self._connections:
            connection.close()
        for descriptor in self._death_descriptors:
            os.close(descriptor)
        self._death_descriptors.clear()
        for process in self._processes:
            for name in _BOUNDED:
                delattr(process, name)
        if self._errors is not None:
            self._venv.error_queue = self._errors
        self._venv.closed = True
        del self._venv.close  # the class has its own, which returns at once
        self._venv = self._close = self._errors = None
        self._processes, self._connections = [], []
        self.released = True


class BoundedConnection(OwnReadAndWrite, Connection):
    """Takes the place of *connection*, the parent's end of the pipe to worker *index*.

    The descriptor is made non-blocking, and every wait also watches *signs_of_death*: descriptors that become readable
    when the worker ends. The pipe alone does not show that, because forked siblings hold each other's ends open.
    """

    def __init__(
        self, connection: Connection, index: int, signs_of_death: list[int], limit: float, guard: VecEnvGuard
    ) -> None:
        super().__init__(os.dup(connection.fileno()))
        connection.close()
        if sys.platform != "win32":
            os.set_blocking(self.fileno(), False)
        self.index = index
        self.command = ""
        self.awaits_answer = self.has_failed = False
        self.limit = limit
        self._guard = guard
        self._readable = self._poller(_READABLE, signs_of_death)
        self._writable = self._poller(_WRITABLE, signs_of_death)

    def send(self, obj: Any) -> None:
        self.command = str(obj[0]) if isinstance(obj, tuple) and obj else ""
        self.awaits_answer = True
        super().send(obj)

    def recv(self) -> Any:
        self._wait(self._readable)
        answer = super().recv()
        self.awaits_answer = False
        self.has_failed = isinstance(answer, tuple) and answer[1:] == (False,)  # as a worker of Gymnasium says it
        return answer

    def is_silent(self) -> bool:
        """Whether an answer is due and no byte of it has arrived."""
        return self.awaits_answer and not self.closed and not self.poll(0)

    def read_some(self, handle: int, size: int) -> bytes:
        while True:
            try:
                part = os.read(handle, size)
            except BlockingIOError:
                self._wait(self._readable)
                continue
            except ConnectionResetError:
                part = b""
            if not part:
                self._guard.lost(self.index)
            return part

    def write_some(self, handle: int, data: bytes) -> int:
        while True:
            try:
                return os.write(handle, data)
            except BlockingIOError:
                self._wait(self._writable)
            except (BrokenPipeError, ConnectionResetError):
                self._guard.lost(self.index)

    def _wait(self, poller: Any) -> None:
        ready = poller.poll(self.limit * 1000)
        if not ready:
            self._guard.stuck(self.index)
        # If only a sign of death is ready, the worker is dead. Look again: it may have written just before its end.
        if self.fileno() not in dict(ready) and self.fileno() not in dict(poller.poll(0)):
            self._guard.lost(self.index)

    def _poller(self, event: int, signs_of_death: list[int]) -> Any:
        poller = _poll()
        poller.register(self.fileno(), event)
        for descriptor in signs_of_death:
            poller.register(descriptor, _READABLE)
        return poller


class BoundedErrors:
    """Takes the place of the queue from which Gymnasium reads the exceptions of its workers. One that does not pickle
    never arrives in it."""

    def __init__(self, errors: Any, guard: VecEnvGuard) -> None:
        self._errors, self._guard = errors, guard

    def get(self) -> Any:
        deadline = time.monotonic() + self._guard.limit
        while True:
            is_last = self._guard.have_ended(self._guard.failed_workers()) or time.monotonic() >= deadline
            try:
                return self._errors.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if is_last:
                    self._guard.lost_exception("what went wrong is on stderr")
            except Exception as error:
                self._guard.lost_exception(f"{type(error).__name__}: {error}")


def _unwrap(venv: Any) -> Any:
    """The vector env with the worker processes, below any wrappers; a TypeError for one that has none."""
    inner = venv
    while "processes" not in vars(inner):
        inner = vars(inner).get("venv", vars(inner).get("env"))
        if inner is None:
            raise TypeError(
                f"vec_env_guard takes a vector env with worker processes (stable_baselines3's SubprocVecEnv, "
                f"gymnasium's AsyncVectorEnv), not {type(venv).__name__}"
            )
    return inner


def _pipes_attribute(venv: Any) -> str:
    for name in ("remotes", "parent_pipes"):
        if name in vars(venv):
            return name
    raise TypeError(f"vec_env_guard does not know how {type(venv).__name__} talks to its workers")


def _cpu_seconds(process: BaseProcess) -> float:
    try:
        times = psutil.Process(process.pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _activity(process: BaseProcess, cpu_before: float) -> str:
    try:
        status = psutil.Process(process.pid).status()
    except psutil.Error:
        return StallClass.BLOCKED
    if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
        return "stopped"
    # One that is ready to run, and waits for a processor, uses little of it on a busy machine.
    spins = status == psutil.STATUS_RUNNING or _cpu_seconds(process) - cpu_before > _LOOK_SECONDS / 4
    return StallClass.SPINNING if spins else StallClass.BLOCKED
