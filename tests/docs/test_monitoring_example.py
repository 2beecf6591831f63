"""examples/monitoring: its soak gives every metric that its dashboard and its alerts ask for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("Box2D")
pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
ASKED_FOR = re.compile(r"\brlstability_[a-z0-9_]+")

CRASH = """
    import os

    def test_crash():
        os.abort()
"""


def names_in(text: str) -> set[str]:
    return set(ASKED_FOR.findall(text))


def expressions(dashboard: dict[str, Any]) -> list[str]:
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    return found + [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]


@pytest.mark.slow
def test_every_metric_asked_for_is_there(run_pytest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEADOW_LAPS_PER_SECOND", "50")
    crash = run_pytest.write("test_crash.py", CRASH)
    run_pytest.run("--rl-soak=7s", "--rl-prometheus=run.prom", str(crash), str(MONITORING / "test_meadow.py"))
    families = list(text_string_to_metric_families((run_pytest.path / "run.prom").read_text()))
    samples = [sample for family in families for sample in family.samples]
    told = {sample.name for sample in samples}
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    asked = names_in("\n".join(expressions(dashboard))) | names_in((MONITORING / "alerts.yml").read_text())
    assert len(asked) > 15
    # That one is told while a test runs, and this run is over.
    assert asked - told == {"rlstability_test_running"}
    bodies = [sample for sample in samples if sample.name == "rlstability_box2d_bodies"]
    assert {sample.labels["type"] for sample in bodies if sample.labels["by"] == "class"} >= {"food", "agent"}
    assert {sample.labels["type"] for sample in bodies if sample.labels["by"] == "type"} >= {"static", "dynamic"}


def test_labels_asked_for_are_those_there_are() -> None:
    """A label that is misspelt in a query matches nothing and says nothing."""
    text = (MONITORING / "alerts.yml").read_text() + "\n".join(
        expressions(json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8")))
    )
    matchers = re.findall(r"\{([^{}]*=[^{}]*)\}", text)
    labels = {name for matcher in matchers for name in re.findall(r'(\w+)=~?"', matcher)}
    assert labels <= {"test", "signal", "by", "type", "word", "name", "outcome"}


def test_body_counts_and_growth_have_a_warning_and_a_critical_limit() -> None:
    yaml = pytest.importorskip("yaml")
    rules = [
        rule for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"] for rule in group["rules"]
    ]
    for name in ("RLStabilityFoodBodies", "RLStabilityBodiesGrow", "RLStabilityMemoryGrows"):
        limits = {
            rule["labels"]["severity"]: float(rule["expr"].rpartition(">")[2])
            for rule in rules
            if rule["alert"] == name
        }
        assert set(limits) == {"warning", "critical"}
        assert limits["warning"] < limits["critical"]
    assert all("summary" in rule["annotations"] for rule in rules)


@pytest.mark.parametrize(
    "words",
    [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"], ["check", "config", "prometheus.yml"]],
)
def test_prometheus_own_tool_has_no_objections(words: list[str]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    result = subprocess.run([promtool, *words], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_is_tested() -> None:
    yaml = pytest.importorskip("yaml")
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    tested = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    fires = {one["alertname"] for test in tested for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert {rule["alert"] for group in groups for rule in group["rules"]} == fires


def test_rates_are_taken_over_the_interval_that_grafana_chooses() -> None:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    rates = [
        target["expr"] for panel in dashboard["panels"] for target in panel["targets"] if "rate(" in target["expr"]
    ]
    assert rates
    assert all("[$__rate_interval]" in rate for rate in rates)
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert places == sorted(places, key=lambda place: (place["y"], place["x"]))
    assert all(place["x"] + place["w"] <= 24 for place in places)
