"""The collector of a forked test: it leaves what was there before the fork alone, until the test asks about it.

To look at an object is to write to it, and to write to it is to copy its page. So the zygote freezes all it has, and a
collection in a test visits what the test has made. A test that calls the collector itself means all of the heap.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

_ASKED = ("collect", "get_objects", "get_referrers", "get_freeze_count")
collect = gc.collect
"""Of what is not frozen, whatever becomes of ``gc.collect``."""


def freeze_until_asked() -> None:
    """Freeze everything there is; the first call of the test's own to the collector thaws it."""
    originals = {name: getattr(gc, name) for name in _ASKED}

    def thaw() -> None:
        gc.unfreeze()
        for name, original in originals.items():
            setattr(gc, name, original)

    def thawing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **keywords: Any) -> Any:
            thaw()
            return original(*args, **keywords)

        return call

    for name, original in originals.items():
        setattr(gc, name, thawing(original))
    gc.freeze()
