"""What a library is known to keep grows too, and is not named as the holder of what the user keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.leaks.allowances import Allowance, MonitorEpisodes
from pytest_rlstability.leaks.attribution import Window, _watch_window

MONITORS: list[object] = []
USERS: list[object] = []


class KnownList(Allowance):
    def keeps(self, container: object) -> bool:
        return container is MONITORS


def watch(allowances: list[Allowance]) -> list[object]:
    """The containers that are seen to grow in laps that there is no time to trace."""
    check: Any = SimpleNamespace(lap_seconds=1.0, laps=1, seconds_left=-1.0, allowances=allowances)
    work = _watch_window(check, 10)
    window: Window | None = None
    while window is None:
        try:
            laps = next(work)
        except StopIteration as stop:
            window = stop.value
        else:
            for _ in range(laps):
                MONITORS.extend([object(), object()])
                USERS.append(object())
    return [grower.container for grower in window.grown if grower.container is MONITORS or grower.container is USERS]


@pytest.fixture(autouse=True)
def empty() -> None:
    MONITORS.clear()
    USERS.clear()


@pytest.mark.slow
def test_the_container_of_an_allowance_is_no_suspect() -> None:
    assert any(container is MONITORS for container in watch([])), "which would be named otherwise"
    suspects = watch([KnownList()])
    assert len(suspects) == 1
    assert suspects[0] is USERS


def test_a_monitors_three_lists_are_its_own() -> None:
    monitor = SimpleNamespace(episode_returns=[], episode_lengths=[], episode_times=[])
    allowance = MonitorEpisodes([monitor])
    assert all(allowance.keeps(kept) for kept in vars(monitor).values())
    assert not allowance.keeps([])


def test_a_monitors_lists_are_mallocs_only_when_they_are_long() -> None:
    monitor = SimpleNamespace(episode_returns=[0.0] * 64, episode_lengths=[1] * 64, episode_times=[0.0] * 64)
    allowance = MonitorEpisodes([monitor])
    assert allowance.heap_bytes() == 0, "Python's own allocator has them"
    for kept in vars(monitor).values():
        kept.extend([0] * 1000)
    assert 3 * 8 * 1064 <= allowance.heap_bytes() <= 3 * 8 * 1064 * 1.25
