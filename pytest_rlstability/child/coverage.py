"""Lines run in a test's process count, with the user's ordinary coverage configuration.

Each test's process writes a data file of its own into the run's directory, and pytest's process takes them into the
measurement it has under way, whoever started that (``coverage run``, pytest-cov, an xdist worker's pytest-cov).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pytest_rlstability.facts import Record


def _current() -> Any:
    """The measurement under way in this process, if there is one."""
    module = sys.modules.get("coverage")
    return None if module is None else module.Coverage.current()


def _data_file(directory: Path) -> str:
    return str(directory / f"{os.getpid()}.coverage")


def configuration() -> Record | None:
    """What a fresh interpreter needs to measure as this one does."""
    current = _current()
    if current is None:
        return None
    config = current.config
    return {"configuration": f":data:{config.serialize()}" if hasattr(config, "serialize") else config.config_file}


def start_coverage(wanted: Record | None, directory: Path) -> None:
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
    # In a forked process coverage is about to choose its file anew; it must not be the one the parent will write.
    current._data._basename, current._data._suffix = _data_file(directory), None
    current.save()


def collect_coverage(directory: Path) -> None:
    """In pytest's process: take in what the tests' processes measured."""
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
    """Record *data* into *total*. Not by its ``update``: that leaves the hash alone by which combining tells the files
    of two xdist workers apart."""
    for context in data.measured_contexts():
        data.set_query_context(context)
        total.set_context(context or None)
        measured = data.measured_files()
        if data.has_arcs():
            total.add_arcs({file: data.arcs(file) or () for file in measured})
        else:
            total.add_lines({file: data.lines(file) or () for file in measured})
