"""Open file descriptors (handles on Windows), and what each refers to."""

from __future__ import annotations

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo.descriptors import own_descriptors, own_target
from pytest_rlstability.osinfo.linux import GONE


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
        self.ceiling = min(1024.0, max(32.0, (_limit() - self.read()) / 2))

    def read(self) -> float:
        return len(own_descriptors())

    def inventory(self) -> dict[str, str]:
        # the descriptor that listed the directory is closed by now
        links = ((name, own_target(name)) for name in own_descriptors())
        return {f"{name} {to}": f"descriptor {name} -> {to}" for name, to in links if to != GONE}
