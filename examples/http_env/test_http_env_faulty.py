"""Each of these fails: this is how a client that trusts the network dies, and what a careless server does to others.

pytest --rl-stability examples/http_env/test_http_env_faulty.py
"""

from __future__ import annotations

import pytest
from checks import assert_every_step_applied_once, assert_game_goes_on
from client_env import NaiveEnv, RetryingEnv, ask_without_reading
from game_server import CarelessHandler, GameServer

from pytest_rlstability.integrations import HeartbeatWrapper


def test_a_reset_in_the_middle_of_an_image(server: GameServer, chaos_proxy) -> None:
    """Dies with 'Connection reset by peer', some connections later."""
    proxy = chaos_proxy(server.host, server.port)
    proxy.add("reset", every=4, after_bytes=100_000)
    env = NaiveEnv(proxy.host, proxy.port)
    env.reset()
    for _ in range(20):
        env.step(1)
    assert_every_step_applied_once(server, env)


def test_every_step_is_applied_once(server: GameServer, chaos_proxy) -> None:
    """Survives, and has played more steps than it knows of."""
    proxy = chaos_proxy(server.host, server.port)
    proxy.add("reset", every=4, after_bytes=100_000)
    env = RetryingEnv(proxy.host, proxy.port)
    env.reset()
    for _ in range(20):
        env.step(1)
    assert_every_step_applied_once(server, env)


@pytest.mark.rl_no_stall(after="3s")
@pytest.mark.timeout(30)
def test_a_server_that_falls_silent(server: GameServer, chaos_proxy, rl_heartbeat) -> None:
    """Waits forever: no timeout was asked for. The game loop runs on, so that only missing heartbeats show it."""
    proxy = chaos_proxy(server.host, server.port)
    env = HeartbeatWrapper(NaiveEnv(proxy.host, proxy.port), rl_heartbeat)
    env.reset()
    proxy.add("stall", after_bytes=100_000)
    env.step(1)


def test_one_stalled_client_does_not_stop_the_game(chaos_proxy) -> None:
    """The handler holds the game's lock while it sends, so that the loop stands still with it."""
    with GameServer(CarelessHandler) as server:
        proxy = chaos_proxy(server.host, server.port)
        proxy.add("stall", after_bytes=100_000)
        with ask_without_reading(proxy.host, proxy.port):
            assert_game_goes_on(server)
