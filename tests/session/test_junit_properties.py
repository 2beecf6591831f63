"""Every rl_stability.* property that is promised, on the verdicts it belongs to."""

from __future__ import annotations

from typing import Any

import pytest

VERDICTS = """
    import os
    import threading
    import pytest

    kept = []

    def test_crash(rl_laps, rl_stage):
        for lap in rl_laps:
            with rl_stage("step"):
                if lap == 3:
                    os.abort()

    @pytest.mark.rl_no_leak(signals=["threads"], limit=0)
    def test_leak(rl_laps):
        for _ in rl_laps:
            threading.Thread(target=threading.Event().wait, daemon=True).start()

    def test_probe(rl_laps, rl_probe):
        rl_probe("food", lambda: len(kept), per_lap=0)
        for _ in rl_laps:
            kept.append(1)

    @pytest.mark.rl_no_stall(after="1s")
    def test_stall(rl_laps, rl_stage):
        for lap in rl_laps:
            with rl_stage("wait"):
                if lap == 2:
                    threading.Lock().acquire() and threading.Event().wait()

    @pytest.mark.rl_flaky(pass_rate=0.9, max_runs=10)
    def test_flaky():
        os.abort()

    def test_fine():
        pass
"""

ALWAYS: dict[str, str | None] = {"seed": "7", "backend": None}
EXPECTED: dict[str, dict[str, str | None]] = {
    "test_crash": {"verdict": "CRASH", "class": "signal", "signal": "SIGABRT", "stage": "step", "laps": "3"},
    "test_leak": {
        "verdict": "LEAK",
        "class": "threads",
        "signal": "threads",
        "limit": None,
        "per_lap": None,
        "laps": None,
    },
    "test_probe": {"verdict": "LEAK", "class": "probe", "signal": "food", "per_lap": "1.0", "limit": "0", "laps": "20"},
    "test_stall": {"verdict": "STALL", "class": None, "stage": "wait", "limit": "1.0", "laps": "2"},
    "test_flaky": {"verdict": "FLAKY", "limit": "0.9", "passes": "0"},
}


def test_every_verdict_has_its_properties(run_pytest: Any) -> None:
    outcome = run_pytest(VERDICTS, "--rl-seed=7")
    told = {
        test: {name.removeprefix("rl_stability."): value for name, value in properties.items()}
        for test, properties in outcome.properties.items()
    }
    assert set(told.pop("test_fine")) == set(ALWAYS)
    assert set(told) == set(EXPECTED)
    for test, expected in EXPECTED.items():
        for name, value in {**ALWAYS, "phase": "call", "signature": None, **expected}.items():
            assert told[test].get(name), f"{test} has no {name}: {told[test]}"
            assert value is None or told[test][name] == value, (test, name)
    assert {name for properties in told.values() for name in properties} >= {
        *("verdict", "class", "signal", "phase", "stage", "signature"),
        *("per_lap", "limit", "laps", "seed", "backend"),
    }
    assert "test_leak" in told["test_leak"]["signature"]


@pytest.mark.slow
def test_signatures_are_the_same_in_every_run(run_pytest: Any) -> None:
    source = """
        def test_probe(rl_laps, rl_probe):
            kept = []
            rl_probe("food", lambda: len(kept), per_lap=0)
            for _ in rl_laps:
                kept.append(1)
    """
    one, two = (run_pytest(source).properties["test_probe"]["rl_stability.signature"] for _ in range(2))
    assert one == two
    assert one.startswith("leak food call test_probe ")
