"""Runs made up for tests of what is concluded from a run."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pytest_rlstability.model.messages import TestDone
from pytest_rlstability.model.run import Ending, Observed, Run, RunSpec

DONE = TestDone(laps=0, continues=False)


def make_run(**facts: Any) -> Run:
    """A run with these *facts*, each of which is a field of ``RunSpec``, ``Observed`` or ``Ending``."""
    given = {
        "nodeid": "test_it.py::test_it",
        "backend": "zygote",
        "seed": 1,
        "pid": 10,
        "started": 0.0,
        "phase": "call",
    }
    given.update(facts)
    parts = []
    for part in (RunSpec, Observed, Ending):
        names = {field.name for field in fields(part)}
        parts.append(part(**{name: given.pop(name) for name in list(given) if name in names}))
    assert not given, f"no part of a run has {', '.join(given)}"
    return Run(*parts)
