"""Every verdict names the line of the user's code to look at first, in a form that needs no parsing."""

from __future__ import annotations

import textwrap

import pytest

SOURCE = """
    import os
    import threading
    import pytest

    kept = []

    def die():
        os.abort()  # test_crash

    def test_crash():
        die()

    def test_stall():
        threading.Event().wait()  # test_stall

    @pytest.mark.rl_no_leak(signals=["threads"])
    def test_resource_leak(rl_laps):
        for _ in rl_laps:
            threading.Thread(target=threading.Event().wait, daemon=True).start()  # test_resource_leak

    @pytest.mark.rl_no_leak
    def test_memory_leak(rl_laps):
        for _ in rl_laps:
            kept.append(bytearray(3000))  # test_memory_leak

    def test_probe(rl_laps, rl_probe):
        rl_probe("food", lambda: len(kept), per_lap=0)  # test_probe
        for _ in rl_laps:
            kept.append(1)

    @pytest.mark.rl_flaky(pass_rate=0.9, max_runs=10)
    def test_flaky():
        assert not os.environ  # test_flaky

    @pytest.mark.rl_isolated(memory="200MiB")
    def test_over_the_cap():
        bytearray(2**30)  # test_over_the_cap

    def test_raised():
        from pytest_rlstability.model.verdict import Verdict, VerdictFailure, Word

        def fail():
            raise VerdictFailure(Verdict(Word.STALL, "made up"))  # test_raised

        fail()
"""


@pytest.mark.parametrize("backend", ["zygote", "spawn"])
def test_verdicts_have_locations(run_pytest, backend):
    outcome = run_pytest(SOURCE, "--rl-stall-after=1s", "--rl-native=off", f"--rl-backend={backend}")
    lines = textwrap.dedent(SOURCE).splitlines()
    expected = {line.rpartition("# ")[2]: number for number, line in enumerate(lines, 1) if "# test_" in line}
    found = {}
    for event in outcome.events:
        if event["event"] == "finished" and event["verdict"]:
            location = event["verdict"]["location"]
            assert location["file"].endswith("test_it.py")
            found[event["test"].partition("::")[2]] = location["line"]
            if event["test"].endswith(("crash", "stall", "probe", "raised")):
                assert location["function"]
    assert found == expected, outcome.text
