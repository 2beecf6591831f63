"""The command that runs one test again, alone and as it ran."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from pytest_rlstability.options import Settings
from pytest_rlstability.soak.settings import soak_of


def reproduce_command(item: pytest.Item, settings: Settings, *more: str) -> str:
    """``pytest --rl-stability --rl-seed=7 'tests/test_env.py::test_step[fast]'``, to be typed where pytest was."""
    words = ["python", "-m", "pytest", "--rl-stability", f"--rl-seed={settings.seed}"]
    if settings.backend != "auto":
        words.append(f"--rl-backend={settings.backend}")
    if soak_of(item, settings) is not None:
        words.append("--rl-soak" if settings.soak_duration is None else f"--rl-soak={settings.soak_duration:g}s")
    return shlex.join([*words, *more, _argument(item)])


def _argument(item: pytest.Item) -> str:
    """The test's node id as seen from the directory pytest was started in."""
    _, separator, rest = item.nodeid.partition("::")
    path = Path(os.path.relpath(item.path, item.config.invocation_params.dir)).as_posix()
    return f"{path}{separator}{rest}"
