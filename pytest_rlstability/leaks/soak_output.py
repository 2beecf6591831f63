"""What a soak prints for days, cut to its beginning and its newest part while it runs."""

from __future__ import annotations

import os
import re

from pytest_rlstability.isolation.output import KEPT_BYTES
from pytest_rlstability.signals.proc import read_link

MOST_BYTES = 16 * KEPT_BYTES
_OURS = re.compile(r".*/rlstability-[^/]*/\d+\.(out|err)")


class CapturedOutput:
    """The files in which a test's process captures its output; ``trim()`` now and then keeps them small.

    Without it a trainer that prints its progress fills the disk, and at the end the memory that reads it back.
    Output that is not captured by us (``-s``) is the user's and is left alone.
    """

    def __init__(self, descriptors: tuple[int, ...] = (1, 2)) -> None:
        self._left_out = {one: 0 for one in descriptors if _OURS.fullmatch(read_link(f"/proc/self/fd/{one}"))}

    def trim(self) -> None:
        for descriptor in self._left_out:
            size = os.fstat(descriptor).st_size
            if size > MOST_BYTES:
                self._cut(descriptor, size)

    def _cut(self, descriptor: int, size: int) -> None:
        """Everybody who writes here shares the file's position, so that moving it back moves it for all of them."""
        tail = os.pread(descriptor, KEPT_BYTES, size - KEPT_BYTES)
        self._left_out[descriptor] += size - 2 * KEPT_BYTES
        os.ftruncate(descriptor, KEPT_BYTES)
        os.lseek(descriptor, KEPT_BYTES, os.SEEK_SET)
        note = f"\n[... {self._left_out[descriptor]:,} bytes left out by rl-stability ...]\n"
        os.write(descriptor, note.encode() + tail)
