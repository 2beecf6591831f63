"""What is private of CPython's standard library. It is used without pytest too, and cheap to import.

Seen in CPython 3.11 to 3.15.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import os
import re
import signal
import socket
import sys
import sysconfig
import threading
import tracemalloc
import warnings
import weakref
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from typing import Any

# The end of the interpreter


def drop_exit_callbacks() -> None:
    """Forget what was to be called at exit, in the copy of a process that still has to call it. Callbacks that are
    registered from now on are called. Without it no test is forked."""
    atexit._clear()
    for finalizer in weakref.finalize._registry.values():  # type: ignore[attr-defined]
        finalizer.atexit = False
    # The next finalizer registers with atexit again.
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    if util := sys.modules.get("multiprocessing.util"):
        sys.modules["multiprocessing.process"]._children.clear()
        atexit.register(util._exit_function)


def exit_callbacks() -> int:
    """How many functions are to be called at exit. Without it the test that registered one is searched for longer."""
    return atexit._ncallbacks()


def signal_handlers() -> dict[int, Any]:
    """The handler of each signal that has a name. ``signal.getsignal`` would make an enum of each, which takes longer
    than an empty test. Without it no shared process runs."""
    return {number: _handler_of(number) for number in _NAMED_SIGNALS}


_handler_of: Callable[[int], Any] = sys.modules["_signal"].getsignal
_NAMED_SIGNALS = [int(number) for number in signal.Signals if number in signal.valid_signals()]


def raw_environment() -> dict[Any, Any]:
    """The environment as ``os.environ`` keeps it, which is quick to compare: bytes, but strings on Windows. Without it
    no shared process runs."""
    return os.environ._data  # type: ignore[attr-defined,no-any-return]


def join_threads() -> None:
    """Wait for the threads that are not daemons, as the interpreter does at its end. Without it no exit check runs."""
    threading._shutdown()  # type: ignore[attr-defined]


def run_exit_callbacks() -> None:
    """Call what is to be called at exit, once. Without it no exit check runs."""
    atexit._run_exitfuncs()


def numba_has_threads() -> bool:
    """Whether numba has started its thread pool, after which it ends every forked process that uses it. Seen in numba
    0.61. Without it such tests are forked, and die."""
    return bool(getattr(sys.modules.get("numba.np.ufunc.parallel"), "_is_initialized", False))


# Sockets


def accept_descriptor(server: socket.socket) -> int:
    """The descriptor of the next connection. Without it a conftest that replaces ``socket.socket`` ends the run."""
    descriptor, _ = _accept(server)
    return int(descriptor)


_accept: Callable[[Any], tuple[int, Any]] = sys.modules["_socket"].socket._accept

# Threads


def module_of_thread(thread: threading.Thread) -> str:
    """The module whose function a thread runs. Without it a plugin's own thread is a reason against every fork."""
    target = getattr(thread, "_target", None) or type(thread).run
    return str(getattr(target, "__module__", ""))


def on_thread_start(call: Callable[[threading.Thread], None]) -> None:
    """Call *call* with every thread as it starts, in that thread. ``threading.current_thread`` does not know it yet. An
    exception of *call* is dropped. Without it no test runs in a process of its own."""
    original = threading.Thread._set_native_id  # type: ignore[attr-defined]

    def started(thread: threading.Thread) -> None:
        original(thread)
        try:
            call(thread)
        except Exception:  # an error of ours must not end the user's thread
            pass

    threading.Thread._set_native_id = started  # type: ignore[attr-defined]


def running_thread(ident: int) -> threading.Thread | None:
    """The thread with this ident. Takes no lock, unlike ``threading.enumerate``: a caller may hold it. Without it
    ``rl_locks`` does not run."""
    return threading._active.get(ident)  # type: ignore[attr-defined,no-any-return]


def thread_target(thread: threading.Thread) -> Callable[..., object] | None:
    """The function that *thread* was made to run, until it has ended. Without it reports of leaked threads do not name
    it."""
    return getattr(thread, "_target", None)


THREAD_START = ("_bootstrap", "_bootstrap_inner")
"""Functions of ``threading.py`` in which every thread's stack begins. Without them stacks show two lines more."""


def tasks_awaited_by(task: Any) -> list[Any]:
    """The asyncio tasks that *task* waits for, directly or through ``gather``. Without it a stall of asyncio may name a
    task that waits for another one first."""
    future = getattr(task, "_fut_waiter", None)
    awaited = [] if future is None else getattr(future, "_children", [future])
    return [one for one in awaited if hasattr(one, "get_coro")]


