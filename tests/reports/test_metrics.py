"""A run's events as metrics: names, labels, growth, and how many series there may be."""

from __future__ import annotations

import http.client
import math
import re
import socket
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_logs import event

from pytest_rlstability.kits.box2d.plugin import pytest_rlstability_metric
from pytest_rlstability.model.events import Event, Sample
from pytest_rlstability.reports.run_state import CAPACITY, History, RunState

pytest.importorskip("prometheus_client")

from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from pytest_rlstability.reports.exposition import label, registry_of
from pytest_rlstability.reports.metrics_port import MetricsPort, open_report
from pytest_rlstability.reports.prometheus import TextFile

Key = tuple[str, frozenset[tuple[str, str]]]


def key(metric: str, /, **labels: str) -> Key:
    return metric, frozenset(labels.items())


def read(families: Iterable[Any]) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for family in families:
        for sample in family.samples:
            one = key(sample.name, **sample.labels)
            assert one not in found, f"{one} twice"
            found[one] = sample.value
    return found


def both_forms(state: RunState) -> tuple[dict[Key, float], dict[Key, float]]:
    registry = registry_of(state, pytest_rlstability_metric)
    text = read(parse_text(generate_latest(registry).decode()))
    openmetrics = read(parse_openmetrics(generate_openmetrics(registry).decode()))
    return text, openmetrics


def state_of(*events: Event) -> RunState:
    state = RunState()
    for one in events:
        state.handle(one)
    return state


def samples(test: str, count: int, seconds_per_lap: float = 1.0, **per_lap: float) -> Iterator[Event]:
    for lap in range(count):
        values = {name.replace("__", " "): 100.0 + rate * lap for name, rate in per_lap.items()}
        yield event("sample", test, lap=lap, seconds=lap * seconds_per_lap, values=values)


def finished(test: str, outcome: str = "passed", word: str = "", **fields: object) -> Event:
    verdict = {"word": word, "headline": "", "sections": [], "facts": {}} if word else None
    return event("finished", test, outcome=outcome, verdict=verdict, **fields)


# Names, labels and values


def test_both_parsers_read_the_same() -> None:
    state = state_of(
        event("session", seed=7, platform="Linux", versions="pytest 9", host="vm"),
        event("started", "t::running"),
        *samples("t::running", 12, rss=1000.0, fds=0.5, food=2.0, box2d__dynamic=1.0, box2d__joints=0.0),
        event("started", "t::crash"),
        finished("t::crash", "failed", "CRASH", duration=1.5, peak_memory=5000, laps=3),
    )
    text, openmetrics = both_forms(state)
    assert text == openmetrics
    running = {"test": "t::running"}
    expected = {
        key("rlstability_memory_bytes", signal="rss", **running): 100.0 + 11_000,
        key("rlstability_memory_growth_bytes_per_lap", signal="rss", **running): 1000.0,
        key("rlstability_memory_growth_bytes_per_minute", signal="rss", **running): 60_000.0,
        key("rlstability_resources", signal="fds", **running): 105.5,
        key("rlstability_resources_growth_per_lap", signal="fds", **running): 0.5,
        key("rlstability_probe", name="food", **running): 122.0,
        key("rlstability_probe_growth_per_minute", name="food", **running): 120.0,
        key("rlstability_box2d_bodies", by="type", type="dynamic", **running): 111.0,
        key("rlstability_box2d_bodies_growth_per_lap", by="type", type="dynamic", **running): 1.0,
        key("rlstability_box2d_joints", **running): 100.0,
        key("rlstability_lap_seconds", **running): 1.0,
        key("rlstability_laps_total", **running): 11.0,
        key("rlstability_test_running", **running): 1.0,
        key("rlstability_memory_peak_bytes", test="t::crash"): 5000.0,
        key("rlstability_test_duration_seconds", test="t::crash"): 1.5,
        key("rlstability_test_failed", test="t::crash", word="CRASH"): 1.0,
        key("rlstability_verdicts_total", word="CRASH"): 1.0,
        key("rlstability_verdicts_total", word="LEAK"): 0.0,
        key("rlstability_tests_total", outcome="failed"): 1.0,
        key("rlstability_tests_running"): 1.0,
        key("rlstability_run_active"): 1.0,
    }
    assert {one: text.get(one) for one in expected} == expected


