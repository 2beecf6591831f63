"""What a running test may send to pytest's process, and the question whether this process is a test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_rlstability.model.messages import Message


class Channel:
    """The way from a test to pytest's process. This one leads nowhere: it serves tests that run in pytest's own
    process.

    Elsewhere beats and laps are stored in shared memory, within a microsecond, and ``send`` returns once the kernel has
    the message: both survive any crash.
    """

    def beat(self) -> None:
        """The test made progress."""

    def lap(self, number: int) -> None:
        """Lap *number* (from 1) begins; this is a beat too."""

    def pause_beats(self) -> None:
        """No beat is expected until the next one: the test is watched like one that never beats."""

    def send(self, message: Message) -> None:
        """Send *message*."""


_is_test_process = pytest.StashKey[bool]()
_channel = pytest.StashKey[Channel]()


def become_test_process(config: pytest.Config) -> None:
    """From here on this process is a test's own, not pytest's."""
    config.stash[_is_test_process] = True


def is_test_process(config: pytest.Config) -> bool:
    """Whether this process is a test's own."""
    return config.stash.get(_is_test_process, False)


def channel_of(config: pytest.Config) -> Channel:
    """The channel of the process that *config* lives in."""
    return config.stash.get(_channel, None) or config.stash.setdefault(_channel, Channel())


def install_channel(config: pytest.Config, channel: Channel) -> None:
    config.stash[_channel] = channel
