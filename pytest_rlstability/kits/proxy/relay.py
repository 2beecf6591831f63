"""The relay: one thread, one selector, every connection of the proxy. While nothing happens it sleeps without a
timeout, so that it uses no CPU and does not look like progress to the stall watchdog."""

from __future__ import annotations

import math
import os
import random
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from pytest_rlstability.kits.proxy import HOST
from pytest_rlstability.kits.proxy.connection import Address, Connection, close_with_reset
from pytest_rlstability.kits.proxy.faults import Draw, Rule


class Relay:
    """Accepts connections, applies the rules, counts. ``run()`` returns after a handler has called ``stop()``."""

    def __init__(self, upstream: Sequence[Address], seed: object) -> None:
        self.upstream = upstream
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._draws: list[Draw] = []
        self._rules_added = 0
        self._connections: set[Connection] = set()
        self._timers: dict[object, tuple[float, Callable[[], None]]] = {}
        self._selector = selectors.DefaultSelector()
        self._running = True
        # Keeps the port reserved while ``refuse`` has the listener closed.
        self._placeholder = _bound_socket(0)
        self.port: int = self._placeholder.getsockname()[1]
        self._listener: socket.socket | None = None
        self._listen()

    def add(self, rule: Rule) -> None:
        """Apply *rule* to new connections, and to those already open if it names neither *every* nor *rate*."""
        self._rules_added += 1
        if rule.fault == "refuse" and rule.strikes_all:
            if self._listener is not None:
                self._accept(selectors.EVENT_READ)
                self._stop_listening()
                self.counts["refuse"] += 1
            return
        self._draws.append(Draw(rule, f"{self._seed}:{self._rules_added}"))
        if rule.strikes_all:
            for connection in self._connections:
                connection.arm(rule)

    def clear(self) -> None:
        """Remove every rule; bytes that a fault holds back pass on."""
        self._draws.clear()
        for connection in list(self._connections):
            connection.disarm()
        if self._listener is None:
            self._listen()

    def run(self) -> None:
        while self._running:
            ready = self._selector.select(self._timeout())
            # Accept first: counts that the test requests must include every connection made before the request.
            ready.sort(key=lambda item: item[0].fileobj is not self._listener)
            for key, events in ready:
                key.data(events)
            self._run_timers()

    def stop(self) -> None:
        self._running = False

    def close(self) -> None:
        for connection in list(self._connections):
            connection.close()
        if self._listener is not None:
            self._stop_listening()
        self._placeholder.close()
        self._selector.close()

    def watch(self, end: socket.socket | int, events: int, handler: Callable[[int], None] | None = None) -> None:
        """Call *handler* whenever one of *events* is ready on *end*; no events: stop watching it."""
        current = self._selector.get_map().get(end)
        if not events:
            if current is not None:
                self._selector.unregister(end)
        elif current is None:
            self._selector.register(end, events, handler)
        elif current.events != events or current.data != handler:
            self._selector.modify(end, events, handler)

    def call_at(self, when: float, caller: object, action: Callable[[], None]) -> None:
        """Call *action* at the time *when*, in place of what *caller* asked for before."""
        self._timers[caller] = (when, action)

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        for caller in (connection, *connection.flows):
            self._timers.pop(caller, None)

    def report_unreachable(self, error: int) -> None:
        self.counts["unreachable"] += 1
        if self.counts["unreachable"] == 1:
            host, port = self.upstream[-1][1][:2]
            reason = f"[Errno {error}] {os.strerror(error)}"
            print(f"chaos_proxy: cannot reach the server at {host}:{port}: {reason}", file=sys.stderr, flush=True)

    def _listen(self) -> None:
        self._listener = _bound_socket(self.port)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self.watch(self._listener, selectors.EVENT_READ, self._accept)

    def _stop_listening(self) -> None:
        assert self._listener is not None
        self.watch(self._listener, 0)
        self._listener.close()
        self._listener = None

    def _accept(self, events: int) -> None:
        while self._listener is not None:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # no client is waiting, or it gave up before its turn
            self.counts["connections"] += 1
            struck = [draw.rule for draw in self._draws if draw.next()]
            if any(rule.fault == "refuse" for rule in struck):
                self.counts["refuse"] += 1
                close_with_reset(client)
                continue
            chance = random.Random(f"{self._seed}:connection:{self.counts['connections']}")
            connection = Connection(self, client, struck, chance)
            if not connection.closed:
                self._connections.add(connection)

    def _timeout(self) -> float | None:
        earliest = min((when for when, _ in self._timers.values()), default=math.inf)
        return None if earliest == math.inf else max(0.0, earliest - time.monotonic())

    def _run_timers(self) -> None:
        now = time.monotonic()
        for caller, (when, action) in list(self._timers.items()):
            if when <= now and caller in self._timers:
                del self._timers[caller]
                action()


def _bound_socket(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound
