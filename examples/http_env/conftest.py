from __future__ import annotations

from collections.abc import Iterator

import pytest
from game_server import GameServer


@pytest.fixture
def server() -> Iterator[GameServer]:
    with GameServer() as running:
        yield running
