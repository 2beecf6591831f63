"""The fixture ``rl_fuzz`` in a real pytest, with and without ``--rl-stability``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import RunPytest

pytest.importorskip("gymnasium")
if not hasattr(os, "fork"):
    pytest.skip("attempts are forked", allow_module_level=True)

TEST = """
    import pytest
    from planted_envs import CrashOnPair, Innocent, NanLater

    @pytest.mark.rl_isolated
    def test_crash(rl_fuzz):
        rl_fuzz(CrashOnPair, seed=1)

    def test_nan(rl_fuzz):
        rl_fuzz(NanLater, seed=1)

    def test_innocent(rl_fuzz):
        assert "steps" in rl_fuzz(lambda: Innocent(), duration="1s")
"""


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_fault_fails_the_test_with_the_shortest_calls(run_pytest: RunPytest, on: bool) -> None:
    run_pytest.write("planted_envs.py", Path(__file__).with_name("planted_envs.py").read_text())
    outcome = run_pytest(TEST, "--rl-native=off" if on else "-q", on=on)
    assert outcome.tests == {"test_crash": "failed", "test_nan": "failed", "test_innocent": "passed"}
    assert "CRASH: SIGSEGV in step()" in outcome.messages["test_crash"]
    assert "env.step(4)" in outcome.details["test_crash"]
    assert "NAN: the observation of step() has a NaN" in outcome.messages["test_nan"]
