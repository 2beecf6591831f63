"""Three clients of the game server: one that dies, one that plays twice, one that holds."""

from __future__ import annotations

import socket
import time
import uuid
from typing import Any

import gymnasium
import numpy
import requests
from game_server import FRAME_BYTES, FRAME_SHAPE


class ServerLostError(Exception):
    """The server did not give a whole answer before the deadline."""


class NaiveEnv(gymnasium.Env):
    """A request a step, and trust in the network."""

    observation_space = gymnasium.spaces.Box(0, 255, FRAME_SHAPE, numpy.uint8)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, host: str, port: int) -> None:
        self.url = f"http://{host}:{port}"
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.call("/reset", {}), {}

    def step(self, action: Any) -> Any:
        observation = self.call("/step", {"action": int(action)})
        self.steps += 1
        return observation, 1.0, False, False, {}

    def call(self, path: str, request: dict[str, Any]) -> Any:
        answer = requests.post(self.url + path, json=request)
        return numpy.frombuffer(answer.content, numpy.uint8).reshape(FRAME_SHAPE)


class RetryingEnv(NaiveEnv):
    """Tries again when the connection broke. The server may have played the step already: then it plays it twice."""

    def call(self, path: str, request: dict[str, Any]) -> Any:
        while True:
            try:
                return super().call(path, request)
            except requests.exceptions.RequestException:
                time.sleep(0.01)


class HardenedEnv(NaiveEnv):
    """One session, a deadline for every answer, and steps with a number, so that repeating one is harmless."""

    def __init__(self, host: str, port: int, *, attempt_seconds: float = 1.0, deadline_seconds: float = 20.0) -> None:
        super().__init__(host, port)
        self.latencies: list[float] = []
        self._client = uuid.uuid4().hex
        self._session = requests.Session()
        self._attempt_seconds = attempt_seconds
        self._deadline_seconds = deadline_seconds

    def call(self, path: str, request: dict[str, Any]) -> Any:
        request = {**request, "client": self._client, "id": self.steps}
        began = time.monotonic()
        while True:
            try:
                frame = self._attempt(path, request)
                break
            except (requests.exceptions.RequestException, ServerLostError) as error:
                if time.monotonic() - began > self._deadline_seconds:
                    raise ServerLostError(f"no whole answer from {self.url} in {self._deadline_seconds} s") from error
        self.latencies.append(time.monotonic() - began)
        return numpy.frombuffer(frame, numpy.uint8).reshape(FRAME_SHAPE)

    def close(self) -> None:
        self._session.close()

    def _attempt(self, path: str, request: dict[str, Any]) -> bytes:
        """A timeout of requests bounds one wait for bytes; a server that drips needs a bound on the whole answer."""
        give_up = time.monotonic() + self._attempt_seconds
        frame = bytearray()
        with self._session.post(self.url + path, json=request, timeout=self._attempt_seconds, stream=True) as answer:
            answer.raise_for_status()
            while len(frame) < FRAME_BYTES:
                try:
                    part = answer.raw.read1(FRAME_BYTES - len(frame))
                except Exception as error:  # urllib3's own, which requests only translates where it reads itself
                    raise ServerLostError(f"the answer broke off after {len(frame)} bytes") from error
                if not part or time.monotonic() > give_up:
                    raise ServerLostError(f"{len(frame)} bytes of {FRAME_BYTES} came")
                frame += part
            answer.raw.read()  # the end of the answer, without which the connection cannot be used again
        return bytes(frame)


def ask_without_reading(host: str, port: int, requests_to_send: int = 100) -> socket.socket:
    """A client that asks for more images than any buffer on the way can hold, and reads none of them."""
    request = b"POST /reset HTTP/1.1\r\nHost: game\r\nContent-Length: 2\r\n\r\n{}"
    connection = socket.create_connection((host, port))
    connection.sendall(request * requests_to_send)
    return connection
