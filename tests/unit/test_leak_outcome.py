"""Growth that nobody was found to hold is looked at again before it is called a leak."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.leaks.check import Watched
from pytest_rlstability.leaks.outcome import _acquit_stopped
from pytest_rlstability.verdicts.leak import Judgement, Rule

LAPS = 4000


def states_after(
    course: Callable[[int], float], *, seconds_left: float = 100.0, name: str = "malloc", measured: int = LAPS
) -> list[str]:
    """What becomes of a signal that was convicted after so many laps and then goes on as *course* says."""
    signal: Any = SimpleNamespace(name=name)
    entry = Watched(signal, Rule(), judgement=Judgement("leak", True, per_lap=64.0))
    laps = [LAPS]
    check: Any = SimpleNamespace(
        measured_laps=measured,
        seconds_left=seconds_left,
        seconds_per_lap=0.001,
        leaks=lambda: [entry],
        read=lambda watched: [course(laps[0]) for _ in watched],
    )
    for count in _acquit_stopped(check):
        laps[0] += count
    return [entry.judgement.state]


def test_what_stopped_meanwhile_is_bounded() -> None:
    assert states_after(lambda lap: 64.0 * LAPS) == ["bounded"]


def test_what_goes_on_is_a_leak() -> None:
    assert states_after(lambda lap: 64.0 * lap) == ["leak"]


def test_what_goes_on_under_spikes_is_a_leak() -> None:
    assert states_after(lambda lap: 64.0 * lap + (1e6 if lap % 3 == 0 else 0)) == ["leak"]


@pytest.mark.parametrize("seconds_left", [0.1, -3.0])
def test_without_time_the_verdict_stands(seconds_left: float) -> None:
    assert states_after(lambda lap: 0.0, seconds_left=seconds_left) == ["leak"]


@pytest.mark.parametrize(
    ("name", "measured", "state"), [("malloc", 80, "undecided"), ("malloc", 400, "leak"), ("python", 80, "leak")]
)
def test_only_malloc_over_few_laps_is_given_the_benefit_of_the_doubt(name: str, measured: int, state: str) -> None:
    assert states_after(lambda lap: 64.0 * lap, seconds_left=0.0, name=name, measured=measured) == [state]
