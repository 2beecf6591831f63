"""Open descriptors of this process."""

from __future__ import annotations

import os

from pytest_rlstability.osinfo import UnavailableError, linux

_OWN = next((path for path in (linux.OWN_DESCRIPTORS, "/dev/fd") if os.path.isdir(path)), "")


def own_descriptors() -> list[str]:
    """The open descriptors of this process, including the one that lists them."""
    if not _OWN:
        raise UnavailableError(f"neither {linux.OWN_DESCRIPTORS} nor /dev/fd exists")
    return os.listdir(_OWN)


def replace_descriptor(place: int, descriptor: int) -> None:
    """Give the open file *descriptor* the number *place*, which others already use."""
    os.dup2(descriptor, place, inheritable=False)
    os.close(descriptor)
