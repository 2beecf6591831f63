"""Every word right on systems other than Linux: ``corpus.py`` there, in groups that share a run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import Outcome, RunPytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "linux", reason="other tests do this on Linux; tox -e wine or like-mac runs it"),
]
CORPUS = Path(__file__).with_name("corpus.py").read_text(encoding="utf-8")
NAMES = re.findall(r"^def (test_\w+)", CORPUS, re.MULTILINE)
TOGETHER = 6
"""How many tests share a run: enough to be quick, few enough to end in time."""
WORDS = {"crash": "CRASH", "stall": "STALL", "leak": "LEAK", "flaky": "FLAKY"}
CLASSES = {
    "test_stall_lock_cycle": "deadlock",
    "test_stall_lock_twice": "deadlock",
    "test_stall_join": "deadlock",
    "test_stall_queue": "deadlock",
    "test_stall_socket_read": "blocked",
    "test_stall_asyncio": "blocked",
    "test_stall_child_process": "blocked",
    "test_stall_no_beats": "spinning",
    "test_stall_busy_loop": "slow",
}
PLACES = {
    "test_crash_at_exit": "at exit",
    "test_crash_in_setup": "in set-up",
    "test_crash_in_teardown": "in tear-down",
    "test_crash_in_stage": "learn",
    "test_crash_exit_code": "exit code 7",
    "test_crash_memory_cap": "the limit is 300.0 MiB",
}
"""What else the first line says."""


def groups() -> list[list[str]]:
    kinds = [[name for name in NAMES if name.split("_")[1] == kind] for kind in dict.fromkeys(map(kind_of, NAMES))]
    return [kind[start : start + TOGETHER] for kind in kinds for start in range(0, len(kind), TOGETHER)]


def kind_of(name: str) -> str:
    return name.split("_")[1]


@pytest.mark.parametrize("names", groups(), ids=lambda names: names[0].removeprefix("test_"))
def test_every_word_is_right(run_pytest: RunPytest, names: list[str]) -> None:
    run_pytest.limit = 600
    run_pytest.write("test_it.py", CORPUS)
    chosen = [f"test_it.py::{name}" for name in names]
    outcome = run_pytest.run("--rl-group=auto", "--rl-stall-after=3s", "--rl-limit=25s", *chosen)
    assert {name: said_of(outcome, name) for name in names} == {name: expected_of(name) for name in names}
    assert left_running(run_pytest.path) == []


def said_of(outcome: Outcome, name: str) -> tuple[str, str, str]:
    """The word, or pytest's outcome; the class that is expected, and the place, if they were named."""
    message = outcome.messages.get(name, "").replace("&#x20;", " ")
    word = next((word for word in WORDS.values() if message.startswith(f"{word}:")), outcome.tests.get(name, "none"))
    properties = outcome.properties.get(name, {})
    kind = properties.get("rl_stability.class", "") if name in CLASSES else ""
    return word, kind, PLACES[name] if PLACES.get(name, "nowhere") in message else ""


def expected_of(name: str) -> tuple[str, str, str]:
    plain = {"ok": "passed", "fail": "failed", "skip": "skipped", "xfail": "xfailed"}
    kind = kind_of(name)
    return WORDS.get(kind) or plain[kind], CLASSES.get(name, ""), PLACES.get(name, "")


def left_running(directory: Path) -> list[str]:
    """Processes of a run in *directory* that have outlived it."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if "pytest_rlstability" in " ".join(command) and process.cwd().startswith(str(directory)):
                found.append(" ".join(command))
        except (psutil.Error, OSError):
            continue
    return found
