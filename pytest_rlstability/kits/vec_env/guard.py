"""The guard of a vector env: watches its workers, says what became of them, and lets none outlive the test."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

import psutil

from pytest_rlstability.events import Verdict, VerdictFailure
from pytest_rlstability.isolation.kernel import descendants_of
from pytest_rlstability.vec_env import last_words
from pytest_rlstability.vec_env.pipes import BoundedConnection
from pytest_rlstability.vec_env.verdicts import WorkerFacts, judge_dead, judge_stuck

_EXIT_SECONDS = 5.0
_GOODBYE_SECONDS = 5.0
_LOOK_SECONDS = 0.2
_BOUNDED = ("join", "terminate", "kill")


class WorkerError(EOFError):
    """A worker ended by an ordinary exception of its env: the EOFError that SB3 gives for it, with what happened."""


class VecEnvGuard:
    """Guards *venv*, in place: an SB3 ``SubprocVecEnv`` or a Gymnasium ``AsyncVectorEnv``, wrapped or bare.

    >>> guard = VecEnvGuard(venv, limit=30.0)  # doctest: +SKIP
    >>> venv.step(actions)  # a dead or stuck worker now raises VerdictFailure here  # doctest: +SKIP
    >>> guard.release()  # doctest: +SKIP
    """

    def __init__(self, venv: Any, limit: float) -> None:
        self._venv = unwrap(venv)
        self._limit = limit
        self._processes: list[BaseProcess] = list(self._venv.processes)
        self._death_descriptors: list[int] = []
        self._ended_on_purpose: set[int] = set()
        self._failure: BaseException | None = None
        self.released = False
        self._close = self._venv.close
        self._venv.close = self.close
        attribute = _pipes_attribute(self._venv)
        self._connections = [
            BoundedConnection(connection, index, self._signs_of_death(process), limit, self)
            for index, (connection, process) in enumerate(
                zip(getattr(self._venv, attribute), self._processes, strict=True)
            )
        ]
        setattr(self._venv, attribute, list(self._connections))
        for index, process in enumerate(self._processes):
            self._bound_process(index, process)

    def lost(self, index: int) -> NoReturn:
        self._raise_again()
        process = self._processes[index]
        BaseProcess.join(process, _EXIT_SECONDS)
        code = process.exitcode
        if code is None and psutil.pid_exists(process.pid or 0):
            self._fail(EOFError(f"vector env worker {index} (pid {process.pid}) closed its pipe and runs on"))
        if code in (0, 1):
            traceback = last_words.uncaught_exception(process)
            if traceback or (code == 1 and traceback is None):
                self._fail(WorkerError(self._exception_text(index, traceback)))
        self._fail(VerdictFailure(self._judge_dead(index, code)))

    def stuck(self, index: int) -> NoReturn:
        self._raise_again()
        silent = [index] + [other.index for other in self._connections if other.index != index and other.is_silent()]
        doing = self._activities(silent)
        workers = [self._facts(worker, last_words.stack_of_alive(self._processes[worker])) for worker in silent]
        self._fail(VerdictFailure(judge_stuck(workers, doing, self._connections[index].limit)))

    def close(self, *args: Any, **kwargs: Any) -> None:
        """``venv.close()``, bounded. After a failure that was reported it only clears up."""
        if self.released:
            return
        if self._failure is not None:
            self._let_go()
            return
        for connection in self._connections:
            connection.command = "close"
        self._raise_if_crashed()
        self._close(*args, **kwargs)
        self._raise_if_crashed()
        self._let_go()

    def release(self) -> None:
        """The test is over: report a worker that died unnoticed, close what is open, and let nothing live on."""
        if self.released:
            return
        for connection in self._connections:
            connection.limit = min(self._limit, _GOODBYE_SECONDS)
        try:
            if not self._venv.closed and self._failure is None:
                self.close()
        except VerdictFailure as failure:
            if failure.verdict.word == "CRASH":
                raise
        except (OSError, EOFError):
            pass  # a worker that broke off by itself, after its ordinary error
        finally:
            self._let_go()

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
        """The sentinel stays open in what the worker itself has forked: the process descriptor is the sure sign."""
        signs = [process.sentinel]
        if hasattr(os, "pidfd_open") and process.pid is not None:
            with suppress(OSError):
                signs.append(os.pidfd_open(process.pid))
                self._death_descriptors.append(signs[-1])
        return signs

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
        """A status of 1 is an exception that the env raised: its own business, and on stderr."""
        for index, process in enumerate(self._processes):
            code = process.exitcode
            if code not in (None, 0, 1) and index not in self._ended_on_purpose:
                self._fail(VerdictFailure(self._judge_dead(index, code)))

    def _judge_dead(self, index: int, code: int | None) -> Verdict:
        return judge_dead(self._facts(index, last_words.stack_of_dead(self._processes[index], code)), code)

    def _facts(self, index: int, stack: str) -> WorkerFacts:
        pid = self._processes[index].pid or 0
        return WorkerFacts(index, len(self._processes), pid, self._connections[index].command, stack)

    def _exception_text(self, index: int, traceback: str | None) -> str:
        call = self._facts(index, "").call
        said = traceback.rstrip().rpartition("\n")[2] if traceback else "its traceback is on stderr"
        text = f"vector env worker {index} (pid {self._processes[index].pid}) raised in {call}: {said}"
        return f"{text}\n\n{traceback}" if traceback else text

    def _activities(self, indices: list[int]) -> list[str]:
        before = [_cpu_seconds(self._processes[index]) for index in indices]
        time.sleep(_LOOK_SECONDS)
        return [_activity(self._processes[index], start) for index, start in zip(indices, before, strict=True)]

    def _end_workers(self) -> None:
        """Kill the workers and what they started."""
        alive = [process.pid for process in self._processes if process.pid and process.is_alive()]
        offspring = [pid for parent in alive for pid in descendants_of(parent)]
        for process in self._processes:
            if process.exitcode != 0:
                process.kill()  # the crashed as well: the engine then knows that this end has been dealt with
        for pid in offspring:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            BaseProcess.join(process, _EXIT_SECONDS)

    def _let_go(self) -> None:
        """End what is left of the workers, and hold on to nothing: no descriptor, no process, no env."""
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
        self._venv.closed = True
        del self._venv.close  # the class has its own, which returns at once
        self._venv = self._close = None
        self._processes, self._connections = [], []
        self.released = True


def unwrap(venv: Any) -> Any:
    """The vector env with the worker processes, below any wrappers; a TypeError for one that has none."""
    inner = venv
    while "processes" not in vars(inner):
        inner = vars(inner).get("venv", vars(inner).get("env"))
        if inner is None:
            raise TypeError(
                f"vec_env_guard takes a vector env with worker processes (stable_baselines3's SubprocVecEnv, "
                f"gymnasium's AsyncVectorEnv), not {type(venv).__name__}"
            )
    _pipes_attribute(inner)
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
        if psutil.Process(process.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return "stopped"
    except psutil.Error:
        return "blocked"
    return "spinning" if _cpu_seconds(process) - cpu_before > _LOOK_SECONDS / 4 else "blocked"