# Locks


def ownership(lock: Any) -> Callable[[], bool]:
    """A function that says whether the calling thread holds *lock*, an ``RLock``. Without it ``rl_locks`` does not
    run."""
    return lock._is_owned  # type: ignore[no-any-return]


def is_held_again(lock: Any) -> bool:
    """Whether *lock*, an ``RLock``, is held more than once. Without this form of its repr, ``rl_locks`` notes no order
    between an ``RLock`` and locks that are held when it is taken."""
    return "count=1 " not in repr(lock)


def release_all(lock: Any) -> Any:
    """Release *lock*, an ``RLock``, however often it is held; how often comes first in what is returned. Without it no
    wait for a ``Condition`` with an ``RLock`` works under ``rl_locks``."""
    return lock._release_save()


def free_after_fork(lock: Any) -> None:
    """Free *lock* in a forked process, whoever held it in the parent. Without it a fork under ``rl_locks`` fails."""
    lock._at_fork_reinit()


class BlockingCondition(threading.Condition):
    """A ``threading.Condition`` that blocks in ``block``, for subclasses to replace. Otherwise ``wait`` is as in the
    standard library. Several short waits would not do: a notification between two of them would be missed. Without its
    private parts no wait for a ``Condition`` works under ``rl_locks``."""

    def block(self, acquire: Callable[[bool, float], bool], timeout: float) -> bool:
        """Call ``acquire(True, timeout)``, endless when negative. The caller of ``wait`` is two frames up."""
        return acquire(True, timeout)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError("cannot wait on un-acquired lock")
        waiter = allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)  # type: ignore[attr-defined]
        state = self._release_save()  # type: ignore[attr-defined]
        notified = False
        try:
            if timeout is not None and timeout <= 0:
                notified = waiter.acquire(False)
            else:
                notified = self.block(waiter.acquire, -1 if timeout is None else timeout)
            return notified
        finally:
            self._acquire_restore(state)  # type: ignore[attr-defined]
            if not notified:
                try:
                    self._waiters.remove(waiter)  # type: ignore[attr-defined]
                except ValueError:
                    pass


def lock_of(condition: threading.Condition) -> Any:
    """The lock that *condition* was made with. Without it PyBoy's guard does not run."""
    return condition._lock  # type: ignore[attr-defined]


# Processes


def started_processes() -> Iterator[tuple[Any, Any]]:
    """The ``multiprocessing`` processes that this process has started and still refers to, each with its ``Popen``.

    Unlike ``active_children`` it names those that have ended, and reaps none. Without it no failed test is reported.
    """
    module = sys.modules.get("multiprocessing.process")
    for process in () if module is None else module._dangling:
        popen = getattr(process, "_popen", None)
        if popen is not None and process._parent_pid == os.getpid():
            yield process, popen


def popen_of(process: Any) -> Any:
    """The ``Popen`` of a ``multiprocessing`` process; None before it is started. Without it a worker that a test ends
    itself counts as dead."""
    return getattr(process, "_popen", None)


def process_starters() -> list[Any]:
    """The ``Popen`` classes of ``multiprocessing`` that have a ``poll`` of their own. Without them dead workers that a
    pool has replaced are not named."""
    if sys.platform == "win32":
        from multiprocessing import popen_spawn_win32

        return [popen_spawn_win32.Popen]
    from multiprocessing import popen_fork, popen_forkserver

    return [popen_fork.Popen, popen_forkserver.Popen]


def run_in_workers(code: str, wanted: Callable[[], bool]) -> None:
    """Have the workers that multiprocessing starts in interpreters of their own, by ``spawn`` or a fork server, run
    *code* before anything else, if *wanted* says so when they are started. It rides on the data that prepares them.
    Without it such a worker leaves no stack when it crashes."""
    from multiprocessing import spawn

    original = spawn.get_preparation_data

    def with_code(name: str) -> dict[str, Any]:
        data = original(name)
        if wanted():
            data[f"rlstability {len(data)}"] = _RunWhenUnpickled(code)
        return data

    spawn.get_preparation_data = with_code


class _RunWhenUnpickled:
    def __init__(self, code: str) -> None:
        self._code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self._code, {})


