"""Modules that kill pytest-xdist's workers while they import them, in the controller's process.

A worker's standby writes down what happened and kills it. xdist starts another worker, which is told to do without that
module. One of the workers reports it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.compat.pytest import base_temp
from pytest_rlstability.session.collection.failed_imports import FailedImport

KEY = "rl_imports"
"""What a worker's input has this under."""


class WorkerImports:
    """A plugin of the controller."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._failures: dict[str, dict[str, Any]] = {}
        self._reporters: dict[str, str] = {}
        """Which worker is to report each of them."""
        self._reported: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        if not node.gateway.spec.popen:
            return  # it runs on another host
        self._directory = base_temp(node.config)
        if self._directory is None:
            return
        worker = node.gateway.id
        for nodeid in self._failures:
            self._reporters.setdefault(nodeid, worker)
        silent = [nodeid for nodeid, reporter in self._reporters.items() if reporter != worker]
        record = str(_record(self._directory, worker))
        node.workerinput[KEY] = {"record": record, "failures": list(self._failures.values()), "silent": silent}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        worker = node.gateway.id
        for nodeid, reporter in [*self._reporters.items()]:
            if reporter == worker and nodeid not in self._reported:
                del self._reporters[nodeid]
        if self._directory is not None:
            with suppress(OSError, ValueError):
                failed = json.loads(_record(self._directory, worker).read_bytes())
                self._failures.setdefault(failed["nodeid"], failed)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._reported.add(report.nodeid)


def _record(directory: Path, worker: str) -> Path:
    """In pytest's own temporary directory, which it removes whatever happens to this process."""
    return directory / f"{worker}.import"


def known_failures(config: pytest.Config) -> tuple[dict[str, FailedImport], list[str]]:
    """In a worker: what others could not import, and which of that somebody else reports."""
    given: dict[str, Any] = getattr(config, "workerinput", {}).get(KEY, {})
    failures = [FailedImport.from_dict(failed) for failed in given.get("failures", ())]
    return {failed.nodeid: failed for failed in failures}, given.get("silent", [])


def record_of(config: pytest.Config) -> Path | None:
    """In a worker: where its standby writes what it dies of."""
    given: dict[str, Any] = getattr(config, "workerinput", {}).get(KEY, {})
    return Path(given["record"]) if given else None
