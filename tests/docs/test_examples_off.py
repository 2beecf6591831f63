"""The Box2D example without the switch: the fixture's own checks hold in plain pytest as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("Box2D")

WALKER = Path(__file__).parents[2] / "examples" / "box2d_walker"


def test_faulty(run_pytest: Any) -> None:
    outcome = run_pytest.run("-p", "no:cacheprovider", str(WALKER / "test_walker_faulty.py"), on=False)
    assert set(outcome.tests.values()) == {"failed"}
    assert "LEAK: box2d: food grew by 3 per lap over 2 laps, limit 0" in outcome.messages["test_episodes"]
    assert "in drop_food" in outcome.details["test_episodes"]


def test_fixed(run_pytest: Any) -> None:
    outcome = run_pytest.run("-p", "no:cacheprovider", str(WALKER / "test_walker_fixed.py"), on=False)
    assert set(outcome.tests.values()) == {"passed"}, outcome.text
