"""Whether this process is a test's own, and the channel of the tests of one pytest run."""

from __future__ import annotations

import pytest

from pytest_rlstability.model.progress_channel import Channel, use_channel

TEST_PROCESS = "rlstability-test-process"
"""The name of a plugin that marks a test's own process before its config is complete."""

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
    """From here on *channel* is the one of this process."""
    config.stash[_channel] = channel
    use_channel(channel)
