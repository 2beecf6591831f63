"""--rl-prometheus and --rl-metrics-port in real runs."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

MIXED = """
    import os
    import pytest

    kept = []

    @pytest.mark.rl_no_leak
    def test_leak(rl_laps, rl_probe):
        rl_probe("food", lambda: len(kept), limit=10**9)
        for _ in rl_laps:
            kept.append(bytearray(2000))

    def test_crash():
        os.abort()

    @pytest.mark.parametrize("name", ['a"b\\\\c\\nd'])
    def test_odd(name):
        assert not name

    def test_fine():
        pass
"""


def read(path: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def named_in(samples: list[Any]) -> set[str]:
    return {sample.labels["test"].partition("::")[2] for sample in samples}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n2"]])
def test_the_file_tells_what_happened(run_pytest: Any, workers: list[str]) -> None:
    if workers:
        pytest.importorskip("xdist")
    outcome = run_pytest(MIXED, "--rl-prometheus=run.prom", *workers)
    metrics = read(run_pytest.path / "run.prom")
    assert f"rl-stability: metrics in {run_pytest.path / 'run.prom'}" in outcome.text
    words = {sample.labels["word"]: sample.value for sample in metrics["rlstability_verdicts_total"]}
    assert words == {"CRASH": 1, "LEAK": 1, "STALL": 0, "FLAKY": 0, "MODEL": 0}
    outcomes = {sample.labels["outcome"]: sample.value for sample in metrics["rlstability_tests_total"]}
    assert outcomes == {"passed": 1, "failed": 3, "skipped": 0}
    odd = 'test_odd[a"b\\\\c\\nd]'
    assert named_in(metrics["rlstability_test_failed"]) == {"test_leak", "test_crash", odd}
    assert "test_fine" not in named_in(metrics["rlstability_test_duration_seconds"])
    (food,) = metrics["rlstability_probe_growth_per_lap"]
    assert (food.labels["name"], food.value) == ("food", pytest.approx(1.0))
    assert {sample.labels["signal"] for sample in metrics["rlstability_memory_bytes"]} >= {"rss", "malloc"}
    assert [sample.value for sample in metrics["rlstability_run_active"]] == [0]
    if promtool := shutil.which("promtool"):
        text = (run_pytest.path / "run.prom").read_bytes()
        checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, b"")


SCRAPED = """
    import os
    import urllib.request

    def test_is_seen():
        address = "http://127.0.0.1:" + os.environ["PORT_OF_METRICS"] + "/metrics"
        with urllib.request.urlopen(address, timeout=20) as answer:
            text = answer.read().decode()
        assert 'rlstability_test_running{test="test_it.py::test_is_seen"} 1.0' in text
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_port_answers_while_the_run_lasts(run_pytest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("PORT_OF_METRICS", str(port))
    outcome = run_pytest(SCRAPED, f"--rl-metrics-port={port}", "-q", "-W", "error:This process:DeprecationWarning")
    assert outcome.tests == {"test_is_seen": "passed"}
    assert outcome.code == 0, outcome.text
    assert f"rl-stability: live metrics at http://127.0.0.1:{port}/metrics" in outcome.text, "shown even with -q"
    with socket.socket() as later:
        assert later.connect_ex(("127.0.0.1", port)) != 0


PASSES = """
    def test_passes():
        pass
"""


def test_trouble_with_either_is_told_and_the_run_goes_on(run_pytest: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        outcome = run_pytest(PASSES, f"--rl-metrics-port={port}", "--rl-prometheus=.")
    assert outcome.tests == {"test_passes": "passed"}
    assert outcome.code == 1
    line = f"rl-stability: --rl-metrics-port={port}: Address already in use; there are no live metrics in this run"
    assert outcome.text.count(line) == 2, "at once and at the end"
    assert "Is a directory; the metrics are not written" in outcome.text


def test_a_missing_library_is_a_usage_error_with_the_line_to_type(run_pytest: Any) -> None:
    run_pytest.write("prometheus_client.py", "raise ImportError")
    outcome = run_pytest(PASSES, "--rl-prometheus=run.prom")
    assert outcome.code == 4
    assert "--rl-prometheus needs prometheus-client: pip install 'pytest-rlstability[report]'" in outcome.text
