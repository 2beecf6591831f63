"""A connection through the proxy: two sockets, a flow of bytes each way, and the faults that apply to it."""

from __future__ import annotations

import errno
import math
import random
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_rlstability.kits.proxy.faults import Direction, Effect, Rule

if TYPE_CHECKING:
    from pytest_rlstability.kits.proxy.relay import Relay

Address = tuple[int, tuple[str, int]]
"""An address family and a socket address of it."""

_BUFFER_BYTES = 256 * 1024
_PENDING_LIMIT = 1024 * 1024
_CUT_LINGER_SECONDS = 1.0
_ABANDONED_SECONDS = 5.0
_CONNECTING = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)
_LINGER_NOT = struct.pack("ii", 1, 0)

# Every connection reads through the same buffer: the relay has one thread, and what cannot be sent at once is copied.
_buffer = memoryview(bytearray(_BUFFER_BYTES))


@dataclass
class _Armed:
    """An effect on one flow. It becomes active once the rule's ``after_bytes`` have passed."""

    rule: Rule
    effect: Effect
    active: bool = False
    counted: bool = False


@dataclass(eq=False)
class Flow:
    """One direction of a connection: what came from *source* and has not yet gone to *sink*."""

    connection: Connection
    source: socket.socket
    sink: socket.socket
    direction: Direction
    armed: list[_Armed] = field(default_factory=list)
    pending: bytearray = field(default_factory=bytearray)
    forwarded: int = 0
    source_ended: bool = False
    finished: bool = False
    discarding: bool = False
    sink_is_full: bool = False
    stalled: bool = False

    @property
    def wants_to_read(self) -> bool:
        return not self.source_ended and (self.discarding or len(self.pending) < _PENDING_LIMIT)

    def read(self, now: float) -> None:
        count = self.source.recv_into(_buffer)
        if count == 0:
            self.source_ended = True
        elif self.discarding:
            return
        elif not self.armed and not self.pending:
            sent = self._send(_buffer[:count])
            if sent < count:
                self.pending += _buffer[sent:count]
            return
        else:
            self.pending += _buffer[:count]
        for armed in self.armed:
            if armed.active:
                armed.effect.arrive(count or 1, now, self.connection.chance)
        self.forward(now)

    def forward(self, now: float) -> None:
        """Pass on as much as the faults and the receiver allow, and the end of the stream after the last byte."""
        self.sink_is_full = self.stalled = False
        while not self.finished and not self.sink_is_full and (self.pending or self.source_ended):
            units = self._permitted(now)
            if units == 0:
                return
            if self.pending:
                with memoryview(self.pending) as view:
                    units = self._send(view[:units])
                del self.pending[:units]
            else:
                self.finish()
            for armed in self.armed:
                if armed.active:
                    armed.effect.spend(units, now)

    def finish(self) -> None:
        """Tell the receiver that nothing more will come."""
        self.finished = True
        self.pending.clear()
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the receiver is gone already

    def half_close(self) -> None:
        """End this direction; what still comes is read and dropped, so that the sender is never blocked."""
        self.finish()
        self.discarding = True

    def wake(self) -> None:
        self.connection.guarded(self.forward)

    def source_ready(self, events: int) -> None:
        self.connection.ready(events, self)

    def _permitted(self, now: float) -> int:
        """Bytes (or the end of the stream, one unit) that may pass now; a fault may end the connection instead."""
        units: float = len(self.pending) or 1
        blocked_until = now
        for armed in self.armed:
            ahead = armed.rule.after_bytes - self.forwarded
            if ahead > 0:
                units = min(units, ahead)
                continue
            if not armed.active:
                armed.active = True
                armed.effect.arrive(len(self.pending) + self.source_ended, now, self.connection.chance)
            allowed = armed.effect.allowance(now)
            if allowed != math.inf:
                self._count(armed)
            if allowed <= 0:
                blocked_until = max(blocked_until, armed.effect.wakes_at())
            units = min(units, allowed)
        if units <= 0:
            self.stalled = blocked_until == math.inf
            self.connection.relay.call_at(blocked_until, self, self.wake)
            return 0
        ending = next((armed for armed in self.armed if armed.active and armed.rule.fault in _ENDINGS), None)
        if ending is None:
            return int(units)
        self._count(ending)
        _ENDINGS[ending.rule.fault](self)
        return 0

    def _count(self, armed: _Armed) -> None:
        if not armed.counted:
            armed.counted = True
            self.connection.relay.counts[armed.rule.fault] += 1

    def _send(self, data: memoryview) -> int:
        try:
            sent = self.sink.send(data)
        except BlockingIOError:
            sent = 0
        self.sink_is_full = sent < len(data)
        self.forwarded += sent
        self.connection.relay.counts[f"bytes_{self.direction}"] += sent
        return sent


