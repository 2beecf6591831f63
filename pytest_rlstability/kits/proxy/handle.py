"""The test's side of a chaos proxy: starts its process, sends it requests, reads its counts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import warnings
from dataclasses import asdict

import pytest

from pytest_rlstability.kits.proxy import HOST
from pytest_rlstability.kits.proxy.faults import FAULTS, Direction, Rule
from pytest_rlstability.osinfo.helper_process import HelperProcess, module_command

_PATIENCE_SECONDS = 10.0
_COUNTS = ("connections", "bytes_upstream", "bytes_downstream", "unreachable")


class ChaosWarning(pytest.PytestWarning):
    """A fault that was added and never happened: the test has not shown what it was written to show."""


class ProxyStats(dict[str, int]):
    """What a proxy has done so far, by name: ``stats["reset"]`` or ``stats.reset``.

    ``connections`` accepted, ``bytes`` forwarded both ways (``bytes_upstream`` and ``bytes_downstream`` apart),
    ``unreachable``: connections for which the server did not answer, and every fault by its name.
    """

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__(dict.fromkeys((*_COUNTS, *FAULTS), 0) | counts)
        self["bytes"] = self["bytes_upstream"] + self["bytes_downstream"]

    def __getattr__(self, name: str) -> int:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no such count: {name}; there are {', '.join(self)}") from None

    @property
    def faults(self) -> dict[str, int]:
        """The faults done, without those that never happened."""
        return {name: self[name] for name in FAULTS if self[name]}


class ChaosProxy:
    """A TCP proxy in front of the server at *host*:*port* that breaks connections on demand. It has a process of its
    own: workers that the test forks cannot keep its sockets open, native code that holds the GIL cannot delay it, and
    its memory, threads and descriptors are not the test's."""

    def __init__(self, host: str, port: int, seed: object = 0) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        upstream = [(int(family), address) for family, _, _, _, address in found]
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._added: dict[str, None] = {}
        job = json.dumps({"upstream": upstream, "seed": str(seed), "parent": os.getpid()})
        command = module_command("pytest_rlstability.kits.proxy.process", job, isolated=True)
        self.host = HOST
        self._line, theirs = socket.socketpair()
        self._line.settimeout(_PATIENCE_SECONDS)
        with theirs:
            if sys.platform == "win32":
                self._process = HelperProcess(command, stdin=subprocess.PIPE)
                self._process.communicate(theirs.share(self._process.pid))
            else:
                self._process = HelperProcess(command, stdin=theirs)
        self._answers = self._line.makefile("rb")
        self.port = self._read_port()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def closed(self) -> bool:
        return self._answers.closed

    @property
    def stats(self) -> ProxyStats:
        """The counts now; once the proxy is closed, the last ones."""
        if not self.closed:
            self._request("count")
        return ProxyStats(self._counts)

    def add(
        self,
        fault: str,
        *,
        every: int | None = None,
        rate: float | None = None,
        after_bytes: int = 0,
        direction: Direction = "downstream",
        **how: object,
    ) -> None:
        """Let *fault* happen: on each *every*-th connection, with probability *rate* per connection, or on all.

        It strikes in place of the first byte beyond *after_bytes* in its *direction* (``downstream``: from the server
        to the client). The arguments in *how* are the fault's own: ``proxy.add("delay", seconds=0.2, jitter=0.1)``.
        """
        self._request("add", asdict(Rule(fault, every, rate, after_bytes, direction, how)))
        self._added[fault] = None

    def clear(self) -> None:
        """Remove every fault; bytes that a fault holds back pass on."""
        self._request("clear")

    def close(self) -> None:
        """End the proxy and its connections. Raises if the proxy had died: its test proved nothing then. Warns of each
        fault that was added and never struck."""
        if self.closed:
            return
        died = self._process.poll()
        if died is None:
            self._request("count")
        self._answers.close()
        self._line.close()
        self._end_process()
        if died is not None:
            raise self._death()
        stats = self.stats
        for fault in self._added:
            if not stats[fault]:
                seen = (
                    f"{stats.connections} connections, {stats.bytes_upstream} bytes up, {stats.bytes_downstream} down"
                )
                warnings.warn(f"chaos_proxy: {fault} was added and never struck ({seen})", ChaosWarning, stacklevel=2)

    def __enter__(self) -> ChaosProxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read_port(self) -> int:
        try:
            return int(self._answers.readline())
        except (OSError, ValueError):  # it took too long, or the line ended
            raise self._death() from None

    def _request(self, name: str, how: dict[str, object] | None = None) -> None:
        request = json.dumps([name, how]).encode() + b"\n"
        with self._lock:
            try:
                self._line.sendall(request)
                self._counts = json.loads(self._answers.readline())
            except (ConnectionError, TimeoutError, ValueError):  # ValueError: the line ended before the answer
                raise self._death() from None

    def _end_process(self) -> None:
        if not self._process.ended_within(_PATIENCE_SECONDS):
            self._process.end()

    def _death(self) -> RuntimeError:
        self._end_process()
        return RuntimeError(
            f"the chaos proxy's process (pid {self.pid}) ended with status {self._process.returncode}; "
            "its last output is in the captured stderr. This is not a failure of the code under test."
        )
