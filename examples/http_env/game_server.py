"""A small game server: 262 KB images over HTTP, and one lock between the game loop and the request handlers.

Standard library only. ``POST /step`` with ``{"action": 1}`` plays one step and answers with the image. With an ``id``
and a ``client`` in it, the same request may come again: the game has then been played already, and only the answer is
sent again.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FRAME_SHAPE = (512, 512)
FRAME_BYTES = FRAME_SHAPE[0] * FRAME_SHAPE[1]
TICK_SECONDS = 0.005


class Game:
    """The world. ``lock`` guards everything: the loop moves it, the handlers play in it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ticks = 0
        self.steps = 0
        self._answered: dict[str, tuple[int, bytes]] = {}

    def tick(self) -> None:
        self.ticks += 1

    def reset(self) -> bytes:
        return self._frame(0)

    def step(self, action: int, client: str | None, number: int) -> bytes:
        last_number, last_frame = self._answered.get(client or "", (-1, b""))
        if client is not None and number == last_number:
            return last_frame
        self.steps += 1
        frame = self._frame(action)
        if client is not None:
            self._answered[client] = number, frame  # a client waits for its answer: the last one is all it can repeat
        return frame

    def _frame(self, action: int) -> bytes:
        return bytes([(self.steps + action) % 256]) * FRAME_BYTES


class Handler(BaseHTTPRequestHandler):
    """Takes the lock to play, and lets go of it before it sends: the network may take forever."""

    protocol_version = "HTTP/1.1"
    game: Game

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.game.lock:
            frame = self.play(request)
        self.answer(frame)

    def play(self, request: dict[str, Any]) -> bytes:
        if self.path == "/reset":
            return self.game.reset()
        return self.game.step(request["action"], request.get("client"), request.get("id", 0))

    def answer(self, frame: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(frame)))
        self.end_headers()
        self.wfile.write(frame)

    def log_message(self, format: str, *args: object) -> None:
        pass


class CarelessHandler(Handler):
    """Sends while it holds the lock: one client that does not read stops the game for everybody."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.game.lock:
            self.answer(self.play(request))


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that is gone is no event for a game server


class GameServer:
    """The game, its loop and its HTTP server, each in a thread: ``with GameServer() as server: ...``"""

    def __init__(self, handler: type[Handler] = Handler) -> None:
        self.game = Game()
        bound = type("BoundHandler", (handler,), {"game": self.game})
        self._http = _QuietServer(("127.0.0.1", 0), bound)
        self.host, self.port = "127.0.0.1", self._http.server_port
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._http.serve_forever, args=(0.05,), name="http"),
            threading.Thread(target=self._loop, name="game loop", daemon=True),
        ]

    def __enter__(self) -> GameServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._http.shutdown()
        self._http.server_close()
        for thread in self._threads:
            thread.join(timeout=1)

    def _loop(self) -> None:
        while not self._over.wait(TICK_SECONDS):
            with self.game.lock:
                self.game.tick()
