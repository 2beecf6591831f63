"""The proxy's faults and rules as functions of numbers: no socket, no clock."""

from __future__ import annotations

import math
import random

import pytest

from pytest_rlstability.kits.proxy.faults import FAULTS, Draw, Effect, Rule, make_effect
from pytest_rlstability.kits.proxy.handle import ProxyStats


def passage_times(effect: Effect, units: int, until: float) -> list[tuple[float, int]]:
    """When how many of *units*, all there at time 0, pass the effect: what the relay would do, with a clock of ours."""
    effect.arrive(units, 0.0, random.Random(0))
    now, passed = 0.0, []
    while units and now <= until:
        allowed = effect.allowance(now)
        if allowed > 0:
            passing = int(min(units, allowed))
            effect.spend(passing, now)
            passed.append((now, passing))
            units -= passing
        else:
            now = effect.wakes_at()
    return passed


def test_stall_holds_for_ever_and_says_so() -> None:
    stall = make_effect("stall", {})
    assert stall.allowance(0.0) == stall.allowance(1e9) == 0
    assert stall.wakes_at() == math.inf


def test_stall_with_seconds_ends() -> None:
    assert passage_times(make_effect("stall", {"seconds": "2s"}), 10, until=9) == [(2.0, 10)]


def test_delay_keeps_the_order_whatever_the_jitter() -> None:
    delay, chance = make_effect("delay", {"seconds": 1.0, "jitter": 0.9}), random.Random(7)
    for arrival in range(50):
        delay.arrive(1, arrival * 0.01, chance)
    dues = []
    for _ in range(50):
        dues.append(delay.wakes_at())
        delay.spend(1, dues[-1])
    assert dues == sorted(dues)
    assert all(0.1 <= due - arrival * 0.01 <= 1.9 + 0.5 for arrival, due in enumerate(dues))
    assert len(set(dues)) > 3, "jitter made no difference"


def test_delay_does_not_slow_down_what_is_under_way_together() -> None:
    delay, chance = make_effect("delay", {"seconds": 1.0}), random.Random(0)
    for arrival in (0.0, 0.5):
        delay.arrive(100, arrival, chance)
    assert delay.allowance(0.99) == 0
    assert delay.allowance(1.0) == 100
    assert delay.allowance(1.5) == 200


def test_throttle_keeps_its_rate() -> None:
    passed = passage_times(make_effect("throttle", {"bytes_per_second": 1000}), 5000, until=60)
    assert sum(count for _, count in passed) == 5000
    assert passed[-1][0] == pytest.approx(5.0, abs=0.05)


def test_throttle_never_bursts_after_a_pause() -> None:
    throttle = make_effect("throttle", {"bytes_per_second": 1000})
    throttle.spend(20, 0.0)
    passed, now = 0, 100.0
    while throttle.allowance(now) > 0:
        throttle.spend(20, now)
        passed += 20
    assert passed <= 40


def test_drip_passes_its_size_each_time() -> None:
    passed = passage_times(make_effect("drip", {"size": 2, "seconds": 0.5}), 7, until=60)
    assert passed == [(0.0, 2), (0.5, 2), (1.0, 2), (1.5, 1)]


def test_every_strikes_each_nth() -> None:
    draw = Draw(Rule("reset", every=3), seed="0")
    assert [draw.next() for _ in range(7)] == [False, False, True, False, False, True, False]


def test_rate_is_the_seeds_and_near_its_probability() -> None:
    def decisions(seed: str) -> list[bool]:
        draw = Draw(Rule("reset", rate=0.3), seed)
        return [draw.next() for _ in range(2000)]

    assert decisions("1") == decisions("1")
    assert decisions("1") != decisions("2")
    assert 0.25 < sum(decisions("1")) / 2000 < 0.35


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"fault": "rest"}, r"unknown fault 'rest'; accepted: cut, delay, .*throttle"),
        ({"fault": "delay", "how": {"secs": 1}}, r"fault 'delay' takes seconds, jitter, not secs"),
        ({"fault": "reset", "how": {"seconds": 1}}, r"fault 'reset' takes no arguments of its own, not seconds"),
        ({"fault": "delay", "how": {"seconds": "soon"}}, r"'soon' is not a duration"),
        ({"fault": "throttle", "how": {"bytes_per_second": 0}}, r"bytes_per_second must be at least 1"),
        ({"fault": "drip", "how": {"size": 0}}, r"size must be at least 1"),
        ({"fault": "reset", "every": 2, "rate": 0.5}, r"every=N or rate=P, not both"),
        ({"fault": "reset", "every": 0}, r"every must be a whole number of connections from 1, not 0"),
        ({"fault": "reset", "every": 1.5}, r"every must be a whole number"),
        ({"fault": "reset", "rate": 1.5}, r"rate must be a probability between 0 and 1, not 1.5"),
        ({"fault": "reset", "after_bytes": -1}, r"-1 is not a size"),
        ({"fault": "reset", "direction": "down"}, r"direction must be downstream or upstream, not 'down'"),
        ({"fault": "refuse", "after_bytes": 5}, r"'refuse' strikes before the first byte"),
    ],
)
def test_a_wrong_rule_says_what_is_accepted(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**arguments)  # type: ignore[arg-type]


def test_stats_answer_by_key_and_by_attribute() -> None:
    stats = ProxyStats({"connections": 3, "bytes_upstream": 1, "bytes_downstream": 2, "cut": 4})
    assert (stats.connections, stats["bytes"], stats.cut, stats["reset"]) == (3, 3, 4, 0)
    assert stats.faults == {"cut": 4}
    assert set(FAULTS) <= set(stats)
    with pytest.raises(AttributeError, match="no such count: rest"):
        _ = stats.rest
