"""What a process has to give back: descriptors, threads, shared memory, temporary files."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import traceback

from pytest_rlstability.compat.cpython import thread_target
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo import UnavailableError, require_directory
from pytest_rlstability.osinfo.descriptors import own_descriptors
from pytest_rlstability.osinfo.linux import GONE, descriptor_target, inotify_watches, machine_text, own_threads
from pytest_rlstability.osinfo.shared_memory import DIRECTORY


def _descriptor_limit() -> int:
    if sys.platform == "win32":
        return 1024
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


class Descriptors(Signal):
    """Open file descriptors; handles on Windows."""

    name = "fds"
    title = "file descriptors"
    exact = True

    def __init__(self) -> None:
        self.ceiling = min(1024.0, max(32.0, (_descriptor_limit() - self.read()) / 2))

    def read(self) -> float:
        return len(own_descriptors())

    def inventory(self) -> dict[str, str]:
        # the descriptor that listed the directory is closed by now
        links = ((name, descriptor_target("self", name)) for name in own_descriptors())
        return {f"{name} {to}": f"descriptor {name} -> {to}" for name, to in links if to != GONE}


class InotifyInstances(Signal):
    """Descriptors of inotify. The kernel gives a user only 128 of them, and ``inotify_init`` then fails silently."""

    name = "inotify"
    title = "inotify instances"
    exact = True

    def __init__(self) -> None:
        limit = machine_text("sys/fs/inotify/max_user_instances")
        if not limit:
            raise UnavailableError("this system has no inotify")
        self.ceiling = max(16.0, int(limit) / 4)

    def read(self) -> float:
        return len(inotify_watches())


class InotifyWatches(InotifyInstances):
    """What inotify descriptors watch. Each watch is memory of the kernel, and needs no descriptor of its own."""

    name = "inotify_watches"
    title = "inotify watches"

    def __init__(self) -> None:
        super().__init__()
        self.ceiling = 4096.0

    def read(self) -> float:
        return sum(inotify_watches().values())


class Threads(Signal):
    """Threads of this process, with native ones where the system lists them."""

    name = "threads"
    title = "threads"
    ceiling = 512.0
    exact = True

    def __init__(self) -> None:
        self._sees_native = bool(own_threads())

    def read(self) -> float:
        return len(own_threads()) if self._sees_native else threading.active_count()

    def inventory(self) -> dict[str, str]:
        known = {str(thread.native_id): thread for thread in threading.enumerate()}
        numbers = own_threads() if self._sees_native else list(known)
        return {one: _describe(known[one]) if one in known else f"native thread {one}" for one in numbers}


def _describe(thread: threading.Thread) -> str:
    target = getattr(thread_target(thread), "__qualname__", None)
    return f"thread {thread.name}{f', target {target}' if target else ''}, {_where(thread.ident)}"


def _where(ident: int | None) -> str:
    frame = sys._current_frames().get(ident or 0)
    if frame is None:
        return "in native code"
    stack = traceback.extract_stack(frame)
    place = next((entry for entry in reversed(stack) if not entry.filename.endswith("threading.py")), stack[-1])
    return f"in {place.name} at {os.path.basename(place.filename)}:{place.lineno}"


class TemporaryFiles(Signal):
    """Files and directories at the top of the temporary directory."""

    name = "tempfiles"
    title = "temporary files"
    exact = True
    foreign = True
    habits: tuple[str, ...] = ("SB3-",)
    """Beginnings of names that do not count: stable-baselines3 leaves a directory for its log in every ``learn()``."""

    def __init__(self, directory: str = "") -> None:
        self._directory = directory or tempfile.gettempdir()
        require_directory(self._directory)

    def read(self) -> float:
        return len(self._names())

    def inventory(self) -> dict[str, str]:
        return {name: os.path.join(self._directory, name) for name in self._names()}

    def _names(self) -> list[str]:
        return [name for name in os.listdir(self._directory) if not name.startswith(self.habits)]


class SharedMemory(TemporaryFiles):
    """Segments in ``/dev/shm``, which ``SharedMemory`` makes and something has to unlink."""

    name = "shm"
    title = "shared-memory segments"
    habits = ()

    def __init__(self) -> None:
        super().__init__(DIRECTORY)
