"""Records between processes: one JSON object a line over a stream socket.

What was sent before a crash stays in the kernel's buffer and is still read after it, so the socket is the
crash-safe journal of a test: nothing has to reach a file, and the reader learns of it at once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Address = str | tuple[str, int]
UNHEARD = 71
"""What a test's process exits with whose last words nobody could hear: the test closed its connection."""


class Wire:
    """One end of a connection. The sender blocks until the kernel has the record; the reader never blocks
    unless it asks to (``receive``). A forked copy of the process is cut off: see ``drop``."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._pending = bytearray()
        self._received: list[Record] = []
        self._lock = threading.Lock()
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, record: Mapping[str, object]) -> bool:
        """Send *record*; False when nobody is there to read it."""
        # The leading newline ends a record that a signal handler cut short.
        line = b"\n" + _as_json(record).encode() + b"\n"
        with self._lock:
            if self.closed:
                return False
            try:
                self._socket.sendall(line)
            except OSError:
                self.closed = True
        return not self.closed

    def receive(self) -> Record | None:
        """The next record, waiting for it; None when the other end is gone."""
        while not self._received:
            if not self._fill():
                return None
            self._received += self._split()
        return self._received.pop(0)

    def drain(self) -> list[Record]:
        """The records that are here now; sets ``closed`` at the end of the stream. The socket must not block."""
        while self._fill():
            pass
        return self._split()

    def _fill(self) -> bool:
        """Read once; whether anything came."""
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._pending += data
        self.closed = not data
        return bool(data)

    def _split(self) -> list[Record]:
        *lines, rest = self._pending.split(b"\n")
        self._pending = bytearray(rest)
        records = []
        for line in lines:
            if line:
                try:
                    records.append(json.loads(line))
                except ValueError:  # cut short by a signal handler in the sender
                    continue
        return records

    def drop(self) -> None:
        """Forget the connection in a forked copy of its owner, without a word to the other end."""
        self.closed = True
        self._socket.close()

    def close(self) -> None:
        self.closed = True
        self._socket.close()


def _as_json(record: Mapping[str, object]) -> str:
    """What JSON cannot hold crosses as text, value by value."""
    try:
        return json.dumps(record, default=printable)
    except Exception:  # odd keys, circles, a depth without end
        return json.dumps(plain(record, printable))


def plain(value: object, fallback: Callable[[object], str], depth: int = 20) -> object:
    """*value* as JSON knows it; *fallback* makes text of the parts that it does not know, or that lie too deep.

    >>> plain({1: {2, 2}, "x": [None, {(): 1}]}, str)
    {'1': '{2}', 'x': [None, {'()': 1}]}
    """
    try:
        json.dumps(value)
    except Exception:
        if isinstance(value, Mapping) and depth:
            return {str(key): plain(item, fallback, depth - 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)) and depth:
            return [plain(item, fallback, depth - 1) for item in value]
        try:
            return fallback(value)
        except Exception:
            return printable(value)
    return value


def printable(value: object) -> str:
    """A stand-in for a value JSON does not know: a report must never fail because of what a test put in it."""
    try:
        return repr(value)
    except Exception:
        return f"<unprintable {type(value).__name__}>"


def listen(directory: Path) -> tuple[socket.socket, Address]:
    """A listening socket only this machine reaches, and its address."""
    if hasattr(socket, "AF_UNIX"):
        # Linux knows addresses without a file: a long TMPDIR would not fit into one with.
        path = f"\0{directory.name}" if sys.platform == "linux" else os.fspath(directory / "hub")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(path)
        server.listen(64)
        return server, path
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    return server, server.getsockname()[:2]


def connect(address: Address) -> socket.socket:
    """A connection to what ``listen`` gave."""
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address)
        return connection
    host, port = address
    return socket.create_connection((host, port))
