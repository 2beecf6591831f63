"""The command that runs one test again, alone and as it ran."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_rlstability.config.options import Settings
from pytest_rlstability.config.plan import soak_of, sweep_budget
from pytest_rlstability.model.shells import join_command
from pytest_rlstability.osinfo.shell import own_python, own_shell

_LIMITS = ("memory", "limit", "stall-after", "leak-budget")


def reproduce_command(
    item: pytest.Item | pytest.Collector, settings: Settings, *more: str, before: Sequence[pytest.Item] = ()
) -> str:
    """``pytest --rl-stability --rl-seed=7 'tests/test_env.py::test_step[fast]'``, to be typed where pytest was. The
    tests *before* it run first, in the same process."""
    words = [own_python(), "-m", "pytest", "--rl-stability", f"--rl-seed={settings.seed}"]
    if settings.backend != "auto":
        words.append(f"--rl-backend={settings.backend}")
    if soak_of(item, settings) is not None:
        words.append("--rl-soak" if settings.soak_duration is None else f"--rl-soak={settings.soak_duration:g}s")
    if (budget := sweep_budget(item, settings)) is not None:
        words.append(f"--rl-leaks={budget:g}s")
    given = {name: item.config.getoption(f"rl_{name.replace('-', '_')}") for name in _LIMITS}
    words += [f"--rl-{name}={value}" for name, value in given.items() if value is not None]
    if before:
        words.append("--rl-group=session")
    return join_command([*words, *more, *map(_argument, (*before, item))], own_shell())


def _argument(item: pytest.Item | pytest.Collector) -> str:
    """The test's node id as seen from the directory pytest was started in."""
    _, separator, rest = item.nodeid.partition("::")
    try:
        path = Path(os.path.relpath(item.path, item.config.invocation_params.dir)).as_posix()
    except ValueError:  # on another drive
        path = item.path.as_posix()
    return f"{path}{separator}{rest}"
