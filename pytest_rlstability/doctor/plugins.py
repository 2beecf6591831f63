"""The steps of the package, its kits and other plugins, gathered without a pytest run."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import pytest

from pytest_rlstability import hookspecs, kits
from pytest_rlstability.doctor import step_list
from pytest_rlstability.steps.doctor_step import DoctorStep, Stage

_PACKAGE = "pytest-rlstability"


def _steps_of(plugins: Iterable[object]) -> list[DoctorStep]:
    """The steps of *plugins*, in their order."""
    manager = pytest.PytestPluginManager()
    manager.add_hookspecs(hookspecs)
    for plugin in plugins:
        manager.register(plugin)
    added: list[list[DoctorStep]] = manager.hook.pytest_rlstability_doctor_steps()
    return [step for steps in reversed(added) for step in steps]


def shipped_steps() -> list[DoctorStep]:
    """The steps of the package and its kits. Their plugins import no library, so that none can crash here."""
    return _steps_of([step_list, *map(importlib.import_module, kits.PLUGINS)])


def other_plugins() -> Iterator[str]:
    """The modules of the pytest plugins whose distribution requires this package."""
    for distribution in importlib.metadata.distributions():
        if _normal(distribution.name) != _PACKAGE and _PACKAGE in map(_normal, distribution.requires or ()):
            yield from (entry.value for entry in distribution.entry_points.select(group="pytest11"))


def load_plugin(module: str, rl_stage: Stage) -> list[dict[str, Any]]:
    """The steps of another plugin. Called in a process of its own: what the plugin imports is unknown."""
    with rl_stage(f"import {module}"):
        plugin = importlib.import_module(module)
    return [asdict(step) for step in _steps_of([plugin])]


def _normal(requirement: str) -> str:
    """The name in a requirement, as package indexes write it.

    >>> _normal("Pytest_RLstability[box2d]>=1.0; python_version > '3.8'")
    'pytest-rlstability'
    """
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()
