"""The memory that one test uses: its cap, and its peak, which starts again with every test of a shared process."""

from __future__ import annotations

import sys
from contextlib import suppress
from os import close, open, write  # bound here: a test may replace them

if sys.platform == "linux":
    from os import O_CLOEXEC, O_WRONLY
    from resource import RLIM_INFINITY, RLIMIT_DATA, RUSAGE_CHILDREN, getrusage, setrlimit

from pytest_rlstability.osinfo.linux import status

_RESET_PEAK = b"5"
"""What ``clear_refs`` takes to set the peak to what is in use now."""


class TestMemory:
    """``begin(cap)`` before a test, ``end()`` after it."""

    __test__ = False

    def __init__(self) -> None:
        self.in_use = 0
        """What the process used at the end of the last test, mapped files left out."""
        self._cap: int | None = None
        self._peak_of_children = 0

    def begin(self, cap: int | None) -> None:
        """Cap what this process may allocate on top of what it has; pytest's process watches the whole tree as well."""
        self._cap = cap
        if sys.platform != "linux":
            return
        if cap is not None and (own := status("self")) is not None:
            _limit_data(own.size(b"VmData") + cap)
        self._peak_of_children = getrusage(RUSAGE_CHILDREN).ru_maxrss
        with suppress(OSError):
            descriptor = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC)
            try:
                write(descriptor, _RESET_PEAK)
            finally:
                close(descriptor)

    def end(self) -> tuple[int, bool]:
        """The most bytes, mapped files left out, that this process or a child that has ended had in use (0: unknown),
        and whether that is over the cap."""
        if sys.platform != "linux" or (own := status("self")) is None:
            return 0, False
        if self._cap is not None:
            _limit_data(RLIM_INFINITY)
        # What a child used counts from its fork, this process's memory included. That is no more than the peak below.
        children = getrusage(RUSAGE_CHILDREN).ru_maxrss
        grown = children * 1024 if children > self._peak_of_children else 0
        self.in_use = own.size(b"RssAnon")
        peak = max(own.size(b"VmHWM"), grown) - own.size(b"RssFile")
        return peak, self._cap is not None and peak > self._cap


def _limit_data(size: int) -> None:
    with suppress(OSError, ValueError):
        setrlimit(RLIMIT_DATA, (size, RLIM_INFINITY))
