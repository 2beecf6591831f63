"""Resident memory, for the charts only: allocators make it grow where nothing leaks."""

from __future__ import annotations

from pytest_rlstability.leaks.signals.protocol import Signal


class ResidentSet(Signal):
    name = "rss"
    title = "resident memory"
    unit = "bytes"
    judged = False

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()

    def read(self) -> float:
        return float(self._process.memory_info().rss)


class UniqueSet(ResidentSet):
    name = "uss"
    title = "resident memory of its own"

    def read(self) -> float:
        return float(self._process.memory_full_info().uss)
