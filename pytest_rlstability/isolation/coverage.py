"""Lines run in a test's process count, with the user's ordinary coverage configuration."""

from __future__ import annotations

import sys


def save_coverage() -> None:
    """Write what coverage measured in this process, if it measures at all.

    coverage notices by itself that the process was forked and writes where its configuration says: beside the
    parent's data, or into a file of its own that ``combine`` picks up.
    """
    module = sys.modules.get("coverage")
    current = module.Coverage.current() if module is not None else None
    if current is not None:
        current.stop()
        current.save()
