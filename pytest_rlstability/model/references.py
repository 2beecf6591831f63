"""References that keep an object alive although no code uses them."""

from __future__ import annotations

import gc
import sys

from pytest_rlstability.model.user_code import outwards


def drop_stale_references() -> None:
    """Collect garbage, and drop the copies of local variables that frames keep: before Python 3.13 a frame whose
    ``f_locals`` was read keeps that copy until ``f_locals`` is read again."""
    for innermost in sys._current_frames().values():
        for frame in outwards(innermost):
            frame.f_locals  # noqa: B018 (reading makes a new copy)
    gc.collect()
