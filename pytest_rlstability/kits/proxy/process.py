"""The proxy's own process: the relay, and a control line to the test that started it.

The control line carries one JSON object a line each way. The process ends when that line closes or its parent dies,
whichever comes first: a worker that the test forked may hold the line open for ever.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable

from pytest_rlstability.proxy.relay import Relay
from pytest_rlstability.proxy.rules import Rule

_JOINING_SECONDS = 10.0


class ControlLine:
    """Answers the test's requests between two rounds of the relay."""

    def __init__(self, relay: Relay, line: socket.socket) -> None:
        self._relay = relay
        self._line = line
        self._received = b""
        self._requests: dict[str, Callable[[dict[str, object]], None]] = {
            "add": lambda how: relay.add(Rule(**how)),  # type: ignore[arg-type]
            "clear": lambda how: relay.clear(),
            "count": lambda how: None,
        }
        relay.watch(line, selectors.EVENT_READ, self._ready)

    def _ready(self, events: int) -> None:
        try:
            received = self._line.recv(65536)
        except ConnectionError:
            received = b""
        if not received:
            self._relay.stop()
            return
        *requests, self._received = (self._received + received).split(b"\n")
        for request in requests:
            name, how = json.loads(request)
            self._requests[name](how)
            self._line.sendall(json.dumps(self._relay.counts).encode() + b"\n")


def _stop_with_parent(relay: Relay, parent: int) -> None:
    """Linux only: elsewhere the control line's end must do."""
    if hasattr(os, "pidfd_open"):
        descriptor = os.pidfd_open(os.getppid())
        relay.watch(descriptor, selectors.EVENT_READ, lambda events: relay.stop())
        if os.getppid() != parent:
            relay.stop()  # it died before anybody watched


def _allow_many_descriptors() -> None:
    """A thousand stalled connections are an ordinary test, and two descriptors each."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    """Serve until the test that started this process closes the control line. The job comes as the only argument."""
    job = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the test decides what it means
    _allow_many_descriptors()
    relay = Relay([(family, tuple(address)) for family, address in job["upstream"]], job["seed"])
    _stop_with_parent(relay, job["parent"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_JOINING_SECONDS)
        ports = {"port": relay.port, "control_port": listener.getsockname()[1]}
        print(json.dumps(ports), flush=True)
        line, _ = listener.accept()
    line.settimeout(None)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ControlLine(relay, line)
    relay.run()
    relay.close()
