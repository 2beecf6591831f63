"""pytest-rlstability: crashes, leaks and stalls of training code as ordinary test failures.

PYTEST_DONT_REWRITE: a fresh test process imports this package before pytest can rewrite it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_rlstability.child.progress import heartbeat as heartbeat
    from pytest_rlstability.child.progress import probe as probe
    from pytest_rlstability.child.progress import stage as stage

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # On demand: the emulator's process and the fixtures that need no emulator import this package too.
    if name in ("EmulatorCrashed", "EmulatorStalled"):
        from pytest_rlstability.kits.pyboy import errors

        return getattr(errors, name)
    if name in ("heartbeat", "probe", "stage"):
        from pytest_rlstability.child import progress

        return getattr(progress, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
