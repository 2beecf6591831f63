"""The same network, and nothing is lost: a session, deadlines, steps with a number, a lock that is never held to send.

pytest --rl-stability examples/http_env/test_http_env_fixed.py
"""

from __future__ import annotations

import pytest
from checks import assert_answers_within, assert_every_step_applied_once, assert_game_goes_on, open_descriptors
from client_env import HardenedEnv, ask_without_reading
from game_server import GameServer

from pytest_rlstability.integrations import HeartbeatWrapper

FAULTS = {
    "reset": {"after_bytes": 400_000},
    "cut": {"after_bytes": 400_000},
    "half_close": {"after_bytes": 400_000},
    "stall": {"after_bytes": 400_000},
    "drip": {"after_bytes": 400_000, "size": 100, "seconds": 0.01},
    "delay": {"seconds": 0.01, "jitter": 0.01},
    "throttle": {"bytes_per_second": "5MB"},
    "refuse": {"every": 2},
}


@pytest.mark.rl_no_stall(after="20s")
@pytest.mark.parametrize("fault", FAULTS)
def test_plays_on_through(fault: str, server: GameServer, chaos_proxy, rl_heartbeat) -> None:
    proxy = chaos_proxy(server.host, server.port, seed=1)
    client = HardenedEnv(proxy.host, proxy.port, attempt_seconds=0.4)
    env = HeartbeatWrapper(client, rl_heartbeat)
    proxy.add(fault, **FAULTS[fault])
    env.reset()
    for _ in range(6):
        observation = env.step(1)[0]
        assert (observation == observation[0, 0]).all()
    if fault == "refuse":
        client.close()  # and connect once more: the second connection is the one refused
        env.step(1)
    env.close()
    assert proxy.stats[fault] > 0, "the fault never happened"
    assert_every_step_applied_once(server, client)
    assert_answers_within(client, seconds=20)


def test_a_thousand_resets_leave_no_descriptor(server: GameServer, chaos_proxy) -> None:
    proxy = chaos_proxy(server.host, server.port)
    env = HardenedEnv(proxy.host, proxy.port)
    env.reset()
    before = open_descriptors()
    proxy.add("reset", after_bytes=400_000)
    while proxy.stats.reset < 1000:
        env.step(1)
    proxy.clear()
    env.step(1)
    assert_every_step_applied_once(server, env)
    assert open_descriptors() <= before + 1  # a handler may still be on its way out
    env.close()


def test_one_stalled_client_does_not_stop_the_game(server: GameServer, chaos_proxy) -> None:
    proxy = chaos_proxy(server.host, server.port)
    proxy.add("stall", after_bytes=100_000)
    with ask_without_reading(proxy.host, proxy.port):
        assert_game_goes_on(server)
