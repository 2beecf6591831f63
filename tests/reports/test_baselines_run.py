"""--rl-save-baseline and --rl-baseline in real runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.reports.baseline import KIND, SCHEMA

TESTS = """
    import os
    import pytest

    SIZE = int(os.environ.get("SIZE_IN_MIB", "1"))

    def test_memory():
        assert len(bytearray(SIZE << 20).replace(b"0", b"1"))

    def test_food(rl_laps, rl_probe):
        food = []
        rl_probe("food", lambda: len(food), limit=10**6)
        for _ in rl_laps:
            if SIZE > 1:
                food.append(1)

    def test_outcome():
        assert SIZE == 1
"""


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.slow
def test_a_worse_run_fails_and_a_better_one_says_so(run_pytest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    base = run_pytest.path / "base.json"
    saved = run_pytest(TESTS, "--rl-save-baseline=base.json")
    assert saved.code == 0
    assert f"rl-stability: baseline of 3 tests saved in {base}" in saved.text
    edit(base, lambda data: data["tests"].update({"test_gone.py::test_it": {"runs": 1, "passes": 1}}))

    monkeypatch.setenv("SIZE_IN_MIB", "60")
    large = run_pytest.run("--rl-baseline=base.json", "--rl-save-baseline=large.json", "-n2")
    assert large.code == 1
    assert "worse than base.json: test_it.py::test_memory: peak memory " in large.text
    assert "worse than base.json: test_it.py::test_food: growth of food per lap 0 -> 1" in large.text
    assert "worse than base.json: test_it.py::test_outcome: pass rate 100% (1/1) -> 0% (0/1)" in large.text
    assert "compared 3 tests with base.json: 3 worse, 0 better" in large.text
    assert "in base.json but no longer there: test_gone.py::test_it" in large.text

    monkeypatch.setenv("SIZE_IN_MIB", "1")
    better = run_pytest.run("--rl-baseline=large.json")
    assert better.code == 0
    assert "better than large.json: test_it.py::test_memory: peak memory " in better.text
    assert "0 worse, 3 better" in better.text


SMALL = """
    def test_one(): pass
    def test_two(): pass
"""


def test_worse_alone_makes_a_green_run_fail_and_is_not_saved_over_the_better(run_pytest: Any) -> None:
    base = run_pytest.path / "base.json"
    entry = {"runs": 1, "passes": 1, "peak_memory": {"value": 1e6, "spread": 0}}
    tests = {"test_it.py::test_one": entry, "test_it.py::test_two": {"runs": 1, "passes": 1}}
    text = json.dumps({"kind": KIND, "schema": SCHEMA, "saved": "then", "machine": "other: machine", "tests": tests})
    base.write_text(text)
    outcome = run_pytest(SMALL, "--rl-baseline=base.json", "--rl-save-baseline=base.json")
    assert outcome.tests == {"test_one": "passed", "test_two": "passed"}
    assert outcome.code == 1
    assert "compared 2 tests with base.json: 1 worse, 0 better" in outcome.text
    assert "base.json is left as it was" in outcome.text
    assert "base.json was saved on another machine (other: machine)" in outcome.text
    assert base.read_text() == text


@pytest.mark.slow
def test_new_and_vanished_tests_are_told_and_a_subset_vanishes_nothing(run_pytest: Any) -> None:
    base = run_pytest.path / "base.json"
    run_pytest(SMALL, "--rl-save-baseline=base.json")
    part = run_pytest.run("--rl-baseline=base.json", "--rl-save-baseline=base.json", "-k", "test_one")
    assert part.code == 0, "what did not change is not worse"
    assert "no longer there" not in part.text
    assert "compared 1 test with base.json: 0 worse, 0 better" in part.text
    assert len(json.loads(base.read_text())["tests"]) == 2, "what was not run is kept"
    other = run_pytest.write("test_other.py", "def test_new(): pass")
    elsewhere = run_pytest.run("--rl-baseline=base.json", str(other))
    assert "no longer there" not in elsewhere.text
    assert "not in base.json: test_other.py::test_new" in elsewhere.text
    run_pytest.run("--rl-save-baseline=base.json")
    other.unlink()
    gone = run_pytest.run("--rl-baseline=base.json", "--rl-save-baseline=base.json")
    assert gone.code == 0
    assert "in base.json but no longer there: test_other.py::test_new" in gone.text
    assert set(json.loads(base.read_text())["tests"]) == {"test_it.py::test_one", "test_it.py::test_two"}


def test_a_file_that_cannot_be_read_is_a_usage_error(run_pytest: Any) -> None:
    path = run_pytest.path / "base.json"
    path.write_text('{"kind": "rl-stability baseline", "schema": 99}')
    outcome = run_pytest(SMALL, "--rl-baseline=base.json")
    assert outcome.code == 4
    assert f"--rl-baseline={path}: the file has schema 99 and this pytest-rlstability knows 1" in outcome.text
