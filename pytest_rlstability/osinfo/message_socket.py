"""A stream socket that carries messages, one line of JSON each.

What was sent before a crash stays in the kernel's buffer and can be read after it. So the socket is a crash-safe
journal of the test, without a file, and the reader gets each message at once.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_rlstability.model.messages import Message, decode, encode

Address = str | tuple[str, int]


@dataclass(frozen=True)
class Endpoint:
    """Where pytest's process listens, the token that its own processes show, and the directory of the run."""

    address: Address
    token: str
    directory: Path


class MessageSocket:
    """One end of a connection. ``send`` waits until the kernel has the message, ``receive`` until there is one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unread = bytearray()
        self._received: list[Message] = []
        self._lock = threading.Lock()
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """Send *message*; False when the other end is gone."""
        # The leading newline ends a message that a signal handler cut short.
        line = b"\n" + encode(message).encode() + b"\n"
        with self._lock:
            if self.closed:
                return False
            try:
                self._socket.sendall(line)
            except OSError:
                self.closed = True
        return not self.closed

    def receive(self) -> Message | None:
        """The next message, waiting for it; None when the other end is gone."""
        while not self._received:
            if not self._read():
                return None
            self._received += self._split()
        return self._received.pop(0)

    def drain(self) -> list[Message]:
        """The messages that are here now; sets ``closed`` at the end of the stream. The socket must not block."""
        while self._read():
            pass
        return self._split()

    def _read(self) -> bool:
        """Read once; whether anything came."""
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._unread += data
        self.closed = not data
        return bool(data)

    def _split(self) -> list[Message]:
        *lines, rest = self._unread.split(b"\n")
        self._unread = bytearray(rest)
        messages = []
        for line in filter(None, lines):
            with suppress(ValueError):  # cut short by a signal handler in the sender
                messages.append(decode(bytes(line)))
        return messages

    def close(self) -> None:
        """Close this process's end. In a fork of the owner this does not end the connection."""
        self.closed = True
        self._socket.close()


def listen(directory: Path) -> tuple[socket.socket, Address]:
    """A listening socket that only this machine can reach, and its address."""
    if hasattr(socket, "AF_UNIX"):
        # Linux has addresses without a file. The path of a file would not fit if TMPDIR is long.
        path = f"\0{directory.name}" if sys.platform == "linux" else os.fspath(directory / "socket")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(path)
        server.listen(64)
        return server, path
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    return server, server.getsockname()[:2]


def connect(address: Address) -> socket.socket:
    """A connection to an address that ``listen`` returned."""
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address)
        return connection
    host, port = address
    return socket.create_connection((host, port))
