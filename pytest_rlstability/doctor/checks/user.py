"""A stage of the user's own: ``MODULE:CALLABLE``."""

from __future__ import annotations

import importlib
import inspect
from contextlib import ExitStack
from typing import Any

from pytest_rlstability.steps.doctor_step import Stage


def run_stage(target: str, rl_stage: Stage) -> None:
    """Call *target* and ignore its result. It may ask for ``rl_stage`` as a test would, or be a generator that yields
    the name of each stage as it enters it."""
    module, _, path = target.partition(":")
    function: Any = importlib.import_module(module)
    for name in path.split("."):
        function = getattr(function, name)
    try:
        wanted = "rl_stage" in inspect.signature(function).parameters
        value = function(rl_stage=rl_stage) if wanted else function()
        if inspect.isgenerator(value):
            with ExitStack() as current:
                for stage in value:
                    current.close()
                    current.enter_context(rl_stage(str(stage)))
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
