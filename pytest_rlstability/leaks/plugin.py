"""``rl_laps`` and ``rl_probe``, and the hooks that judge what they measured."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_rlstability.leaks.laps import Laps
    from pytest_rlstability.leaks.probes import Probes


@pytest.fixture
def rl_probe(request: pytest.FixtureRequest) -> Probes:
    """Watch a counter of your own: rl_probe("food", lambda: len(env.food), limit=50, per_minute=5, per_lap=0)."""
    from pytest_rlstability.leaks.probes import probes_of

    return probes_of(request.node)


_laps = pytest.StashKey["Laps"]()


@pytest.fixture
def rl_laps(request: pytest.FixtureRequest) -> Iterator[Laps]:
    """Repeat what is tested: for lap in rl_laps: ... (as many laps as the check needs; 3 without --rl-stability)."""
    from pytest_rlstability.leaks.laps import Laps

    laps = request.node.stash[_laps] = Laps(request.node)
    yield laps
    laps.close()
    del request.node.stash[_laps]


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a leak test or a soak without ``rl_laps``, in the process that the engine gave it."""
    from pytest_rlstability.config.options import settings_of

    settings = settings_of(item.config)
    marked = any(item.get_closest_marker(name) for name in ("rl_no_leak", "rl_soak"))
    if not settings.enabled or not (marked or settings.leaks is not None):
        return None
    from pytest_rlstability.leaks.settings import is_whole

    if not is_whole(item):
        return None
    from pytest_rlstability.leaks.repeat import Repetition

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in Repetition(item).run(nextitem):
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
