"""Has the kernel copy the pages that a test will write to before the test runs.

A forked test writes to some thousand pages that it shares with the zygote, if only to count references. The kernel
copies each page at the first write, which is most of what an empty test costs. Nearly the same pages are written in
every test. The first two tests show which; every spare process then copies them while it waits for its test.
"""

from __future__ import annotations

import array
import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pytest_rlstability.osinfo.linux import mappings, open_page_map

assert sys.platform == "linux"

_PAGE = 4096
_PRESENT, _EXCLUSIVE = 1 << 63, 1 << 56
"""Bits of a page map: the page is in memory, and no other process maps it."""
_SYS_PROCESS_MADVISE, _MADV_POPULATE_WRITE = 440, 23
_MOST_RANGES = 1024
"""As many as one call takes. More means that two large tests were compared, not what all tests share."""
_LARGEST_MAPPING = 1 << 30
"""In bytes. A larger mapping only reserves addresses."""


class _Range(ctypes.Structure):
    """C's ``struct iovec``."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


class PagePrefault:
    """The pages that every test of a run writes to. The forks of one zygote share the list through a file.

    ``refresh()`` in the zygote before a fork, ``prepare()`` first of all in the new process, ``learn()`` last of all.
    """

    def __init__(self, directory: Path) -> None:
        self._common = directory / "pages"
        self._first = directory / "pages.first"
        self._shared: frozenset[int] = frozenset()
        self._ranges: ctypes.Array[_Range] | None = None
        self._usable = hasattr(os, "pidfd_open") and sys.maxsize > 2**32 and os.sysconf("SC_PAGESIZE") == _PAGE

    def refresh(self) -> None:
        """Read what tests have learnt."""
        if not self._usable or self._ranges is not None:
            return
        with suppress(OSError):  # not there yet, or nothing can be opened now: the zygote must go on
            numbers = array.array("Q", self._common.read_bytes())
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            ranges = [_Range(first * _PAGE, count * _PAGE) for first, count in pairs]
            self._ranges = (_Range * len(ranges))(*ranges)

    def prepare(self) -> None:
        """Copy the pages that are known to be needed; the others are copied when they are written to."""
        with suppress(OSError):
            if self._ranges is not None:
                _copy(self._ranges)
            elif self._usable:
                self._shared = frozenset(_pages(exclusive=False))

    def learn(self) -> None:
        if not self._shared:
            return
        with suppress(Exception):  # after a test anything may be missing: memory, descriptors, the directory
            written = self._shared.intersection(_pages(exclusive=True))
            if not self._first.exists():
                _write(self._first, array.array("Q", written))
            else:
                ranges = _as_ranges(sorted(written.intersection(array.array("Q", self._first.read_bytes()))))
                few = ranges if len(ranges) <= _MOST_RANGES else []
                _write(self._common, array.array("Q", [number for pair in few for number in pair]))


def _copy(ranges: ctypes.Array[_Range]) -> None:
    """Make the pages in these ranges this process's own."""
    libc = ctypes.CDLL(None)
    count = ctypes.c_size_t(len(ranges))
    descriptor = os.pidfd_open(os.getpid())
    # One call for all of them, where the kernel lets a process ask that of itself (since Linux 6.13).
    done = libc.syscall(_SYS_PROCESS_MADVISE, descriptor, ranges, count, _MADV_POPULATE_WRITE, 0)
    os.close(descriptor)
    if done < 0:
        for item in ranges:
            libc.madvise(ctypes.c_void_p(item.start), ctypes.c_size_t(item.size), _MADV_POPULATE_WRITE)


def _pages(*, exclusive: bool) -> Iterator[int]:
    """Numbers of this process's writable private pages that are in memory and shared, or not shared."""
    asked = _PRESENT | _EXCLUSIVE
    wanted = asked if exclusive else _PRESENT
    with open_page_map() as page_map:
        for mapping in mappings(having=b" rw-p "):
            first, last = mapping.start // _PAGE, mapping.end // _PAGE
            if mapping.size <= _LARGEST_MAPPING:
                page_map.seek(first * 8)
                entries = array.array("Q", page_map.read((last - first) * 8))
                yield from (number for number, entry in enumerate(entries, first) if entry & asked == wanted)


def _as_ranges(pages: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted page numbers as ``(first, count)``.

    >>> _as_ranges([7, 8, 10, 90])
    [(7, 2), (10, 1), (90, 1)]
    """
    ranges: list[tuple[int, int]] = []
    for page in pages:
        if ranges and page == sum(ranges[-1]):
            first, count = ranges.pop()
            ranges.append((first, count + 1))
        else:
            ranges.append((page, 1))
    return ranges


def _write(path: Path, numbers: array.array[int]) -> None:
    """All at once: somebody may be reading."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(numbers.tobytes())
    unfinished.replace(path)
