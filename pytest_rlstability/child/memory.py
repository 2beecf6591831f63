"""The memory that one test uses: its cap, and its peak, which starts again with every test of a shared process."""

from __future__ import annotations

import sys
from contextlib import suppress
from os import close, open, write  # bound here: a test may replace them

from pytest_rlstability.osinfo.linux import status

_RESET_PEAK = b"5"
"""What ``clear_refs`` takes to set the peak to what is in use now."""
_UNCHANGED = 1024
"""KiB by which the peak may differ before the process's memory is looked at: a look takes as long as a small test."""


if sys.platform == "linux":
    from os import O_CLOEXEC, O_WRONLY
    from resource import RLIM_INFINITY, RLIMIT_DATA, RUSAGE_CHILDREN, RUSAGE_SELF, getrusage, setrlimit

    class TestMemory:
        """``begin(cap)`` before a test, ``end()`` after it."""

        __test__ = False

        def __init__(self) -> None:
            self.in_use = 0
            """What the process used at the last look after a test, mapped files left out."""
            self._mapped = 0
            self._resident = 0
            """KiB in memory at the last look, which reset the peak."""
            self._cap: int | None = None
            self._peak_of_children = 0

        def begin(self, cap: int | None) -> None:
            """Cap what this process may allocate on top of what it has; pytest's process watches the tree as well."""
            self._cap = cap
            if cap is not None and (own := status("self")) is not None:
                _limit_data(own.size(b"VmData") + cap)
            self._peak_of_children = getrusage(RUSAGE_CHILDREN).ru_maxrss
            if not self._resident:
                _reset_peak()

        def end(self) -> tuple[int, bool]:
            """The most bytes, mapped files left out, that this process or a child that has ended had in use (0:
            unknown), and whether that is over the cap."""
            if self._cap is not None:
                _limit_data(RLIM_INFINITY)
            own_peak = getrusage(RUSAGE_SELF).ru_maxrss
            if not self._resident or abs(own_peak - self._resident) > _UNCHANGED:
                own_peak = self._look()
            # What a child used counts from its fork, this process's memory included: not more than the peak.
            children = getrusage(RUSAGE_CHILDREN).ru_maxrss
            grown = children if children > self._peak_of_children else 0
            peak = max(own_peak, grown) * 1024 - self._mapped
            return peak, self._cap is not None and peak > self._cap

        def _look(self) -> int:
            """Note what is in use, and begin a new peak; the last one in KiB."""
            if (own := status("self")) is None:
                return 0
            self.in_use, self._mapped = own.size(b"RssAnon"), own.size(b"RssFile")
            self._resident = own.size(b"VmRSS") // 1024
            _reset_peak()
            return own.size(b"VmHWM") // 1024

    def _reset_peak() -> None:
        with suppress(OSError):
            descriptor = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC)
            try:
                write(descriptor, _RESET_PEAK)
            finally:
                close(descriptor)

    def _limit_data(size: int) -> None:
        with suppress(OSError, ValueError):
            setrlimit(RLIMIT_DATA, (size, RLIM_INFINITY))

elif sys.platform == "win32":
    from pytest_rlstability.osinfo.windows import OwnMemory

    class TestMemory:
        """The same by a job object. A peak does not start again: only one that has grown is the test's."""

        __test__ = False
        in_use = 0

        def __init__(self) -> None:
            self._own = OwnMemory()
            self._cap: int | None = None
            self._peak = 0

        def begin(self, cap: int | None) -> None:
            self._cap, self._peak = cap, self._own.peak
            if cap is not None:
                self._own.cap(cap)

        def end(self) -> tuple[int, bool]:
            self._own.lift_cap()
            peak = self._own.peak if self._own.peak > self._peak else 0
            return peak, self._cap is not None and peak > self._cap

else:

    class TestMemory:
        """Nothing is known about a single test of a shared process: pytest's process alone watches the cap."""

        __test__ = False
        in_use = 0

        def begin(self, cap: int | None) -> None:
            pass

        def end(self) -> tuple[int, bool]:
            return 0, False
