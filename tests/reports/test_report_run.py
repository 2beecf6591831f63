"""``--rl-html`` at the end of real runs: a crash, a stall, a leak, two workers, a path that cannot be written."""

from __future__ import annotations

import json
import os
import re

import pytest

pytest.importorskip("plotly")

TROUBLES = """
    import ctypes, threading
    import pytest

    kept = []

    def test_crashes(rl_stage):
        print("frame </script><script>alert(1)</script>")
        with rl_stage("load"):
            pass
        with rl_stage("tick"):
            ctypes.string_at(0)

    @pytest.mark.rl_no_stall(after="1s")
    def test_stalls():
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    @pytest.mark.rl_no_leak(signals=["fds"], warmup=10)
    def test_leaks(rl_laps, rl_probe):
        rl_probe("opened", lambda: len(kept), limit=100_000)
        for lap in rl_laps:
            kept.append(open("/dev/null"))

    def test_fails():
        assert [1, 2] == [1, 3]

    @pytest.mark.parametrize("number", range(3))
    def test_passes(number):
        pass

    @pytest.mark.skip(reason="no GPU here")
    def test_skipped():
        pass
"""


def data_of(page):
    (island,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(island)


@pytest.mark.slow
def test_a_run_with_every_trouble_becomes_a_page(run_pytest):
    outcome = run_pytest(TROUBLES, "--rl-html=out/run.html")
    assert f"rl-stability: report written to {run_pytest.path / 'out' / 'run.html'}" in outcome.text
    data = data_of(run_pytest.path / "out" / "run.html")
    tests = {test["id"].partition("::")[2]: test for test in data["tests"]}
    assert [test["status"] for test in data["tests"]] == (
        ["CRASH", "STALL", "LEAK", "FAILED", "skipped", "passed", "passed", "passed"]
    )
    crash = tests["test_crashes"]["detail"]
    assert crash["stages"] == ["load", "tick"]
    assert "test_crashes" in crash["reproduce"]
    assert any("string_at" in text for _, text in [*crash.get("causes", ()), *crash.get("evidence", ())])
    assert any("alert(1)" in text for _, text in crash["output"])
    assert tests["test_stalls"]["detail"]["facts"]["class"] == "deadlock"
    assert tests["test_fails"]["headline"] == "assert [1, 2] == [1, 3]"
    assert "test_fails" in tests["test_fails"]["detail"]["reproduce"]
    assert "no GPU here" in tests["test_skipped"]["headline"]
    leak = tests["test_leaks"]["course"]
    assert leak["warmup"] == 10
    judged = {entry["signal"]: entry for entry in leak["judged"]}
    assert judged["fds"]["state"] == "leak"
    assert judged["fds"]["slope"] == pytest.approx(1.0, abs=0.05)
    assert judged["opened"]["most"] == 100_000
    assert max(leak["columns"]["fds"]) > min(leak["columns"]["fds"]) + 8
    assert {"rss", "opened"} <= set(leak["columns"])
    (run,) = data["runs"]
    assert run["seed"] is not None
    assert "Python" in run["platform"]


@pytest.mark.slow
def test_no_event_log_is_needed_and_workers_are_told_apart(run_pytest):
    source = "import pytest\n@pytest.mark.parametrize('n', range(8))\ndef test_it(n): pass\n"
    outcome = run_pytest(source, "--rl-stability", "--rl-html=run.html", "-n", "2", on=False)
    assert outcome.code == 0, outcome.text
    data = data_of(run_pytest.path / "run.html")
    assert len(data["tests"]) == 8
    assert {origin["worker"] for origin in data["origins"]} <= {"gw0", "gw1"}
    assert not list(run_pytest.path.glob("*.jsonl"))


@pytest.mark.skipif(os.name == "nt", reason="/dev/null is no directory elsewhere")
def test_a_page_that_cannot_be_written_is_told_and_the_run_goes_on(run_pytest):
    outcome = run_pytest("def test_it(): pass", "--rl-html=/dev/null/run.html")
    assert "rl-stability: --rl-html=/dev/null/run.html: Not a directory; no report was written" in outcome.text
    assert outcome.tests == {"test_it": "passed"}
    assert outcome.code == 1


def test_without_plotly_it_is_a_usage_error_before_any_test(run_pytest):
    run_pytest.write(
        "conftest.py",
        """
        import importlib.util
        original = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "plotly" else original(name, *rest)
        """,
    )
    outcome = run_pytest("def test_it(): pass", "--rl-html=run.html")
    assert outcome.code == 4
    assert "--rl-html needs plotly for its charts: pip install 'pytest-rlstability[report]'" in outcome.text
