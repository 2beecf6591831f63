"""Event logs read back: whole, cut off anywhere, damaged, appended to, from many machines."""

from __future__ import annotations

import json

import pytest
from report_logs import Log

from pytest_rlstability.model.events import Finished, Outcome
from pytest_rlstability.reports import log_reader as reading
from pytest_rlstability.reports.log_reader import UnreadableLogError, read_runs


@pytest.fixture(params=["orjson", "json"])
def either_parser(request, monkeypatch):
    if request.param == "orjson":
        pytest.importorskip("orjson")
    else:
        monkeypatch.setattr(reading, "loads", json.loads)


def test_a_run_is_read(tmp_path, either_parser):
    log = Log()
    log.leak("t.py::test_leaks")
    log.test("t.py::test_passes")
    (run,) = read_runs([log.write(tmp_path / "run.jsonl")])
    assert run.host == "here"
    assert run.session.seed == 7
    assert run.damaged == 0
    leaks, passes = run.tests.values()
    assert (leaks.nodeid, leaks.last.warmup, leaks.last.course.samples) == ("t.py::test_leaks", 20.0, 60)
    assert [entry.signal for entry in leaks.last.judged] == ["fds", "malloc"]
    assert passes.last.finished.outcome is Outcome.PASSED


def test_a_log_cut_off_anywhere_is_read(tmp_path):
    log = Log()
    log.leak("t.py::test_leaks", laps=4, warmup=2)
    log.test("t.py::test_passes")
    size = sum(len(line) for line in log.lines)
    for cut in range(0, size - len(log.lines[0]), 37):
        (run,) = read_runs([log.write(tmp_path / "run.jsonl", cut=cut)])
        assert run.damaged <= 1
        assert run.session.seed == 7


def test_what_never_finished_is_known_by_its_samples(tmp_path):
    log = Log()
    log.started("t.py::test_dies")
    for lap in range(3):
        log.add("sample", "t.py::test_dies", lap=lap, values={"rss": 1e6})
    (run,) = read_runs([log.write(tmp_path / "run.jsonl")])
    (test,) = run.tests.values()
    assert test.last.finished is None
    assert list(test.last.course.laps) == [0, 1, 2]
    assert list(test.last.course.seconds) == [1, 2, 3]  # by the events' clock, from the start


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "[1, 2]",
        "\0\0\0\0",
        "{}",
        '{"event": "sample", "schema": 1, "test": "t.py::test_it", "time": 1, "values": {"rss": "much"}}',
        '{"event": "sample", "schema": 1, "test": "t.py::test_it", "time": "noon", "values": {"rss": 1}}',
        '{"event": "sample", "schema": 1, "test": 7, "time": 1, "values": {"rss": 1}}',
        '{"event": "finished", "schema": 1, "test": "t.py::test_it"}',
        '{"event": "finished", "schema": "one", "test": "t.py::test_it", "time": 1}',
        "[" * 5000,
    ],
)
def test_a_damaged_line_is_counted_and_the_rest_is_read(tmp_path, line, either_parser):
    log = Log()
    log.started("t.py::test_it")
    for lap in range(3):
        log.add("sample", "t.py::test_it", lap=lap, values={"rss": 1e6})
        log.lines.append(line + "\n")
    log.add("finished", "t.py::test_it", outcome="passed")
    (run,) = read_runs([log.write(tmp_path / "run.jsonl")])
    assert run.damaged == 3
    test = run.tests["t.py::test_it", "here", "main"]
    assert test.last.course.samples == 3
    assert test.last.finished.outcome is Outcome.PASSED


def test_what_stands_beside_a_damaged_line_is_read_once(tmp_path):
    log = Log()
    for _ in range(3):
        log.add("finished", "t.py::test_it", outcome="passed")
    log.lines[2] = log.lines[2].replace('"time": ', '"time": "noon", "was": ')
    (run,) = read_runs([log.write(tmp_path / "run.jsonl")])
    (test,) = run.tests.values()
    assert (run.damaged, len(test.attempts)) == (1, 2)


def test_keys_and_kinds_nobody_knows_are_ignored(tmp_path):
    log = Log()
    log.add("weather", "", sunny=True)
    log.test("t.py::test_it", future=[1, {"a": 2}], stages=5, verdict="odd", output=["odd"])
    (run,) = read_runs([log.write(tmp_path / "run.jsonl")])
    (test,) = run.tests.values()
    assert run.damaged == 0
    assert test.last.finished == Finished(
        test="t.py::test_it", time=test.last.finished.time, host="here", worker="main", outcome="passed", duration=0.5
    )


def test_not_a_number_in_a_sample_does_no_harm(tmp_path, either_parser):
    log = Log()
    log.started("t.py::test_it")
    log.add("sample", "t.py::test_it", lap=1, values={"rss": float("nan"), "fds": 3.0})
    log.add("sample", "t.py::test_it", lap=2, values={"rss": 5.0, "fds": float("inf")})
    (run,) = read_runs([log.write(tmp_path / "run.jsonl")])
    assert run.damaged == 0
    assert run.tests["t.py::test_it", "here", "main"].last.course.samples == 2


def test_runs_written_one_after_the_other_stay_apart(tmp_path):
    first, second = Log(), Log("there")
    first.test("t.py::test_it")
    second.test("t.py::test_it", "failed")
    first.lines += second.lines
    runs = read_runs([first.write(tmp_path / "run.jsonl")])
    assert [run.host for run in runs] == ["here", "there"]
    assert [len(run.tests) for run in runs] == [1, 1]


def test_the_same_test_on_two_workers_and_again_on_one(tmp_path):
    log = Log()
    log.test("t.py::test_it", "failed")
    log.test("t.py::test_it")
    log.origin["worker"] = "gw1"
    log.test("t.py::test_it")
    (run,) = read_runs([log.write(tmp_path / "run.jsonl")])
    again, elsewhere = run.tests.values()
    assert [attempt.finished.outcome for attempt in again.attempts] == ["failed", "passed"]
    assert (elsewhere.worker, len(elsewhere.attempts)) == ("gw1", 1)


@pytest.mark.parametrize("text", ["", "\n\n", "hello\n", "<html></html>", '{"a": 1}\n', "PK\x03\x04"])
def test_what_is_no_event_log_is_refused(tmp_path, text):
    path = tmp_path / "other.txt"
    path.write_text(text)
    with pytest.raises(UnreadableLogError, match="not an event log"):
        read_runs([path])


def test_a_newer_schema_is_refused_and_says_what_to_do(tmp_path):
    log = Log()
    log.lines[0] = log.lines[0].replace('"schema": 1', '"schema": 2')
    with pytest.raises(UnreadableLogError, match=r"schema 2; this one reads schema 1.*pip install -U"):
        read_runs([log.write(tmp_path / "run.jsonl")])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UnreadableLogError, match=r"nowhere\.jsonl: No such file"):
        read_runs([tmp_path / "nowhere.jsonl"])
