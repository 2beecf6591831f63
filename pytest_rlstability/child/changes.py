"""What a Python process does to itself at its start because a diagnosis wants to know whether that matters.

Asked for by an environment variable, in JSON: ``{"switch_interval": 1e-6, "gc": "off"}``. Needs no pytest.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from gc import disable, set_threshold
from json import loads

if sys.platform == "linux":
    from os import sched_getaffinity, sched_setaffinity

CHANGES = "RLSTABILITY_CHANGES"
"""The environment variable."""
STOP_AFTER: list[str] = []
"""The stage after which the test or script ends, if there is one."""


def apply_changes(environment: Mapping[str, str]) -> None:
    """Do what is asked for. A change that this platform does not have is left out."""
    asked = loads(environment.get(CHANGES, "{}"))
    if "switch_interval" in asked:
        sys.setswitchinterval(asked["switch_interval"])
    if asked.get("gc") == "off":
        disable()
    elif asked.get("gc") == "often":
        set_threshold(1, 100, 1000)
    if asked.get("processors") == 1 and sys.platform == "linux":
        sched_setaffinity(0, {min(sched_getaffinity(0))})
    if "start_method" in asked:
        from pytest_rlstability.compat.cpython import force_start_method

        force_start_method(asked["start_method"])
    if not asked.keys().isdisjoint(("vec_env", "model", "note_use")):
        from pytest_rlstability.child.library_changes import change_libraries

        change_libraries(asked)
    if asked.get("limits") == "none":
        _lift_limits()
    STOP_AFTER[:] = [asked["stop_after"]] if "stop_after" in asked else []


def _lift_limits() -> None:
    """Let this process have what memory and stack the hard limits allow."""
    if sys.platform != "win32":
        import resource

        with suppress(OSError, ValueError):
            for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_STACK):
                resource.setrlimit(which, (resource.getrlimit(which)[1],) * 2)
