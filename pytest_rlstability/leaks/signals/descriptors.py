"""Open file descriptors (handles on Windows), with what each leads to."""

from __future__ import annotations

import os

from pytest_rlstability.signals.proc import GONE, read_link
from pytest_rlstability.signals.protocol import Signal, UnavailableError

_DIRECTORIES = ("/proc/self/fd", "/dev/fd")


def _limit() -> int:
    try:
        import resource
    except ImportError:
        return 1024
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


class Descriptors(Signal):
    name = "fds"
    title = "file descriptors"
    exact = True

    def __init__(self) -> None:
        present = [path for path in _DIRECTORIES if os.path.isdir(path)]
        if not present:
            raise UnavailableError("neither /proc/self/fd nor /dev/fd is there")
        self._directory = present[0]
        self.ceiling = min(1024.0, max(32.0, (_limit() - self.read()) / 2))

    def read(self) -> float:
        return len(os.listdir(self._directory))

    def inventory(self) -> dict[str, str]:
        links = {name: read_link(f"{self._directory}/{name}") for name in os.listdir(self._directory)}
        # the descriptor that lists the directory is gone by the time it is looked at
        return {f"{name} {to}": f"descriptor {name} -> {to}" for name, to in links.items() if to != GONE}
