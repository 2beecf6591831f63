"""The connections of a test's or script's process to the process that watches it. Needs no pytest."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from os import getpid  # bound here: a test may replace it

from pytest_rlstability.model.messages import Hello, Message
from pytest_rlstability.model.progress_channel import Channel
from pytest_rlstability.model.progress_counters import ProcessCounters
from pytest_rlstability.osinfo.endpoint import Endpoint
from pytest_rlstability.osinfo.message_socket import MessageSocket, connect
from pytest_rlstability.osinfo.timed_stacks import open_to_append, sent_path, stacks_path


class ProcessChannel(Channel):
    """The channel of a test with a process of its own: counters in shared memory, messages over the connection."""

    is_watched = True

    def __init__(self, connection: MessageSocket, counters: ProcessCounters) -> None:
        self._connection = connection
        self._counters = counters
        self.beat = counters.beat  # type: ignore[method-assign]
        self.lap = counters.lap  # type: ignore[method-assign]
        self.pause_beats = counters.pause_beats  # type: ignore[method-assign]

    @property
    def beats(self) -> int:
        return self._counters.beats

    def send(self, message: Message) -> None:
        self._connection.send(message)


@dataclass
class Link:
    """A test process's connections to pytest's."""

    serial: int
    messages: MessageSocket
    crash_descriptor: int

    @classmethod
    def open(cls, endpoint: Endpoint, serial: int) -> Link:
        messages = MessageSocket(connect(endpoint.address))
        messages.send(Hello("test", endpoint.token, serial, getpid()))
        if sys.platform == "win32":
            messages.keep_copy(open_to_append(sent_path(endpoint.directory, serial)))
            return cls(serial, messages, open_to_append(stacks_path(endpoint.directory, serial)))
        crash_dump = connect(endpoint.address)
        MessageSocket(crash_dump).send(Hello("crash_dump", endpoint.token, serial))
        # Detached: it has to stay open until the very end of the process.
        return cls(serial, messages, crash_dump.detach())
