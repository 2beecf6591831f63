"""Measures coverage in test processes, with the user's ordinary configuration.

Each test process writes a data file into the run's directory. pytest's process adds them to the measurement that is
under way there, whoever started it: ``coverage run``, pytest-cov, or the pytest-cov of an xdist worker.
"""

from __future__ import annotations

import sys
from os import getpid  # bound here: a test may replace them
from pathlib import Path
from typing import Any

from pytest_rlstability.compat.plugins import redirect_coverage
from pytest_rlstability.model.messages import Json


def _current() -> Any:
    """The measurement under way in this process, if there is one."""
    module = sys.modules.get("coverage")
    return None if module is None else module.Coverage.current()


def _data_file(directory: Path) -> str:
    return str(directory / f"{getpid()}.coverage")


def configuration() -> Json | None:
    """What a fresh interpreter needs to measure as this one does."""
    current = _current()
    if current is None:
        return None
    config = current.config
    return {"configuration": f":data:{config.serialize()}" if hasattr(config, "serialize") else config.config_file}


def start_coverage(wanted: Json | None, directory: Path) -> None:
    """In a fresh interpreter: measure as pytest's process does."""
    if wanted is not None:
        import coverage

        measuring = coverage.Coverage(data_suffix=False, config_file=wanted["configuration"])
        measuring.set_option("run:data_file", _data_file(directory))
        measuring.start()


def save_coverage(directory: Path) -> None:
    """Write what was measured in this process."""
    current = _current()
    if current is None:
        return
    current.stop()
    redirect_coverage(current, _data_file(directory))
    current.save()


def collect_coverage(directory: Path) -> None:
    """In pytest's process: add what the test processes measured."""
    current = _current()
    files = sorted(directory.glob("*.coverage*"))
    if current is None or not files:
        return
    from coverage import CoverageData

    total = current.get_data()
    for file in files:
        data = CoverageData(basename=str(file))
        data.read()
        _add(data, total)
        data.close()


def _add(data: Any, total: Any) -> None:
    """Record *data* into *total*. Its ``update`` would not change the hash that distinguishes the files of two xdist
    workers."""
    for context in data.measured_contexts():
        data.set_query_context(context)
        total.set_context(context or None)
        measured = data.measured_files()
        if data.has_arcs():
            total.add_arcs({file: data.arcs(file) or () for file in measured})
        else:
            total.add_lines({file: data.lines(file) or () for file in measured})