def test_bodies_are_told_by_type_by_class_and_together() -> None:
    state = state_of(event("started", "t"), *samples("t", 2, box2d__bodies=0.0, box2d__static=0.0, box2d__food=0.0))
    text, _ = both_forms(state)
    bodies = {labels for name, labels in text if name == "rlstability_box2d_bodies"}
    kinds = {(dict(labels)["by"], dict(labels)["type"]) for labels in bodies}
    assert kinds == {("all", "all"), ("type", "static"), ("class", "food")}


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\\nb", "ünï", "{}=,", "", " ", "\\", 'x"} 1\nevil 2'])
def test_names_come_back_as_they_were(name: str) -> None:
    state = state_of(event("started", name), event("sample", name, lap=1, seconds=1, values={name or "x": 3.0}))
    for form in both_forms(state):
        assert form[key("rlstability_probe", test=name, name=name or "x")] == 3.0


def test_names_that_cannot_be_encoded_or_are_very_long() -> None:
    assert label("a\udcffb") == "a\\udcffb"
    long, longer = "x" * 5000, "x" * 5001
    assert len(label(long)) == 400
    assert label(long) != label(longer)


def test_what_is_no_number_is_not_told() -> None:
    state = state_of(event("started", "t"), event("sample", "t", lap=1, seconds=1, values={"a": math.nan, "b": 1.0}))
    text, _ = both_forms(state)
    assert [dict(labels)["name"] for name, labels in text if name == "rlstability_probe"] == ["b"]


def test_growth_per_minute_is_not_guessed_from_less_than_five_seconds() -> None:
    names = {name for name, _ in both_forms(state_of(event("started", "t"), *samples("t", 30, 0.1, food=1.0)))[0]}
    assert "rlstability_probe_growth_per_lap" in names
    assert "rlstability_probe_growth_per_minute" not in names


# How many series


def test_ten_thousand_tests_do_not_become_ten_thousand_series() -> None:
    state = RunState(most_tests=50)
    for number in range(10_000):
        state.handle(event("started", f"t{number}"))
        if number % 3 == 0:
            for sample in samples(f"t{number}", 3, rss=1.0):
                state.handle(sample)
        state.handle(finished(f"t{number}", "failed" if number in (4000, 9000) else "passed"))
    text, _ = both_forms(state)
    tests = {dict(labels)["test"] for _, labels in text if "test" in dict(labels)}
    assert len(tests) == 50
    assert {"t4000", "t9000"} <= tests, "failures stay longest"
    assert text[key("rlstability_tests_total", outcome="passed")] == 9998
    assert text[key("rlstability_tests_dropped_total")] == 3334 + 2 - 50 - 1  # t9000 has samples and failed


def test_a_test_that_passed_and_was_not_sampled_is_not_told() -> None:
    state = state_of(event("started", "t"), finished("t"), event("started", "u"), finished("u", "skipped"))
    assert not [labels for _, labels in both_forms(state)[0] if "test" in dict(labels)]


def test_tests_that_run_are_never_dropped() -> None:
    state = RunState(most_tests=2)
    for number in range(5):
        state.handle(event("started", f"t{number}"))
    with state.reading() as tests:
        assert len(tests) == 5


def test_a_test_that_runs_again_starts_without_its_old_values() -> None:
    state = state_of(event("started", "t"), *samples("t", 20, food=1.0), finished("t", "failed"), event("started", "t"))
    with state.reading() as (test,):
        assert (test.running, test.failed, test.values, test.laps) == (True, False, {}, 0)


# The history of a test


