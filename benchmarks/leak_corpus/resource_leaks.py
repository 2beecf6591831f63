"""Descriptors, threads, processes, shared memory, files, and growth in worker processes."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing import resource_tracker, shared_memory
from random import Random

from leak_corpus import Lap, leak


@leak("socket.socketpair")
def sockets_open(random: Random) -> Lap:
    kept: list[object] = []
    return lambda: kept.append(socket.socketpair())


@leak("os.pipe")
def pipes_open(random: Random) -> Lap:
    return lambda: os.pipe()


@leak("os.open")
def descriptor_every_tenth(random: Random) -> Lap:
    laps = iter(range(10**9))

    def lap() -> None:
        if next(laps) % 10 == 0:
            os.open(os.devnull, os.O_RDONLY)

    return lap


@leak("timer")
def timers_not_cancelled(random: Random) -> Lap:
    def lap() -> None:
        timer = threading.Timer(3600, print)
        timer.daemon = True
        timer.start()

    return lap


@leak("Thread")
def threads_waiting(random: Random) -> Lap:
    never = threading.Event()
    return lambda: threading.Thread(target=never.wait, daemon=True).start()


@leak("os.fork")
def zombies(random: Random) -> Lap:
    def lap() -> None:
        if os.fork() == 0:
            os._exit(0)

    return lap


@leak("Popen")
def processes_alive(random: Random) -> Lap:
    kept: list[subprocess.Popen[bytes]] = []

    def end_all() -> None:
        for process in kept:
            process.kill()
            process.wait()

    atexit.register(end_all)
    return lambda: kept.append(subprocess.Popen(["sleep", "120"]))


@leak("SharedMemory")
def segments_never_unlinked(random: Random) -> Lap:
    names: list[str] = []

    def unlink_all() -> None:
        for name in names:
            os.unlink(f"/dev/shm/{name}")

    def lap() -> None:
        segment = shared_memory.SharedMemory(create=True, size=64)
        resource_tracker.unregister("/" + segment.name, "shared_memory")
        names.append(segment.name)
        segment.close()

    atexit.register(unlink_all)
    return lap


@leak("mkstemp")
def temporary_files(random: Random) -> Lap:
    paths: list[str] = []

    def remove_all() -> None:
        for path in paths:
            os.unlink(path)

    def lap() -> None:
        descriptor, path = tempfile.mkstemp(prefix="leak-corpus-")
        os.close(descriptor)
        paths.append(path)

    atexit.register(remove_all)
    return lap


_WORKER = """
import sys
kept = []
for line in sys.stdin:
    kept.append(bytearray(1000))
    print(len(kept), flush=True)
"""


@leak("process")
def worker_grows(random: Random) -> Lap:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    worker = subprocess.Popen([sys.executable, "-c", _WORKER], bufsize=0, **pipes)  # type: ignore[call-overload]

    def end() -> None:
        worker.kill()
        worker.wait()

    def lap() -> None:
        worker.stdin.write(b"step\n")
        worker.stdout.readline()

    atexit.register(end)
    return lap
