"""Where pytest's process listens for the processes of its run: a socket in a directory that only its user can enter."""

from __future__ import annotations

import json
import os
import secrets
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from socket import SOCK_STREAM, SOL_SOCKET, create_server
from socket import socket as Socket  # noqa: N812
from tempfile import mkdtemp

from pytest_rlstability.compat.cpython import accept_descriptor
from pytest_rlstability.osinfo.message_socket import UNIX, Address

if sys.platform == "linux":
    from os import geteuid
    from socket import SO_PEERCRED

_BACKLOG = 64
_LONGEST_PATH = 96
"""Bytes that the directory of a socket may have: macOS allows 104 for the whole path."""
_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True)
class Endpoint:
    """Where pytest's process listens, the token that its own processes show, and the directory of the run.

    Only this user can enter the directory. A fresh interpreter reads the rest from a file there: every user of the
    machine can read a command line.
    """

    address: Address
    token: str
    directory: Path

    @classmethod
    def load(cls, directory: str) -> Endpoint:
        """The endpoint of the run with this directory."""
        address, token = json.loads(Path(directory, "endpoint").read_text())
        return cls(address if isinstance(address, str) else tuple(address), token, Path(directory))

    def save(self) -> None:
        descriptor = os.open(self.directory / "endpoint", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            json.dump([self.address, self.token], file)


def listen() -> tuple[Socket, Endpoint]:
    """A listening socket in a new directory that only this user can enter, and how to reach it.

    Without Unix sockets it is a port of this machine that anybody can connect to. There the token decides.
    """
    directory = _new_directory()
    try:
        if UNIX is None:
            server = create_server(("127.0.0.1", 0), backlog=_BACKLOG)
            address: Address = server.getsockname()[:2]
        else:
            server, address = Socket(UNIX, SOCK_STREAM), str(directory / "socket")
            server.bind(address)
            server.listen(_BACKLOG)
        server.setblocking(False)
        endpoint = Endpoint(address, secrets.token_hex(16), directory)
        endpoint.save()
    except BaseException:
        rmtree(directory, ignore_errors=True)
        raise
    return server, endpoint


def _new_directory() -> Path:
    """In TMPDIR, unless its path is too long for that of a socket."""
    directory = Path(mkdtemp(prefix="rlstability-"))
    if UNIX is None or len(os.fsencode(directory)) <= _LONGEST_PATH:
        return directory
    directory.rmdir()
    return Path(mkdtemp(prefix="rlstability-", dir="/tmp"))


def accept(server: Socket) -> Socket:
    """The next connection. The server's own method would make it of whatever ``socket.socket`` is by now."""
    return Socket(fileno=accept_descriptor(server))


def is_own_user(connection: Socket) -> bool:
    """Whether a process of this user, or root's, is at the other end. Elsewhere the directory's mode and the token
    decide."""
    if sys.platform == "linux":
        _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size))
        if user not in (geteuid(), 0):
            return False
    return True
