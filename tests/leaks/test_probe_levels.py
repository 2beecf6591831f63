"""``rl_probe`` with levels: a test can promise that the clean-up works."""

from __future__ import annotations

from conftest import RunPytest

SOURCE = """
    def fill(rl_probe, rl_laps, clean_up, food):
        rl_probe("food", lambda: len(food), warning=5, critical=8, on_critical=clean_up)
        for lap in rl_laps:
            food.append(lap)

    def test_works(rl_probe, rl_laps):
        food = []
        fill(rl_probe, rl_laps, food.clear, food)
        assert len(food) < 9

    def test_useless(rl_probe, rl_laps):
        food = []
        fill(rl_probe, rl_laps, lambda: food.pop() and food.append(0), food)

    def test_missing(rl_probe, rl_laps):
        fill(rl_probe, rl_laps, None, [])
"""


def test_a_clean_up_must_bring_the_value_below_its_level(run_pytest: RunPytest) -> None:
    outcome = run_pytest(SOURCE)
    assert outcome.tests == {"test_works": "passed", "test_useless": "failed", "test_missing": "failed"}
    assert "probe food reached 8 (critical level 8); the clean-up freed 0" in outcome.messages["test_useless"]
    assert "LEAK: probe food reached 8 (critical level 8)" in outcome.messages["test_missing"]


def test_without_the_switch_nothing_is_judged(run_pytest: RunPytest) -> None:
    assert set(run_pytest(SOURCE, on=False).tests.values()) == {"passed"}
