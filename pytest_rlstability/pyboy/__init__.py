"""PyBoy under test: a homebrew ROM, an emulator in a process of its own, and a guard for one in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_rlstability.pyboy.client import ForkedPyBoy
    from pytest_rlstability.pyboy.recording import replay
    from pytest_rlstability.pyboy.rom import build_rom

__all__ = ["ForkedPyBoy", "build_rom", "replay"]

_HOMES = {"ForkedPyBoy": "client", "build_rom": "rom", "replay": "recording"}


def __getattr__(name: str) -> object:
    # On demand: the emulator's process imports this package and wants nothing of pytest.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