_ENDINGS: dict[str, Callable[[Flow], None]] = {
    "cut": lambda flow: flow.connection.cut(),
    "half_close": Flow.half_close,
    "reset": lambda flow: flow.connection.abort(),
}
"""The faults that end something, in place of the first byte beyond ``after_bytes``."""


class Connection:
    """A client's connection, the proxy's connection to the server, and a flow each way."""

    def __init__(self, relay: Relay, client: socket.socket, rules: Sequence[Rule], chance: random.Random) -> None:
        self.relay = relay
        self.client = client
        self.chance = chance
        self._rules = list(rules)
        self._server: socket.socket | None = None
        self.flows: tuple[Flow, ...] = ()
        self.closed = False
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connect(list(relay.upstream))

    def arm(self, rule: Rule) -> None:
        """Apply *rule*. Until the server has answered there is no flow, and the rule is kept for later."""
        if not self.flows:
            self._rules.append(rule)
        for flow in self.flows:
            if flow.direction == rule.direction:
                flow.armed.append(_Armed(rule, rule.effect()))

    def disarm(self) -> None:
        self._rules.clear()
        for flow in self.flows:
            flow.armed.clear()
            flow.wake()

    def cut(self) -> None:
        """FIN both ways. Closing with unread bytes would send an RST, so they are read and dropped first."""
        for flow in self.flows:
            flow.half_close()
        self.relay.call_at(time.monotonic() + _CUT_LINGER_SECONDS, self, self.close)

    def abort(self) -> None:
        """RST both ways."""
        self._close_ends(close_with_reset)

    def close(self) -> None:
        self._close_ends(socket.socket.close)

    def _close_ends(self, close: Callable[[socket.socket], None]) -> None:
        if self.closed:
            return
        self.closed = True
        self.relay.forget(self)
        for end in (self.client, self._server):
            if end is not None:
                self.relay.watch(end, 0)
                close(end)

    def _connect(self, addresses: list[Address], error: int = 0) -> None:
        """Try the server's addresses in turn. If none answers, the client gets an RST: its connection is already
        accepted and cannot be refused."""
        if not addresses:
            self.relay.report_unreachable(error)
            self.abort()
            return
        family, address = addresses[0]
        self._server = server = socket.socket(family, socket.SOCK_STREAM)
        server.setblocking(False)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        error = server.connect_ex(address)
        if error in _CONNECTING:
            self.relay.watch(server, selectors.EVENT_WRITE, lambda events: self._connected(server, addresses))
        else:
            self._try_next(server, addresses, error)

    def _try_next(self, server: socket.socket, addresses: list[Address], error: int) -> None:
        self.relay.watch(server, 0)
        server.close()
        self._server = None
        self._connect(addresses[1:], error)

    def _connected(self, server: socket.socket, addresses: list[Address]) -> None:
        error = server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._try_next(server, addresses, error)
            return
        self.flows = Flow(self, self.client, server, "upstream"), Flow(self, server, self.client, "downstream")
        for rule in self._rules:
            self.arm(rule)
        self._watch_ends()

    def _watch_ends(self) -> None:
        for reading, writing in zip(self.flows, reversed(self.flows), strict=True):
            events = selectors.EVENT_READ if reading.wants_to_read else 0
            if writing.sink_is_full and not writing.finished:
                events |= selectors.EVENT_WRITE
            self.relay.watch(reading.source, events, reading.source_ready)

    def ready(self, events: int, reading: Flow) -> None:
        """The source of *reading*, which is the sink of the other flow, can be read from or written to."""
        writing = next(flow for flow in self.flows if flow is not reading)
        if events & selectors.EVENT_WRITE:
            self.guarded(writing.forward)
        if events & selectors.EVENT_READ:
            self.guarded(reading.read)
            if reading.source_ended and writing.stalled and not self.closed:
                # The stalled client has closed its side and may be gone: nothing else would close this connection.
                self.relay.call_at(time.monotonic() + _ABANDONED_SECONDS, self, self.close)

    def guarded(self, step: Callable[[float], None]) -> None:
        """Run one step of a flow, unless the connection is closed. When one end breaks, the other is reset too."""
        if self.closed:
            return  # by another event of the same round
        try:
            step(time.monotonic())
        except BlockingIOError:
            pass
        except OSError:
            self.abort()
        if all(flow.finished and flow.source_ended for flow in self.flows):
            self.close()
        elif not self.closed:
            self._watch_ends()


def close_with_reset(end: socket.socket) -> None:
    """Close *end* so that its peer gets a TCP RST, not a FIN."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    end.close()