def force_start_method(method: str) -> None:
    """Have multiprocessing start all processes by *method*, whatever context a library asks for. Without it a diagnosis
    cannot say whether the way workers are started matters."""
    import multiprocessing
    from multiprocessing import context

    chosen = multiprocessing.get_context(method)
    default: Any = context._default_context
    default._actual_context = chosen
    owners: tuple[Any, ...] = (multiprocessing, default)
    for owner in owners:
        owner.get_context = lambda asked=None: chosen
        owner.set_start_method = lambda asked, force=False: None


class OwnReadAndWrite:
    """Goes before ``multiprocessing.connection.Connection`` among a class's bases: the connection then reads by
    ``read_some`` and writes by ``write_some``, in the place of ``os.read`` and ``os.write``. Without it the guard of
    vector environments does not run."""

    def read_some(self, handle: int, size: int) -> bytes:
        raise NotImplementedError

    def write_some(self, handle: int, data: bytes) -> int:
        raise NotImplementedError

    def _recv(self, size: int) -> Any:
        return super()._recv(size, self.read_some)  # type: ignore[misc]

    def _send(self, buf: Any) -> None:
        super()._send(buf, self.write_some)  # type: ignore[misc]


# Memory and warnings


_MANAGED_DICT = 1 << 4
"""``Py_TPFLAGS_MANAGED_DICT``."""
_BEFORE_OBJECT = 4 * ctypes.sizeof(ctypes.c_void_p)
"""The collector's two words and the two for the dict."""
_frames_of: Any = getattr(ctypes.pythonapi, "_PyTraceMalloc_GetTraceback", None)
if _frames_of is not None:
    _frames_of.restype = ctypes.py_object
    _frames_of.argtypes = [ctypes.c_uint, ctypes.c_size_t]


def traceback_of(thing: object) -> tracemalloc.Traceback | None:
    """Where *thing* was made, also when it has a ``__dict__``, for which Python 3.11 looks in the wrong place. Without
    it a leaked object with a ``__dict__`` has no line there."""
    found = tracemalloc.get_object_traceback(thing)
    if found is None and type(thing).__flags__ & _MANAGED_DICT and _frames_of is not None:
        frames = _frames_of(0, id(thing) - _BEFORE_OBJECT)
        return tracemalloc.Traceback(frames) if frames else None
    return found


_REPORT_SIZE = 4096


def uses_mimalloc() -> bool:
    """Whether Python's objects are in memory of mimalloc, as in a Python without a GIL. malloc does not count them.
    Without it a bytearray that grows is not noticed there."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED")) or _ALLOCATOR.startswith("mimalloc")


_ALLOCATOR = os.environ.get("PYTHONMALLOC", "")


def mimalloc_bytes() -> int | None:
    """The bytes that mimalloc has in use in the calling thread, as Python reports them; None if it does not. Without it
    a bytearray that grows is not noticed where Python uses mimalloc."""
    libc, report = ctypes.CDLL(None), ctypes.create_string_buffer(_REPORT_SIZE)
    write_report = getattr(ctypes.pythonapi, "_PyObject_DebugMallocStats", None)
    if write_report is None or not hasattr(libc, "fmemopen"):
        return None
    libc.fmemopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fmemopen(report, ctypes.c_size_t(_REPORT_SIZE), b"w"))
    write_report(file)
    libc.fclose(file)
    found = re.search(rb"Allocated Bytes: (\d+)", report.value)
    return int(found[1]) if found else None


def recorded_warnings() -> list[Any] | None:
    """The list in which ``warnings.catch_warnings(record=True)`` collects now. Without it warnings that pytest keeps of
    a test count as its leak."""
    recorder = getattr(warnings, "_showwarnmsg_impl", None)
    holder = getattr(recorder, "__self__", None)
    return holder if isinstance(holder, list) else None


# Command lines


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments and options of *parser*. Without it no shell completes them."""
    return parser._actions


def commands_of(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """The commands below *parser* by name, with their help and parser. Without it no shell completes them."""
    (group,) = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    helps = {one.dest: one.help or "" for one in group._choices_actions}
    return {name: (helps[name], command) for name, command in group.choices.items()}


# Pickles


def modern_name(module: str, name: str) -> tuple[str, str]:
    """What ``pickle`` takes a global of Python 2 for: ``("__builtin__", "xrange")`` is ``("builtins", "range")``.
    Without it no model is audited."""
    return NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))


QUEUE_PUT, QUEUE_GET = "_put", "_get"
"""Methods of ``queue.Queue`` that add and remove an item while its lock is held. Without them PyBoy's guard does not
run."""
