"""The proxy's own process: the relay, and a control line to the test that started it.

The control line is a socket that carries one JSON value per line each way. The process ends when it is closed or when
the parent dies, because a worker that the test forked may hold it open.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket

from pytest_rlstability.kits.proxy import HOST
from pytest_rlstability.kits.proxy.faults import Rule
from pytest_rlstability.kits.proxy.relay import Relay

_JOINING_SECONDS = 10.0


def _serve_control_line(relay: Relay, line: socket.socket) -> None:
    """Answer the test's requests between two rounds of the relay."""
    unfinished = b""

    def ready(events: int) -> None:
        nonlocal unfinished
        try:
            received = line.recv(65536)
        except ConnectionError:
            received = b""
        if not received:
            relay.stop()
            return
        *requests, unfinished = (unfinished + received).split(b"\n")
        for request in requests:
            match json.loads(request):
                case ["add", rule]:
                    relay.add(Rule(**rule))
                case ["clear", _]:
                    relay.clear()
                case [name, _] if name != "count":
                    raise ValueError(f"unknown request {name!r}")
            line.sendall(json.dumps(relay.counts).encode() + b"\n")

    relay.watch(line, selectors.EVENT_READ, ready)


def _stop_with_parent(relay: Relay, parent: int) -> None:
    """Linux only: elsewhere the process ends with its control line."""
    if hasattr(os, "pidfd_open"):
        descriptor = os.pidfd_open(os.getppid())
        relay.watch(descriptor, selectors.EVENT_READ, lambda events: relay.stop())
        if os.getppid() != parent:
            relay.stop()  # it died before it could be watched


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
    job = json.loads(arguments[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the test decides what it means
    _allow_many_descriptors()
    relay = Relay([(family, tuple(address)) for family, address in job["upstream"]], job["seed"])
    _stop_with_parent(relay, job["parent"])
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(_JOINING_SECONDS)
        print(json.dumps({"port": relay.port, "control_port": listener.getsockname()[1]}), flush=True)
        line, _ = listener.accept()
    line.settimeout(None)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _serve_control_line(relay, line)
    relay.run()
    relay.close()
