"""A stream socket that carries messages, one line of JSON each.

What was sent before a crash stays in the kernel's buffer and can be read after it. So the socket is a crash-safe
journal of the test, without a file, and the reader gets each message at once.
"""

from __future__ import annotations

import socket
import struct
import sys
from _socket import socket as RawSocket  # noqa: N812
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import SOCK_STREAM, SOL_SOCKET, create_connection, create_server
from socket import socket as Socket  # noqa: N812
from threading import Lock

from pytest_rlstability.compat.cpython import accept_descriptor
from pytest_rlstability.model.messages import Message, decode, encode

if sys.platform == "linux":
    from os import getuid
    from socket import SO_PEERCRED

Address = str | tuple[str, int]
_UNIX = getattr(socket, "AF_UNIX", None)
_BACKLOG = 64
_CREDENTIALS = struct.Struct("iII")
_send_all, _receive, _connect, _close = RawSocket.sendall, RawSocket.recv, RawSocket.connect, RawSocket.close
"""Bound here, as all functions that this module uses: a test may replace those of its process."""


@dataclass(frozen=True)
class Endpoint:
    """Where pytest's process listens, the token that its own processes show, and the directory of the run."""

    address: Address
    token: str
    directory: Path


class MessageSocket:
    """One end of a connection. ``send`` waits until the kernel has the message, ``receive`` until there is one."""

    def __init__(self, connection: Socket) -> None:
        self._socket = connection
        self._unread = bytearray()
        self._received: list[Message] = []
        self._lock = Lock()
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
                _send_all(self._socket, line)
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
            data = _receive(self._socket, 1 << 20)
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
        _close(self._socket)


def listen(directory: Path) -> tuple[Socket, Address]:
    """A listening socket that only this machine can reach, and its address."""
    if _UNIX is None:
        server = create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        return server, server.getsockname()[:2]
    # Linux has addresses without a file. The path of a file would not fit if TMPDIR is long.
    path = f"\0{directory.name}" if sys.platform == "linux" else str(directory / "socket")
    server = Socket(_UNIX, SOCK_STREAM)
    server.bind(path)
    server.listen(_BACKLOG)
    return server, path


def accept(server: Socket) -> Socket:
    """The next connection. The server's own method would make it of whatever ``socket.socket`` is by now."""
    return Socket(fileno=accept_descriptor(server))


def connect(address: Address) -> Socket:
    """A connection to an address that ``listen`` returned."""
    if not isinstance(address, str):
        return create_connection(address)
    assert _UNIX is not None
    connection = Socket(_UNIX, SOCK_STREAM)
    _connect(connection, address)
    return connection


def is_own_user(connection: Socket) -> bool:
    """Whether a process of this user, or root's, is at the other end. Where that cannot be asked, the token decides."""
    if sys.platform != "linux":
        return True
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size))
    return user in (getuid(), 0)
