"""The way out of a test's process: what would go wrong at exit goes wrong here, where somebody still watches."""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest

from pytest_rlstability.isolation.collector import collect
from pytest_rlstability.isolation.late_errors import tell_late_errors
from pytest_rlstability.isolation.output import capturing


def forget_inherited_exits() -> None:
    """In the zygote: leave to pytest's process what is pytest's to do at exit, so that a test's process runs
    only the callbacks the test itself registers."""
    atexit._clear()
    for finalizer in weakref.finalize._registry.values():  # type: ignore[attr-defined]
        finalizer.atexit = False
    # The next finalizer made puts itself into atexit anew.
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    if util := sys.modules.get("multiprocessing.util"):
        sys.modules["multiprocessing.process"]._children.clear()
        atexit.register(util._exit_function)


def drop_references(item: pytest.Item) -> None:
    """Let go of what pytest keeps of a finished test: frames of its exception, its instance, its fixtures."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        with suppress(AttributeError):
            delattr(sys, name)
    if isinstance(item, pytest.Function):
        item._instance = None


def check_exit(item: pytest.Item, look: Callable[[], None], *, finalizing: bool) -> None:
    """What interpreter shutdown would do, in its order: threads, exit callbacks, garbage.

    Garbage goes first as well, while the threads it may belong to still live: that is where a corrupted heap
    usually shows. Then *look* may see what the test left behind. With *finalizing* the interpreter does the rest.
    """
    with capturing(item.config):
        collect()
        look()
        if not finalizing:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            collect()
        tell_late_errors(item)
