"""The proxy's own process: the relay, and a control line to the test that started it.

While nothing happens the relay sleeps without a timeout, so that it uses no CPU and does not look like progress to the
stall watchdog.

The control line is one end of a socket pair: nobody else can connect to it. It carries one JSON value per line each
way, our port first. The process ends when it is closed or when the parent dies, because a worker that the test forked
may hold it open.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pytest_rlstability.kits.proxy import HOST
from pytest_rlstability.kits.proxy.connection import Connection, close_with_reset
from pytest_rlstability.kits.proxy.faults import Draw, Rule


class Relay:
    """Accepts connections, applies the rules, counts. Its connections are among *tasks*. *upstream* are the addresses
    of the server, each with its family."""

    def __init__(self, tasks: asyncio.TaskGroup, upstream: Sequence[tuple[int, tuple[Any, ...]]], seed: object) -> None:
        self.tasks = tasks
        self.upstream = upstream
        self.counts: Counter[str] = Counter()
        self.connections: set[Connection] = set()
        self._seed = seed
        self._draws: list[Draw] = []
        self._rules_added = 0
        # Keeps the port reserved while ``refuse`` has the listener closed.
        self._placeholder = _bound_socket(0)
        self.port: int = self._placeholder.getsockname()[1]
        self._listener: socket.socket | None = None
        self._listen()

    def add(self, rule: Rule) -> None:
        """Apply *rule* to new connections, and to those already open if it names neither *every* nor *rate*."""
        self._rules_added += 1
        if rule.fault == "refuse" and rule.strikes_all:
            if self._listener is not None:
                self._stop_listening(self._listener)
                self.counts["refuse"] += 1
            return
        self._draws.append(Draw(rule, f"{self._seed}:{self._rules_added}"))
        if rule.strikes_all:
            for connection in self.connections:
                connection.arm(rule)

    def clear(self) -> None:
        """Remove every rule; bytes that a fault holds back pass on."""
        self._draws.clear()
        for flow in (flow for connection in self.connections for flow in connection.flows):
            flow.disarm()
        if self._listener is None:
            self._listen()

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        if self._listener is not None:
            self._stop_listening(self._listener)
        self._placeholder.close()

    def report_unreachable(self, error: OSError) -> None:
        self.counts["unreachable"] += 1
        if self.counts["unreachable"] == 1:
            host, port, *_ = self.upstream[-1][1]
            reason = f"[Errno {error.errno}] {os.strerror(error.errno or 0)}"
            print(f"chaos_proxy: cannot reach the server at {host}:{port}: {reason}", file=sys.stderr, flush=True)

    def accept(self) -> None:
        """Accept the clients that wait."""
        while self._listener is not None:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # no client is waiting, or it gave up before its turn
            self.counts["connections"] += 1
            struck = [draw.rule for draw in self._draws if draw.next()]
            if any(rule.fault == "refuse" for rule in struck):
                self.counts["refuse"] += 1
                close_with_reset(client)
                continue
            chance = random.Random(f"{self._seed}:connection:{self.counts['connections']}")
            connection = Connection(self, client, chance)
            for rule in struck:
                connection.arm(rule)
            self.connections.add(connection)

    def _listen(self) -> None:
        self._listener = _bound_socket(self.port)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self.accept)

    def _stop_listening(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()
        self._listener = None


def _bound_socket(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound


async def _serve(job: dict[str, Any]) -> None:
    async with asyncio.TaskGroup() as tasks:
        relay = Relay(tasks, [(family, tuple(address)) for family, address in job["upstream"]], job["seed"])
        reader, writer = await asyncio.open_connection(sock=_control_line())
        writer.write(b"%d\n" % relay.port)
        _stop_with_parent(reader, job["parent"])
        try:
            while request := await reader.readline():
                relay.accept()  # the counts must include every connection made before the request
                _do(relay, *json.loads(request))
                writer.write(json.dumps(relay.counts).encode() + b"\n")
        except ConnectionError:
            pass  # the test was killed
        relay.close()


def _control_line() -> socket.socket:
    """Our end of the control line: the standard input; on Windows, the socket that was described there."""
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    return socket.socket(fileno=os.dup(0))


def _do(relay: Relay, name: str, rule: dict[str, Any] | None) -> None:
    match name:
        case "add":
            relay.add(Rule(**rule or {}))
        case "clear":
            relay.clear()
        case "count":
            pass
        case _:
            raise ValueError(f"unknown request {name!r}")


def _stop_with_parent(reader: asyncio.StreamReader, parent: int) -> None:
    """Linux only: elsewhere the process ends with its control line."""
    if hasattr(os, "pidfd_open"):
        asyncio.get_running_loop().add_reader(os.pidfd_open(os.getppid()), reader.feed_eof)
        if os.getppid() != parent:
            reader.feed_eof()  # it died before it could be watched


def _allow_many_descriptors() -> None:
    """A test with a thousand stalled connections needs two descriptors for each."""
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):  # macOS allows less than the limit that it names
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: list[str]) -> None:
    """Serve until the test that started this process closes the control line. The job is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the test decides what it means
    _allow_many_descriptors()
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(_serve(json.loads(arguments[0])))