def test_a_long_history_stays_short_and_keeps_its_slope() -> None:
    history = History()
    for lap in range(100_000):
        values = {"rss": 3.0 * lap, **({"late": 2.0 * lap} if lap > 50_000 else {})}
        history.handle(Sample(lap=lap, seconds=lap * 0.001, values=values))
    assert len(history) <= CAPACITY
    growth, late = history.growth("rss"), history.growth("late")
    assert growth is not None
    assert late is not None
    assert (growth.per_lap, late.per_lap) == (pytest.approx(3.0), pytest.approx(2.0))
    assert growth.per_minute == pytest.approx(180_000)
    assert history.lap_seconds() == pytest.approx([0.001] * len(history.lap_seconds()))


# The file and the port


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while not re.search(text, path.read_text()):
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.01)


def test_the_file_is_refreshed_while_the_run_lasts(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.prom"
    file = TextFile(path, refresh_seconds=0.01)
    assert "rlstability_tests_running 0.0" in path.read_text()
    file.handle(event("started", "t"))
    wait_for(path, "rlstability_tests_running 1.0")
    file.handle(finished("t"))
    wait_for(path, r'rlstability_tests_total{outcome="passed"} 1.0')
    file.close()
    assert "rlstability_run_active 0.0" in path.read_text()
    assert [one.name for one in path.parent.iterdir()] == ["run.prom"], "nothing half-written stays behind"
    assert not file.trouble


def test_a_file_that_cannot_be_written_is_trouble_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    file = TextFile(tmp_path / "taken")
    file.handle(event("started", "t"))
    file.close()
    assert file.trouble.startswith(f"--rl-prometheus={tmp_path / 'taken'}: Is a directory")
    assert list(file.lines()) == []
    assert [one.name for one in tmp_path.iterdir()] == ["taken"]


def fetch(address: str, accept: str) -> tuple[str, str]:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_the_port_speaks_both_forms() -> None:
    port = MetricsPort(0)
    try:
        port.handle(event("started", "t"))
        kind, text = fetch(port.address, "text/plain")
        assert kind.startswith("text/plain")
        assert read(parse_text(text))[key("rlstability_tests_running")] == 1
        kind, text = fetch(port.address, "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert read(parse_openmetrics(text))[key("rlstability_tests_running")] == 1
    finally:
        port.close()
    with pytest.raises(OSError):
        fetch(port.address, "text/plain")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:{}", 200), ("127.0.0.1:{}", 200), ("[::1]:{}", 200), ("evil.example:{}", 403),
     ("localhost.evil.example", 403), ("[", 403), ("", 403)],
)  # fmt: skip
def test_only_names_of_this_machine_are_answered(host: str, status: int) -> None:
    port = MetricsPort(0)
    try:
        port.handle(event("started", "t"))
        number = urllib.parse.urlsplit(port.address).port
        connection = http.client.HTTPConnection("127.0.0.1", number, timeout=20)
        connection.request("GET", "/metrics", headers={"Host": host.format(number)})
        answer = connection.getresponse()
        assert answer.status == status
        assert (b"rlstability_tests_running" in answer.read()) == (status == 200)
    finally:
        port.close()


def test_a_port_that_is_taken_is_trouble_and_nothing_else() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        port = MetricsPort(number)
        port.handle(event("started", "t"))
        port.close()
    assert port.trouble == (
        f"--rl-metrics-port={number}: Address already in use; there are no live metrics in this run"
    )


class Config:
    """As much of pytest's as a report asks for."""

    pluginmanager = pytest.PytestPluginManager()

    def __init__(self, port: str) -> None:
        self._port = port

    def getoption(self, name: str) -> str:
        assert name == "rl_metrics_port"
        return self._port


def open_port(given: str) -> MetricsPort | None:
    return open_report(Config(given))  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["http", "-1", "65536", "", "٣"])
def test_a_wrong_port_is_a_usage_error(given: str) -> None:
    expected = f"--rl-metrics-port={given} is not a port from 0 (any free one) to 65535"
    with pytest.raises(pytest.UsageError, match=re.escape(expected)):
        open_port(given)


def test_port_0_is_any_free_port() -> None:
    port = open_port("0")
    assert port is not None
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d+/metrics", port.address)
    port.close()


def test_a_missing_library_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(
        pytest.UsageError, match=r"--rl-metrics-port needs .*: pip install 'pytest-rlstability\[report\]'"
    ):
        open_port("0")
