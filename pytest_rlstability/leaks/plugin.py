"""``rl_laps`` and ``rl_probe``, and the hooks that judge what they measured."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_rlstability.model.channel import channel_of

if TYPE_CHECKING:
    from pytest_rlstability.leaks.laps import Laps
    from pytest_rlstability.leaks.probes import ProbeBook


class Probe:
    """Call it with a name, a function without arguments that returns a number, and limits.

    ``rl_probe("food_sources", lambda: len(env.food), limit=50, per_minute=5, per_lap=0)``: never above 50, at most
    5 more each minute, and no growth that goes on from lap to lap.
    """

    def __init__(self, book: ProbeBook, on: bool) -> None:
        self._book = book
        self._on = on

    def __call__(
        self,
        name: str,
        read: Callable[[], object],
        *,
        limit: float | None = None,
        per_minute: float | None = None,
        per_lap: float | None = None,
    ) -> None:
        from pytest_rlstability.leaks.probes import Limits

        if not callable(read):
            raise TypeError(f"rl_probe {name!r} needs a function that gives a number, not {read!r}")
        self._book.add(name, read, Limits(limit, per_minute, per_lap) if self._on else Limits())


@pytest.fixture
def rl_probe(request: pytest.FixtureRequest) -> Probe:
    """Watch a counter of your own: rl_probe("food", lambda: len(env.food), limit=50, per_minute=5, per_lap=0)."""
    from pytest_rlstability.config.options import settings_of
    from pytest_rlstability.leaks.probes import probes_of

    return Probe(probes_of(request.node), settings_of(request.config).enabled)


_laps = pytest.StashKey["Laps"]()


@pytest.fixture
def rl_laps(request: pytest.FixtureRequest) -> Iterator[Laps]:
    """Laps to repeat what is tested: for lap in rl_laps: ... (as many as the check needs; 3 when checks are off)."""
    from pytest_rlstability.leaks.laps import Laps
    from pytest_rlstability.leaks.probes import probes_of
    from pytest_rlstability.leaks.settings import leak_settings

    settings = leak_settings(request.config, request.node)
    laps = Laps(request.node, settings, channel_of(request.config), probes_of(request.node))
    request.node.stash[_laps] = laps
    yield laps
    laps.close()
    del request.node.stash[_laps]


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a leak test or a soak without ``rl_laps``, in the process that the engine gave it."""
    if not any(item.get_closest_marker(name) for name in ("rl_no_leak", "rl_soak")):
        return None
    from pytest_rlstability.config.options import settings_of
    from pytest_rlstability.leaks.settings import is_whole

    if not settings_of(item.config).enabled or not is_whole(item):
        return None
    from pytest_rlstability.leaks import repeat

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in repeat.run(item, nextitem):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Judge what can be judged only after the test function."""
    laps = item.stash.get(_laps, None)
    try:
        result = yield
    except Exception as error:
        if laps is not None:
            laps.left(error)
        raise
    if laps is not None:
        laps.left(None)
    if "rl_probe" in getattr(item, "fixturenames", ()):
        from pytest_rlstability.leaks.probes import probes_of

        probes_of(item).judge_at_end()
    return result
