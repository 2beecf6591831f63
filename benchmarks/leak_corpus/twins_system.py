"""What the system hands out: descriptors, threads, processes, connections, databases, memory of C code."""

from __future__ import annotations

import asyncio
import ctypes
import http.client
import http.server
import itertools
import mmap
import multiprocessing
import os
import select
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory
from random import Random
from typing import Any

from leak_corpus import Lap, innocent, twins

_libc = ctypes.CDLL(None)
_libc.malloc.restype = _libc.realloc.restype = _libc.fopen.restype = _libc.mmap.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = _libc.fclose.argtypes = [ctypes.c_void_p]
_libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@twins("malloc(100)", python=False)
def blocks_of_c(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        block = _libc.malloc(100)
        if not leaks:
            _libc.free(block)

    return lap


@twins("malloc(3000)", python=False)
def block_every_tenth_lap(random: Random, leaks: bool) -> Lap:
    laps, scratch = itertools.count(), []

    def lap() -> None:
        scratch[:] = [bytearray(random.randrange(512, 5000)) for _ in range(20)]
        if next(laps) % 10 == 0:
            block = _libc.malloc(3000)
            if not leaks:
                _libc.free(block)

    return lap


@twins("realloc", python=False)
def buffer_of_c(random: Random, leaks: bool) -> Lap:
    state = [_libc.malloc(1000), 1000]

    def lap() -> None:
        state[1] = state[1] + 700 if leaks else random.randrange(1000, 90_000)
        state[0] = _libc.realloc(state[0], state[1])

    return lap


@twins("mmap(", python=False)
def pages_of_c(random: Random, leaks: bool) -> Lap:
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

    def lap() -> None:
        address = _libc.mmap(None, 16384, protection, flags, -1, 0)
        if not leaks:
            _libc.munmap(address, 16384)

    return lap


@innocent
def arenas_of_threads(random: Random) -> Lap:
    def work() -> None:
        parts = [bytearray(random.randrange(1000, 200_000)) for _ in range(20)]
        parts.clear()

    def lap() -> None:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return lap


@twins("fopen", python=False)
def files_of_c(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        file = _libc.fopen(b"/dev/null", b"r")
        if not leaks:
            _libc.fclose(file)

    return lap


@twins("inotify_init", python=False)
def inotify_instances(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        descriptor = _libc.inotify_init()
        if not leaks and descriptor >= 0:
            os.close(descriptor)

    return lap


@twins("inotify_add_watch", python=False)
def inotify_watches(random: Random, leaks: bool) -> Lap:
    directory, descriptor = tempfile.mkdtemp(), _libc.inotify_init()
    for number in range(2000):
        os.mkdir(os.path.join(directory, str(number)))
    numbers = itertools.count()

    def lap() -> None:
        path = os.path.join(directory, str(next(numbers) % 2000))
        watch = _libc.inotify_add_watch(descriptor, path.encode(), 2)
        if not leaks:
            _libc.inotify_rm_watch(descriptor, watch)

    return lap


@twins("eventfd", python=False)
def event_descriptors(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        descriptor = _libc.eventfd(0, 0)
        if not leaks:
            os.close(descriptor)

    return lap


@twins("pthread_create", python=False)
def threads_of_c(random: Random, leaks: bool) -> Lap:
    pause, getpid = ctypes.cast(_libc.pause, ctypes.c_void_p), ctypes.cast(_libc.getpid, ctypes.c_void_p)

    def lap() -> None:
        identity = ctypes.c_ulong()
        _libc.pthread_create(ctypes.byref(identity), None, pause if leaks else getpid, None)
        if not leaks:
            _libc.pthread_join(identity, None)

    return lap


@twins("epoll", python=False)
def epoll_objects(random: Random, leaks: bool) -> Lap:
    polls: list[object] = []

    def lap() -> None:
        poll = select.epoll()
        if leaks:
            polls.append(poll)

    return lap


@twins("open(", python=False)
def log_files(random: Random, leaks: bool) -> Lap:
    files, path = [], os.path.join(tempfile.mkdtemp(), "episode.log")

    def lap() -> None:
        file = open(path, "a")  # noqa: SIM115
        file.write("done\n")
        files.append(file)
        if not leaks:
            files.pop().close()

    return lap


@twins("mkdtemp", python=False)
def run_directories(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        directory = tempfile.mkdtemp(prefix="leak-corpus-run-")
        if not leaks:
            shutil.rmtree(directory)

    return lap


@twins("executor", python=False)
def executors(random: Random, leaks: bool) -> Lap:
    pools: list[ThreadPoolExecutor] = []

    def lap() -> None:
        executor = ThreadPoolExecutor(1, "executor")
        executor.submit(abs, -1).result()
        if leaks:
            pools.append(executor)
        else:
            executor.shutdown()

    return lap


@twins("worker.start()", python=False)
def workers_started(random: Random, leaks: bool) -> Lap:
    import time

    kept: list[Any] = []
    context = multiprocessing.get_context("fork")

    def lap() -> None:
        worker = context.Process(target=time.sleep, args=(200 if leaks else 0,), daemon=True)
        worker.start()
        if leaks:
            kept.append(worker)
        else:
            worker.join()

    return lap


@twins("Queue", python=False)
def queues_between_processes(random: Random, leaks: bool) -> Lap:
    kept: list[Any] = []

    def lap() -> None:
        channel = multiprocessing.Queue()
        if leaks:
            kept.append(channel)
        else:
            channel.close()

    return lap


def _keep(connection: Any, leaks: bool) -> None:
    kept = []
    while True:
        kept.append(connection.recv() * 4000)
        if not leaks:
            kept.clear()
        connection.send("done")


@twins("process", python=False)
def worker_behind_a_pipe(random: Random, leaks: bool) -> Lap:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    context.Process(target=_keep, args=(theirs, leaks), daemon=True).start()

    def lap() -> None:
        ours.send("x")
        ours.recv()

    return lap


@innocent
def pool_of_processes(random: Random) -> Lap:
    pool = multiprocessing.get_context("fork").Pool(2)
    return lambda: pool.map(abs, range(-8, 0))


@twins("Popen", python=False)
def helper_programs(random: Random, leaks: bool) -> Lap:
    kept: list[Any] = []

    def lap() -> None:
        helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if leaks:
            kept.append(helper)
        else:
            helper.communicate(b"state")

    return lap


@twins("SharedMemory", python=False)
def shared_segments(random: Random, leaks: bool) -> Lap:
    segments: list[shared_memory.SharedMemory] = []

    def lap() -> None:
        segment = shared_memory.SharedMemory(create=True, size=2048)
        segments.append(segment)
        if not leaks:
            segment.close()
            segments.pop().unlink()

    return lap


@innocent
def rows_written_to_a_file(random: Random) -> Lap:
    """The file grows, and SQLite's page cache with it up to its two megabytes."""
    connection = sqlite3.connect(os.path.join(tempfile.mkdtemp(), "runs.db"))
    connection.execute("create table steps (number integer, reward real, note text)")

    def lap() -> None:
        with connection:
            connection.execute("insert into steps values (1, ?, ?)", (random.random(), "x" * 200))

    connection.execute("pragma synchronous = off")
    return lap


@innocent
def rows_in_a_journal(random: Random) -> Lap:
    connection = sqlite3.connect(os.path.join(tempfile.mkdtemp(), "runs.db"))
    connection.execute("pragma journal_mode = wal")
    connection.execute("create table best (id integer primary key, reward real)")

    def lap() -> None:
        with connection:
            connection.execute("replace into best values (?, ?)", (random.randrange(500), random.random()))
        connection.execute("select avg(reward) from best").fetchone()

    return lap


@twins("insert into steps", python=False)
def rows_in_memory(random: Random, leaks: bool) -> Lap:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("create table steps (reward real, note text)")

    def lap() -> None:
        connection.execute("insert into steps values (?, ?)", (random.random(), "x" * 100))
        if not leaks:
            connection.execute("delete from steps")

    return lap


@twins("connect", python=False)
def database_connections(random: Random, leaks: bool) -> Lap:
    path, kept = os.path.join(tempfile.mkdtemp(), "runs.db"), []

    def lap() -> None:
        connection = sqlite3.connect(path)
        connection.execute("create table if not exists runs (reward real)")
        if leaks:
            kept.append(connection)
        else:
            connection.close()

    return lap


@innocent
def zmq_echo(random: Random) -> Lap:
    import zmq

    context = zmq.Context.instance()
    server, client = context.socket(zmq.REP), context.socket(zmq.REQ)
    server.bind("inproc://env")
    client.connect("inproc://env")

    def lap() -> None:
        client.send(random.randbytes(200))
        server.send(server.recv())
        client.recv()

    return lap


@twins("socket(", python=False)
def zmq_sockets(random: Random, leaks: bool) -> Lap:
    import zmq

    context, kept = zmq.Context(), []
    server = context.socket(zmq.PULL)
    port = server.bind_to_random_port("tcp://127.0.0.1")

    def lap() -> None:
        client = context.socket(zmq.PUSH)
        client.connect(f"tcp://127.0.0.1:{port}")
        if leaks:
            kept.append(client)
        else:
            client.close(linger=0)

    return lap


@innocent
def zmq_up_to_the_mark(random: Random) -> Lap:
    """Nobody reads; beyond its high-water mark the socket refuses what is sent."""
    import zmq

    socket = zmq.Context.instance().socket(zmq.PUSH)
    socket.bind("inproc://unread")
    reader = zmq.Context.instance().socket(zmq.PULL)
    reader.connect("inproc://unread")

    def lap() -> None:
        try:
            socket.send(random.randbytes(100), zmq.DONTWAIT)
        except zmq.Again:
            pass

    return lap


class _Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2000")
        self.end_headers()
        self.wfile.write(b"x" * 2000)

    def log_message(self, *_: object) -> None: ...


def _serve() -> int:
    """The port of a server in a process of its own, so that its threads are not the test's."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True).start()
    port = server.server_port
    server.socket.close()
    return port


@twins("answers")
def keep_alive_session(random: Random, leaks: bool) -> Lap:
    import requests

    url, session, answers = f"http://127.0.0.1:{_serve()}/", requests.Session(), []

    def lap() -> None:
        answer = session.get(url)
        if leaks:
            answers.append(answer)

    return lap


@twins("getresponse", python=False)
def connections_to_a_server(random: Random, leaks: bool) -> Lap:
    port, kept = _serve(), []

    def lap() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/")
        connection.getresponse().read()
        if leaks:
            kept.append(connection)
        else:
            connection.close()

    return lap


@twins("open_connection", python=False)
def streams_of_a_loop(random: Random, leaks: bool) -> Lap:
    loop, kept = asyncio.new_event_loop(), []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await reader.read()
        writer.close()

    server = loop.run_until_complete(asyncio.start_server(echo, "127.0.0.1", 0))
    port = server.sockets[0].getsockname()[1]

    async def play() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"step\n")
        await reader.readline()
        if leaks:
            kept.append(writer)
        else:
            writer.close()
            await writer.wait_closed()
            await asyncio.sleep(0.001)

    return lambda: loop.run_until_complete(play())


@innocent
def datagrams(random: Random) -> Lap:
    receiver, sender = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))

    def lap() -> None:
        sender.sendto(random.randbytes(100), receiver.getsockname())
        receiver.recv(200)

    return lap
