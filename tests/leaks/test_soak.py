"""``rl_soak`` in a real pytest: short soaks that end well and badly, seen while they run, and cut short."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import Outcome, RunPytest

SKIPPED = """
    import pytest

    @pytest.mark.rl_soak("2s")
    def test_soak(rl_laps):
        for lap in rl_laps:
            pass

    def test_plain():
        pass
"""


@pytest.mark.parametrize("on", [False, True])
def test_without_the_flag_a_soak_is_skipped_with_that_reason(run_pytest: RunPytest, on: bool) -> None:
    outcome = run_pytest(SKIPPED, on=on)
    assert outcome.tests == {"test_soak": "skipped", "test_plain": "passed"}
    assert outcome.messages["test_soak"] == "rl_soak: runs only under --rl-soak (or --rl-soak=8h)"
    assert "unchecked" not in outcome.text, "what is skipped does not run unchecked"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rl-soak=soon"], "--rl-soak=soon: expected a duration such as"),
        (["--rl-soak", "test_it.py"], "a bare --rl-soak (each test its own duration) goes after the tests' paths"),
    ],
)
def test_a_wrong_duration_is_a_usage_error(run_pytest: RunPytest, arguments: list[str], said: str) -> None:
    outcome = run_pytest(SKIPPED, *arguments, on=False)
    assert outcome.code == 4
    assert said in outcome.text


def test_a_wrong_marker_is_a_usage_error(run_pytest: RunPytest) -> None:
    outcome = run_pytest(SKIPPED.replace('"2s"', 'every="never"'))
    assert outcome.code == 4
    assert "test_it.py:4: test_soak: rl_soak: every='never' is not a duration such as" in outcome.text


SOAKS = """
    import ctypes, os, time
    from collections import deque
    import pytest

    KEPT = []

    @pytest.mark.rl_soak
    @pytest.mark.timeout(1)
    def test_clean(rl_laps):
        for lap in rl_laps:
            time.sleep(0.002)

    @pytest.mark.rl_soak(every="100ms")
    def test_buffer(rl_laps):
        frames = deque(maxlen=100_000)
        for lap in rl_laps:
            time.sleep(0.002)
            frames.append(bytearray(900))

    @pytest.mark.rl_soak
    def test_whole(tmp_path):
        time.sleep(0.002)

    @pytest.mark.rl_soak
    @pytest.mark.rl_isolated(memory="1GiB")
    def test_list(rl_laps):
        for lap in rl_laps:
            time.sleep(0.002)
            KEPT.append(bytes(20_000))

    @pytest.mark.rl_soak
    def test_crash(rl_laps, rl_stage):
        with rl_stage("train"):
            for lap in rl_laps:
                time.sleep(0.002)
                KEPT.append(bytes(20_000))
                if lap == 150:
                    ctypes.string_at(0)

    @pytest.mark.rl_soak
    @pytest.mark.rl_no_stall(after="6s")
    def test_stall(rl_laps):
        for lap in rl_laps:
            time.sleep(0.002 if lap < 100 else 60)

    @pytest.mark.rl_soak
    def test_raises(rl_laps):
        for lap in rl_laps:
            time.sleep(0.002)
            assert lap < 100
