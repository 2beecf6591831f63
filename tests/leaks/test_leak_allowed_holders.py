"""What a library is known to keep grows too, and is not named as the holder of what the user keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.leaks.known_leaks import KnownLeak, MonitorEpisodes
from pytest_rlstability.leaks.survivors import Window, watch_window

MONITORS: list[object] = []
USERS: list[object] = []


class KnownList(KnownLeak):
    def keeps(self, container: object) -> bool:
        return container is MONITORS


def watch(known_leaks: list[KnownLeak]) -> list[object]:
    """The containers that are seen to grow in laps that there is no time to trace."""
    check: Any = SimpleNamespace(
        seconds_per_lap=1.0,
        seconds_left=-1.0,
        settle=lambda *, whole=False: None,
        allows=lambda container: any(known.keeps(container) for known in known_leaks),
    )
    work = watch_window(check, 10, 0.0)
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
def test_the_container_of_a_known_leak_is_not_a_suspect() -> None:
    assert any(container is MONITORS for container in watch([])), "which would be named otherwise"
    suspects = watch([KnownList()])
    assert len(suspects) == 1
    assert suspects[0] is USERS


def test_a_monitors_lists_are_its_own() -> None:
    monitor = SimpleNamespace(episode_returns=[], episode_lengths=[], episode_times=[], rewards=[])
    known = MonitorEpisodes([monitor])
    assert all(known.keeps(kept) for kept in vars(monitor).values())
    assert not known.keeps([])


def test_a_monitors_lists_are_mallocs_only_when_they_are_long() -> None:
    monitor = SimpleNamespace(
        episode_returns=[0.0] * 64, episode_lengths=[1] * 64, episode_times=[0.0] * 64, rewards=[0.0] * 64
    )
    known = MonitorEpisodes([monitor])
    assert known.heap_bytes() == 0, "Python's own allocator has them"
    for kept in vars(monitor).values():
        kept.extend([0] * 1000)
    assert 4 * 8 * 1064 <= known.heap_bytes() <= 4 * 8 * 1064 * 1.25
