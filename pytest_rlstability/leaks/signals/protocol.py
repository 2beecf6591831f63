"""What a signal is: one thing that can grow, read as a number after each stretch of laps."""

from __future__ import annotations

from typing import Literal

Unit = Literal["bytes", "count"]


class UnavailableError(Exception):
    """Raised by a signal's constructor where it cannot be read; the text says why."""


class Signal:
    """One thing that can grow. A signal is a file in this package and a line in ``registry.SIGNALS``.

    ``class Descriptors(Signal): name = "fds"; ...; def read(self): return len(os.listdir("/proc/self/fd"))``.
    ``read`` must be cheap and must not keep what it allocates: a sampler that grows is its own leak.
    """

    name: str
    title: str
    unit: Unit = "count"
    exact: bool = False
    """No noise: descriptors, threads, processes. Convicts within tens of laps."""
    judged: bool = True
    """False: shown in charts, never convicts."""
    foreign: bool = False
    """Other processes can make it grow too, so that growth has to stop when the test stands still."""
    dear: bool = False
    """Reading it takes long: it is sampled more rarely, and nothing waits for its verdict."""
    smallest: float = 8.0
    """A growth below this, in total, is never a leak."""
    resolution: float = 0.05
    """Growth per lap that must not go unseen."""
    most: float | None = None
    """A value that its author promised not to exceed."""
    ceiling: float = 256.0
    """Growth at which a steady rise is stopped rather than watched until it starves the machine."""

    def read(self) -> float:
        raise NotImplementedError

    def inventory(self) -> dict[str, str]:
        """What there is now: identity -> description, for signals whose units have names."""
        return {}

    def close(self) -> None:
        """Give back what reading needs."""