"""


@pytest.mark.slow
def test_soaks_side_by_side(run_pytest: RunPytest) -> None:
    soaked = run_pytest(SOAKS, "--rl-soak=2.5s", "-m", "rl_soak", "-n", "3", "--dist=worksteal", "--rl-native=off")
    check_culprits_fail_and_innocents_pass(soaked)
    check_a_soak_takes_the_time_of_the_flag_whatever_its_timeout(soaked)
    check_growth_has_a_forecast(soaked)
    check_a_crash_and_a_stall_tell_lap_stage_and_memory(soaked)
    check_every_soak_has_a_closing_line(soaked)
    check_words_of_workers_arrive_while_they_run(soaked)


def of(outcome: Outcome, kind: str, test: str) -> list[dict[str, object]]:
    return [event for event in outcome.events if event["event"] == kind and event["test"] == f"test_it.py::{test}"]


def check_culprits_fail_and_innocents_pass(soaked: Outcome) -> None:
    assert soaked.tests == {
        "test_clean": "passed",
        "test_buffer": "passed",
        "test_whole": "passed",
        "test_list": "failed",
        "test_crash": "failed",
        "test_stall": "failed",
        "test_raises": "failed",
    }, soaked.text
    assert "KEPT.append(bytes(20_000))" in soaked.messages["test_list"]
    assert "held by test_it.KEPT" in soaked.messages["test_list"]


def check_a_soak_takes_the_time_of_the_flag_whatever_its_timeout(soaked: Outcome) -> None:
    for test in ("test_clean", "test_buffer", "test_whole", "test_list"):
        (finished,) = of(soaked, "finished", test)
        soak = finished["soak"]
        assert isinstance(soak, dict)
        assert soak["duration"] == 2.5
        assert soak["seconds"] >= 2.5
        assert not soak["ended_early"]
        facts = soaked.properties[test]
        assert int(facts["rl_stability.laps"]) == soak["laps"] > 50
        assert float(facts["rl_stability.soak_lap_seconds_last"]) >= 0.002
        assert float(facts["rl_stability.soak_memory"]) > 2**20


def check_growth_has_a_forecast(soaked: Outcome) -> None:
    forecast = r"memory [\d.]+ MiB, [\d.]+ [MG]iB more per hour: the limit of 1.0 GiB would be used up in about \d"
    assert re.search(forecast, soaked.details["test_list"])
    assert float(soaked.properties["test_list"]["rl_stability.soak_hours_to_limit"]) > 0
    assert "soak_hours_to_limit" not in " ".join(soaked.properties["test_clean"])


def check_a_crash_and_a_stall_tell_lap_stage_and_memory(soaked: Outcome) -> None:
    assert soaked.messages["test_crash"] == "CRASH: SIGSEGV in call, stage 'train', lap 150"
    assert re.match(r"STALL: blocked, no progress for .* in call, lap 100", soaked.messages["test_stall"])
    for test in ("test_crash", "test_stall"):
        memory = soaked.details[test].partition("Memory:\n")[2].splitlines()
        assert re.match(r"  [\d.]+ MiB [▁-█]+ [\d.]+ MiB resident", memory[0])
        assert re.match(r"  after +[\d.]+ m?s  lap +\d+ +[\d.]+ MiB", memory[3])
    assert "Memory until lap 100" in soaked.text, "an exception has the history too"


def check_every_soak_has_a_closing_line(soaked: Outcome) -> None:
    for test in ("test_clean", "test_whole", "test_crash"):
        assert re.search(rf"rl-stability: soak test_it.py::{test}: [\d.]+ s of 2.5 s, \d+ laps; laps ", soaked.text)


def check_words_of_workers_arrive_while_they_run(soaked: Outcome) -> None:
    """Events that waited for a test's report would lie together in the log, whatever ran beside it."""
    course = [event["test"] for event in soaked.events if event["event"] == "sample"]
    changes = sum(one != other for one, other in pairwise(course))
    assert changes > 20
    assert {event["worker"] for event in soaked.events if event["event"] == "sample"} == {"gw0", "gw1", "gw2"}
    assert re.search(r"^soak test_it.py::test_clean: ", soaked.text, re.MULTILINE)
    assert re.search(r"^SLOW test_it.py::test_stall: no progress for", soaked.text, re.MULTILINE)


LONG = """
    import os, time
    import pytest

    @pytest.mark.rl_soak("10min")
    def test_it(rl_laps, rl_stage):
        with rl_stage("train"):
            for lap in rl_laps:
                time.sleep(0.002)
"""


def wait_for_samples(path: Path, process: subprocess.Popen[str]) -> None:
    """Until a soak has gone on for longer than from one note of its progress to the next."""
    while not path.exists() or not re.search(r'"seconds": ([3-9]|\d\d)\.', path.read_text()):
        assert process.poll() is None
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_whatever_ends_pytest_leaves_a_log_and_no_process(run_pytest: RunPytest, name: str) -> None:
    run_pytest.write("test_it.py", LONG)
    log = run_pytest.path / "log.jsonl"
    command = [sys.executable, "-m", "pytest", "--rl-soak", f"--rl-jsonl={log}", "-p", "no:cacheprovider"]
    process = subprocess.Popen(command, cwd=run_pytest.path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    wait_for_samples(log, process)
    process.send_signal(getattr(signal, name))
    output, _ = process.communicate(timeout=60)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    (started,) = [event for event in events if event["event"] == "started"]
    gone_by = time.monotonic() + 20
    while Path(f"/proc/{started['pid']}").exists():
        assert time.monotonic() < gone_by
        time.sleep(0.05)
    if name == "SIGKILL":
        assert events[-1]["event"] == "sample"
        return
    assert process.returncode == 2
    assert name == "SIGINT" or "Exit: SIGTERM" in output
    last = events[-1]
    assert (last["event"], last["outcome"], last["stages"]) == ("finished", "interrupted", ["train"])
    assert last["laps"] > 20
    assert re.search(r"rl-stability: soak test_it.py::test_it: interrupted, too early to say; .* of 10 min", output)


@pytest.mark.slow
def test_on_a_terminal_the_line_is_rewritten(run_pytest: RunPytest) -> None:
    pty = pytest.importorskip("pty")
    run_pytest.write("test_it.py", LONG)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "--rl-soak=2s", "-p", "no:cacheprovider"],
        cwd=run_pytest.path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "150", "TERM": "xterm"},
    )
    os.close(theirs)
    output = b""
    while data := read_terminal(ours):
        output += data
    os.close(ours)
    assert process.wait() == 0
    drawn = [text for text in output.decode().split("\r") if text.startswith("soak test_it.py::test_it: ")]
    assert re.match(
        r"soak test_it.py::test_it: [\d.]+ m?s of 2 s, .*, [\d.]+ MiB, lap \d+, [\d.]+/s, .* left", drawn[-1]
    )
    assert not any("\n" in text.rstrip("\n") for text in drawn), "one line, in place"


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end was closed
        return b""
