"""A connection through the proxy: two sockets, a flow of bytes each way, and the faults that apply to it."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import struct
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_rlstability.kits.proxy.faults import Direction, Effect, Rule

if TYPE_CHECKING:
    from pytest_rlstability.kits.proxy.process import Relay

_CHUNK = 256 * 1024
_PENDING_LIMIT = 1024 * 1024
_CUT_LINGER_SECONDS = 1.0
_ABANDONED_SECONDS = 5.0
_LINGER_NOT = struct.pack("ii", 1, 0)
_ENDINGS = ("cut", "half_close", "reset")
"""The faults that end something, in place of the first byte beyond ``after_bytes``."""


@dataclass
class _Armed:
    """An effect on one flow. It becomes active once the rule's ``after_bytes`` have passed."""

    rule: Rule
    effect: Effect
    active: bool = False
    counted: bool = False


class Flow:
    """One direction of a connection: what came from *source* and has not yet gone to *sink*."""

    source: socket.socket
    sink: socket.socket

    def __init__(self, connection: Connection, direction: Direction) -> None:
        self.direction = direction
        self.armed: list[_Armed] = []
        self.source_ended = False
        self.stalled = False
        self._connection = connection
        self._pending = bytearray()
        self._forwarded = 0
        self._finished = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    def disarm(self) -> None:
        self.armed.clear()
        self._news.set()

    async def read(self) -> None:
        """Take in what comes, to its end. It goes on at once if no fault applies."""
        while data := await asyncio.get_running_loop().sock_recv(self.source, _CHUNK):
            if not (self.armed or self._pending or self._finished):
                with suppress(BlockingIOError):
                    sent = self.sink.send(data)
                    self._count_bytes(sent)
                    data = data[sent:]
            if data and not self._finished:
                self._pending += data
                self._arrive(len(data))
            while len(self._pending) >= _PENDING_LIMIT:
                self._room.clear()
                await self._room.wait()
        self.source_ended = True
        self._arrive(1)

    async def write(self) -> None:
        """Pass on as much as the faults and the receiver allow, and the end of the stream after the last byte."""
        loop = asyncio.get_running_loop()
        while not self._finished:
            units, until = self._permitted(loop.time())
            if not units:
                await self._sleep(until)
            elif self._pending:
                await self._send(bytes(self._pending[:units]))
            else:
                self.finish()
            for armed in self.armed:
                if armed.active and units:
                    armed.effect.spend(units, loop.time())

    def finish(self) -> None:
        """Tell the receiver that nothing more will come. What still comes is read and dropped, so that the sender is
        never blocked."""
        self._finished = True
        self._pending.clear()
        self._room.set()
        self._news.set()
        with suppress(OSError):  # the receiver may be gone already
            self.sink.shutdown(socket.SHUT_WR)

    async def _send(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self.sink, data)
        except OSError:
            if not self._finished:  # by the other flow
                raise
        del self._pending[: len(data)]
        self._room.set()
        self._count_bytes(len(data))

    async def _sleep(self, until: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if until == math.inf else until):
                await self._news.wait()
        self._news.clear()

    def _arrive(self, units: int) -> None:
        for armed in self.armed:
            if armed.active:
                armed.effect.arrive(units, asyncio.get_running_loop().time(), self._connection.chance)
        self._news.set()

    def _permitted(self, now: float) -> tuple[int, float]:
        """Bytes (or the end of the stream, one unit) that may pass now, and when to ask again if none may. A fault may
        end the connection instead."""
        self.stalled = False
        waiting = len(self._pending) + self.source_ended
        units: float = min(len(self._pending) or waiting, _CHUNK)
        blocked_until = now if waiting else math.inf
        for armed in self.armed if waiting else ():
            ahead = armed.rule.after_bytes - self._forwarded
            if ahead > 0:
                units = min(units, ahead)
                continue
            if not armed.active:
                armed.active = True
                armed.effect.arrive(waiting, now, self._connection.chance)
            allowed = armed.effect.allowance(now)
            if allowed != math.inf:
                self._count(armed)
            if allowed <= 0:
                blocked_until = max(blocked_until, armed.effect.wakes_at())
            units = min(units, allowed)
        if units <= 0:
            self.stalled = bool(waiting) and blocked_until == math.inf
            return 0, blocked_until
        ending = next((armed for armed in self.armed if armed.active and armed.rule.fault in _ENDINGS), None)
        if ending is None:
            return int(units), now
        self._count(ending)
        self._connection.strike(ending.rule.fault, self)
        return 0, math.inf

    def _count(self, armed: _Armed) -> None:
        if not armed.counted:
            armed.counted = True
            self._connection.relay.counts[armed.rule.fault] += 1

    def _count_bytes(self, count: int) -> None:
        self._forwarded += count
        self._connection.relay.counts[f"bytes_{self.direction}"] += count


class Connection:
    """A client's connection, the proxy's connection to the server, and a flow each way."""

    def __init__(self, relay: Relay, client: socket.socket, chance: random.Random) -> None:
        self.relay = relay
        self.chance = chance
        self.flows = Flow(self, "upstream"), Flow(self, "downstream")
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client = client
        self._reset = False
        self._task = relay.tasks.create_task(self._run())
        self._task.add_done_callback(lambda task: relay.connections.discard(self))

    def arm(self, rule: Rule) -> None:
        for flow in self.flows:
            if flow.direction == rule.direction:
                flow.armed.append(_Armed(rule, rule.effect()))

    def strike(self, fault: str, flow: Flow) -> None:
        """Do one of the faults that end something."""
        if fault == "reset":
            self.close(reset=True)
        elif fault == "half_close":
            flow.finish()
        else:  # FIN both ways. Closing with unread bytes would send an RST, so they are read and dropped first.
            for each in self.flows:
                each.finish()
            self.close_after(_CUT_LINGER_SECONDS)

    def close(self, *, reset: bool = False) -> None:
        """Close both ends, with a FIN or an RST."""
        self._reset = self._reset or reset
        self._task.cancel()

    def close_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.close)

    async def _run(self) -> None:
        with ExitStack() as ends:
            ends.callback(self._close_end, self._client)
            server = await self._connect(ends)
            if server is None:  # the client's connection is already accepted and cannot be refused
                self._reset = True
                return
            for flow, ways in zip(self.flows, ((self._client, server), (server, self._client)), strict=True):
                flow.source, flow.sink = ways
            try:
                async with asyncio.TaskGroup() as tasks:
                    for flow, other in zip(self.flows, reversed(self.flows), strict=True):
                        tasks.create_task(self._read(flow, other))
                        tasks.create_task(flow.write())
            except* OSError:  # when one end breaks, the other is reset too
                self._reset = True

    async def _read(self, flow: Flow, other: Flow) -> None:
        await flow.read()
        if other.stalled:
            # The stalled client has closed its side and may be gone: nothing else would close this connection.
            self.close_after(_ABANDONED_SECONDS)

    async def _connect(self, ends: ExitStack) -> socket.socket | None:
        """Try the server's addresses in turn; None if none of them answers."""
        error = OSError("no address")
        for family, address in self.relay.upstream:
            server = socket.socket(family, socket.SOCK_STREAM)
            ends.callback(self._close_end, server)
            server.setblocking(False)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await asyncio.get_running_loop().sock_connect(server, address)
                return server
            except OSError as failure:
                error = failure
        self.relay.report_unreachable(error)
        return None

    def _close_end(self, end: socket.socket) -> None:
        if self._reset:
            close_with_reset(end)
        end.close()


def close_with_reset(end: socket.socket) -> None:
    """Close *end* so that its peer gets a TCP RST, not a FIN."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    end.close()
