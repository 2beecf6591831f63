"""What must hold between a client and its server, whatever the network does."""

from __future__ import annotations

import os
import time

from client_env import HardenedEnv, NaiveEnv
from game_server import GameServer


def assert_every_step_applied_once(server: GameServer, env: NaiveEnv) -> None:
    """No step lost, none applied twice: the server's count against the client's."""
    with server.game.lock:
        applied = server.game.steps
    assert applied == env.steps, f"the client made {env.steps} steps, the server applied {applied}"


def assert_answers_within(env: HardenedEnv, seconds: float) -> None:
    """No step took longer than *seconds*, faults and retries included."""
    assert env.latencies, "nothing was played"
    assert max(env.latencies) <= seconds, f"the slowest step took {max(env.latencies):.2f} s"


def assert_game_goes_on(server: GameServer) -> None:
    """For two seconds, the game loop is never long without a tick."""
    for _ in range(20):
        ticks, give_up = server.game.ticks, time.monotonic() + 2
        while server.game.ticks == ticks:
            assert time.monotonic() < give_up, "the game loop stands still"
            time.sleep(0.01)
        time.sleep(0.1)


def open_descriptors() -> int:
    """How many files and sockets this process has open, the server's included."""
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))
