"""What forks of one process learn of each other's writes, in real forks."""

from __future__ import annotations

import mmap
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_rlstability.parent import cow_prefault
from pytest_rlstability.parent.cow_prefault import PagePrefault

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/pagemap")

PAGES = 40
WRITTEN = range(0, PAGES, 2)


@pytest.fixture
def memory() -> memoryview:
    """Private pages, all of them in memory, and so shared with every fork."""
    area = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = memoryview(area)
    for page in range(PAGES):
        view[page * mmap.PAGESIZE] = 1
    return view


def in_a_fork(work: Callable[[], bool]) -> bool:
    """What *work* says in a fork of this process."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def exclusive_among(memory: memoryview) -> list[int]:
    """Which pages of *memory* this process has to itself."""
    import ctypes

    first = ctypes.addressof(ctypes.c_char.from_buffer(memory)) // mmap.PAGESIZE
    mine = frozenset(cow_prefault._pages(exclusive=True))
    return [page for page in range(PAGES) if first + page in mine]


def run_a_test(known: PagePrefault, memory: memoryview, pages: range) -> Callable[[], bool]:
    def test() -> bool:
        known.prepare()
        for page in pages:
            memory[page * mmap.PAGESIZE] += 1
        known.learn()
        return True

    return test


def a_spare_owns(pages: list[int], known: PagePrefault, memory: memoryview) -> bool:
    def look() -> bool:
        known.prepare()
        return exclusive_among(memory) == pages

    return in_a_fork(look)


def test_a_spare_owns_what_two_tests_wrote_to_and_no_more(tmp_path: Path, memory: memoryview) -> None:
    known = PagePrefault(tmp_path)
    assert in_a_fork(run_a_test(known, memory, range(PAGES)))
    assert in_a_fork(run_a_test(known, memory, WRITTEN))
    known.refresh()
    assert a_spare_owns(list(WRITTEN), known, memory)


def test_where_the_kernel_takes_one_range_at_a_time(
    tmp_path: Path, memory: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cow_prefault, "_SYS_PROCESS_MADVISE", -1)
    test_a_spare_owns_what_two_tests_wrote_to_and_no_more(tmp_path, memory)


def test_nothing_is_copied_before_two_tests_agree(tmp_path: Path, memory: memoryview) -> None:
    known = PagePrefault(tmp_path)
    assert in_a_fork(run_a_test(known, memory, WRITTEN))
    known.refresh()
    assert a_spare_owns([], known, memory)


def test_two_tests_that_write_all_over_the_place_teach_nothing(
    tmp_path: Path, memory: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cow_prefault, "_MOST_RANGES", len(WRITTEN) - 1)
    known = PagePrefault(tmp_path)
    for _ in range(2):
        assert in_a_fork(run_a_test(known, memory, WRITTEN))
    known.refresh()
    assert a_spare_owns([], known, memory)


def test_a_directory_that_is_gone_is_no_trouble(tmp_path: Path, memory: memoryview) -> None:
    known = PagePrefault(tmp_path / "gone")
    assert in_a_fork(run_a_test(known, memory, WRITTEN))
    known.refresh()
    assert in_a_fork(run_a_test(known, memory, WRITTEN))


def test_a_test_that_used_up_its_memory_is_no_trouble(tmp_path: Path, memory: memoryview) -> None:
    import resource

    known = PagePrefault(tmp_path)

    def test() -> bool:
        large = mmap.mmap(-1, 1 << 29, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # reading its entries takes 1 MiB
        known.prepare()
        resource.setrlimit(resource.RLIMIT_DATA, (mmap.PAGESIZE, resource.RLIM_INFINITY))
        known.learn()
        return not large.closed

    assert in_a_fork(test)
