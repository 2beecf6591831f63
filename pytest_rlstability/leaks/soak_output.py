"""The captured output of a soak, cut to its beginning and its newest part while it runs."""

from __future__ import annotations

import os
import re

from pytest_rlstability.model.units import KEPT_BYTES
from pytest_rlstability.osinfo.linux import descriptor_target

MOST_BYTES = 16 * KEPT_BYTES
_OURS = re.compile(r".*/rlstability-[^/]*/\d+\.(out|err)")


class CapturedOutput:
    """The files that capture the output of a test process. Call ``trim()`` now and then to keep them small.

    Otherwise a trainer that prints its progress for days fills the disk, and the memory of the process that reads it.
    Output that we do not capture (``-s``) is not touched.
    """

    def __init__(self, descriptors: tuple[int, ...] = (1, 2)) -> None:
        self._left_out = {one: 0 for one in descriptors if _OURS.fullmatch(descriptor_target("self", one))}

    def trim(self) -> None:
        for descriptor in self._left_out:
            size = os.fstat(descriptor).st_size
            if size <= MOST_BYTES:
                continue
            tail = os.pread(descriptor, KEPT_BYTES, size - KEPT_BYTES)
            self._left_out[descriptor] += size - 2 * KEPT_BYTES
            os.ftruncate(descriptor, KEPT_BYTES)
            os.lseek(descriptor, KEPT_BYTES, os.SEEK_SET)  # all writers of the file share one position
            note = f"\n[... {self._left_out[descriptor]:,} bytes left out by rl-stability ...]\n"
            os.write(descriptor, note.encode() + tail)
