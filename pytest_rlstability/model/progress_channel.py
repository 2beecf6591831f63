"""What a running test or script may send to the process that watches it. Needs no pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_rlstability.model.messages import Message


class Channel:
    """The way from a test or script to the process that watches it. This one leads nowhere: it serves tests that run
    in pytest's own process, and scripts that nobody watches.

    Elsewhere beats and laps are stored in shared memory, within a microsecond, and ``send`` returns once the kernel has
    the message: both survive any crash.
    """

    is_watched = False
    """Whether somebody is at the other end."""

    @property
    def beats(self) -> int:
        """How many there were."""
        return 0

    def beat(self) -> None:
        """The test made progress."""

    def lap(self, number: int) -> None:
        """Lap *number* (from 1) begins; this is a beat too."""

    def pause_beats(self) -> None:
        """No beat is expected until the next one: the test is watched like one that never beats."""

    def send(self, message: Message) -> None:
        """Send *message*."""


_channels = [Channel()]


def current_channel() -> Channel:
    """The channel of this process."""
    return _channels[-1]


def use_channel(channel: Channel) -> None:
    """Make *channel* the one of this process."""
    _channels[:] = [channel]
