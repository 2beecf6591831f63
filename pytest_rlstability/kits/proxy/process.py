"""The proxy's own process: the relay, and a control line to the test that started it.

The control line is a socket that carries one JSON value per line each way. The process ends when it is closed or when
the parent dies, because a worker that the test forked may hold it open.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from typing import Any

from pytest_rlstability.kits.proxy import HOST
from pytest_rlstability.kits.proxy.faults import Rule
from pytest_rlstability.kits.proxy.relay import Relay

_JOINING_SECONDS = 10.0


async def _serve(job: dict[str, Any]) -> None:
    async with asyncio.TaskGroup() as tasks:
        relay = Relay(tasks, [(family, tuple(address)) for family, address in job["upstream"]], job["seed"])
        reader, writer = await asyncio.open_connection(sock=_control_line(relay.port))
        _stop_with_parent(reader, job["parent"])
        try:
            while request := await reader.readline():
                relay.accept()  # the counts must include every connection made before the request
                _do(relay, *json.loads(request))
                writer.write(json.dumps(relay.counts).encode() + b"\n")
        except ConnectionError:
            pass  # the test was killed
        relay.close()


def _control_line(port: int) -> socket.socket:
    """Tell the test our ports, and wait for it to connect."""
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(_JOINING_SECONDS)
        print(json.dumps({"port": port, "control_port": listener.getsockname()[1]}), flush=True)
        line, _ = listener.accept()
    return line


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
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: list[str]) -> None:
    """Serve until the test that started this process closes the control line. The job is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the test decides what it means
    _allow_many_descriptors()
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(_serve(json.loads(arguments[0])))
