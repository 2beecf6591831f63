"""A stream socket that carries messages, one line of JSON each.

What was sent before a crash stays in the kernel's buffer and can be read after it. So the socket is a crash-safe
journal of the test, without a file, and the reader gets each message at once.
"""

from __future__ import annotations

import socket
import sys
from _socket import socket as RawSocket  # noqa: N812
from contextlib import suppress
from os import write as _write
from socket import SOCK_STREAM, create_connection
from socket import socket as Socket  # noqa: N812
from threading import Lock

from pytest_rlstability.model.messages import LONGEST_MESSAGE, InternalError, Message, ProtocolError, decode, encode

if sys.platform == "win32":
    from select import select

    def _can_send(descriptor: int, seconds: float | None) -> bool:
        return bool(select([], [descriptor], [], seconds)[1])

else:
    from select import POLLOUT, poll

    def _can_send(descriptor: int, seconds: float | None) -> bool:
        room = poll()
        room.register(descriptor, POLLOUT)
        return bool(room.poll(None if seconds is None else seconds * 1000))


Address = str | tuple[str, int]
UNIX = getattr(socket, "AF_UNIX", None)
_LONGEST_GREETING = 4096
_READ_AT_ONCE = 2 * LONGEST_MESSAGE
_SEND_LIMIT = 10.0
_send, _receive, _connect, _close = RawSocket.send, RawSocket.recv, RawSocket.connect, RawSocket.close
_fileno = RawSocket.fileno
"""Bound here, as all functions that this module uses: a test may replace those of its process."""


class MessageSocket:
    """One end of a connection. ``send`` waits until the kernel has the message, ``receive`` until there is one. At the
    end that does not block, ``send`` waits no longer than it takes a reader that is alive."""

    def __init__(self, connection: Socket) -> None:
        self._socket = connection
        self._unread = bytearray()
        self._received: list[Message] = []
        self._lock = Lock()
        self._copy: int | None = None
        self._lines = 0
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
            if self._copy is not None:
                _write(self._copy, line)
            while line:
                try:
                    line = line[_send(self._socket, line) :]
                except BlockingIOError:
                    self.closed = not self.has_room(_SEND_LIMIT)
                except OSError:
                    self.closed = True
                if self.closed:
                    break
        return not self.closed

    def has_room(self, seconds: float | None = 0) -> bool:
        """Whether a short message can be sent at once, or within so many *seconds*; without a limit if None."""
        return _can_send(_fileno(self._socket), seconds)

    def receive(self) -> Message | None:
        """The next message, waiting for it; None when the other end is gone."""
        while not self._received:
            if not self._read():
                return None
            self._received += self._split()
        return self._received.pop(0)

    def greeting(self) -> Message | None:
        """The first message, once all of it is here; ``ProtocolError`` when it is not one of ours. Anybody may be at
        the other end: no more is read and kept than a greeting needs."""
        self._read(_LONGEST_GREETING)
        line, complete, rest = bytes(self._unread).lstrip(b"\n").partition(b"\n")
        if not complete:
            if self.closed or len(self._unread) >= _LONGEST_GREETING:
                raise ProtocolError("no greeting")
            return None
        self._unread = bytearray(rest)
        try:
            return decode(line)
        except ValueError:
            raise ProtocolError("no greeting") from None

    def keep_copy(self, descriptor: int) -> None:
        """Write every further message to a file too. A system without Unix sockets may drop what a process had sent
        when that process dies."""
        self._copy = descriptor

    def dropped(self, copy: bytes) -> list[Message]:
        """The messages of the other end's *copy* that have not arrived. It has died."""
        lines = [line for line in copy.split(b"\n") if line]
        self._unread = bytearray(b"\n".join([*lines[self._lines :], b""]))
        return self._split()

    def take_unread(self) -> bytes:
        """What came after the greeting, on a connection that carries no further messages."""
        unread, self._unread = bytes(self._unread), bytearray()
        return unread

    def drain(self) -> list[Message]:
        """The messages that are here now, or the first of very many; sets ``closed`` at the end of the stream. A line
        that is not one of ours, as a test can write to our descriptor, is an ``InternalError``. The socket must not
        block."""
        while len(self._unread) < _READ_AT_ONCE and self._read():
            pass
        return self._split()

    def _read(self, size: int = 1 << 20) -> bool:
        """Read once; whether anything came."""
        try:
            data = _receive(self._socket, size)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._unread += data
        self.closed = not data
        return bool(data)

    def _split(self) -> list[Message]:
        *lines, rest = self._unread.split(b"\n")
        messages: list[Message] = []
        for line in filter(None, lines):
            self._lines += 1
            with suppress(ValueError):  # cut short by a signal handler in the sender
                try:
                    messages.append(decode(bytes(line)))
                except ProtocolError as error:
                    messages.append(InternalError(str(error)))
        if len(rest) > LONGEST_MESSAGE:
            messages.append(InternalError(f"a message of more than {LONGEST_MESSAGE:,} bytes: {bytes(rest[:200])!r}"))
            rest = bytearray()
        self._unread = bytearray(rest)
        return messages

    def close(self) -> None:
        """Close this process's end. In a fork of the owner this does not end the connection."""
        self.closed = True
        _close(self._socket)


def connect(address: Address) -> Socket:
    """A connection to an address that ``listen`` returned."""
    if not isinstance(address, str):
        return create_connection(address)
    assert UNIX is not None
    connection = Socket(UNIX, SOCK_STREAM)
    _connect(connection, address)
    return connection
