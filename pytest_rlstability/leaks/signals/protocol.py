"""A signal: one thing that can grow, read as a number after each stretch of laps."""

from __future__ import annotations

from typing import Literal

Unit = Literal["bytes", "count"]
Group = Literal["memory", "resources", ""]


class Signal:
    """One thing that can grow, given to leak checks by ``pytest_rlstability_signals``.

    ``class Descriptors(Signal): name = "fds"; ...; def read(self): return len(own_descriptors())``.
    ``read`` must be cheap and must not keep what it allocates, or it measures itself. If the signal cannot be read
    here, the constructor raises ``osinfo.UnavailableError`` with the reason.
    """

    name: str
    title: str
    group: Group = "resources"
    """The group in ``rl_no_leak(signals=[...])``; empty for a signal that cannot be named there."""
    unit: Unit = "count"
    exact: bool = False
    """It has no noise, like descriptors, threads and processes, so fewer laps decide it."""
    judged: bool = True
    """False: only shown in charts."""
    foreign: bool = False
    """Other processes can make it grow too. It is a leak only if the growth stops while no lap runs."""
    expensive: bool = False
    """Reading it takes long. It is sampled more rarely, and the check does not wait for its verdict."""
    collected: bool = False
    """It falls when garbage of this process is collected."""
    smallest: float = 8.0
    """Less growth than this in total is never a leak."""
    resolution: float = 0.05
    """The growth per lap that must be found."""
    most: float | None = None
    """The highest value that its author allows."""
    ceiling: float = 256.0
    """Steady growth of this much ends the check, before it starves the machine."""

    def read(self) -> float:
        raise NotImplementedError

    def inventory(self) -> dict[str, str]:
        """identity -> description of what it counts now, for signals that count things with names."""
        return {}

    def close(self) -> None:
        """Release what reading needs."""
