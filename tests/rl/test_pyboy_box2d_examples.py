"""The examples of the two field stories: the faulty versions are caught with the words they promise, the mended
ones pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

CAPTURE = {
    "test_filming": "PyBoy is used",
    "test_closing_while_filming": "PyBoy is stopped while another thread may still use it",
    "test_saving_a_frame": "cannot write mode RGBA as JPEG: PyBoy's screen has an alpha channel",
    "test_frame_stack": "observations of 3 different frames are one and the same memory",
    "test_last_frame_outlives_the_game": "view(s) of the screen outlived stop()",
    "test_a_broken_state_is_loaded": "STALL: PyBoy did not return from tick(1, True, True)",
}
WALKER = {
    "test_episodes": "LEAK: box2d: food grew by 3 per lap over 2 laps, limit 0",
    "test_reward_of_eaten_food": "reading .position of a destroyed dynamic body",
    "test_eating_on_contact": "DestroyBody inside world.Step",
}


def run(run_pytest: Any, path: str, *, on: bool) -> Any:
    return run_pytest.run("-p", "no:cacheprovider", str(EXAMPLES / path), on=on)


def assert_caught(outcome: Any, expected: dict[str, str]) -> None:
    assert set(outcome.tests) == set(expected)
    for name, text in expected.items():
        assert outcome.tests[name] in ("failed", "error"), name
        assert text in outcome.messages[name] + outcome.details[name]


def assert_all_pass(outcome: Any) -> None:
    assert outcome.code == 0, outcome.text
    assert set(outcome.tests.values()) == {"passed"}


def test_capture(run_pytest: Any) -> None:
    pytest.importorskip("pyboy")
    assert_caught(run(run_pytest, "pyboy_capture/test_capture_faulty.py", on=True), CAPTURE)
    assert_all_pass(run(run_pytest, "pyboy_capture/test_capture_mended.py", on=True))


@pytest.mark.parametrize("on", [False, True])
def test_walker(run_pytest: Any, on: bool) -> None:
    pytest.importorskip("Box2D")
    faulty = run(run_pytest, "box2d_walker/test_walker_faulty.py", on=on)
    assert_caught(faulty, WALKER)
    assert "in drop_food" in faulty.details["test_episodes"]
    assert_all_pass(run(run_pytest, "box2d_walker/test_walker_mended.py", on=on))
