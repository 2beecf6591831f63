"""Garbage collection in a forked test skips what was there before the fork, until the test calls the collector itself.

The collector writes to every object that it visits, and the first write to a page copies it. So the zygote freezes all
its objects, and a collection in a test visits only what the test has made. A test that calls the collector means the
whole heap.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

_ASKED = ("collect", "get_objects", "get_referrers", "get_freeze_count")
collect = gc.collect
"""Collects what is not frozen, even if the test replaces ``gc.collect``."""


def freeze_until_asked() -> None:
    """Freeze every object; the test's first own call to the collector unfreezes them."""
    originals = {name: getattr(gc, name) for name in _ASKED}

    def unfreeze() -> None:
        gc.unfreeze()
        for name, original in originals.items():
            setattr(gc, name, original)

    def unfreezing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **keywords: Any) -> Any:
            unfreeze()
            return original(*args, **keywords)

        return call

    for name, original in originals.items():
        setattr(gc, name, unfreezing(original))
    gc.freeze()
