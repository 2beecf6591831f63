"""Annotations of GitHub Actions: the failure at its line, worst first, nothing in it taken for a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_logs import event

from pytest_rlstability.model.events import Event
from pytest_rlstability.reports.annotations import MOST, Annotations


def failed(test: str, **fields: Any) -> Event:
    return event("finished", test, **{"outcome": "failed", **fields})


def commands(*events: Event, **options: Any) -> list[str]:
    report = Annotations(Path("/repo/python"), Path("/repo"), **options)
    for one in events:
        report.handle(one)
    return report.commands()


CRASH = {
    "word": "CRASH",
    "headline": "SIGSEGV in call, 100%\nand more",
    "location": {"file": "/repo/python/game/env.py", "line": 40, "function": "step"},
    "sections": [["Diagnosis", "t::x: diagnosed in 3 s\n\nIt dies every time.\n\nTry next:\n  - this"]],
}


def test_each_failure_is_at_its_line_worst_first():
    plain = {"location": {"file": "/repo/python/test_a.py", "line": 3, "function": "f"}, "message": "KeyError: 'x'"}
    crash, ordinary = commands(
        failed("test_a.py::test_plain", **plain),
        event("finished", "test_a.py::test_fine", outcome="passed"),
        failed("test_a.py::test_it[a,b:c]", verdict=CRASH, reproduce="python -m pytest x"),
    )
    assert crash == (
        "::error file=python/game/env.py,line=40,title=CRASH%3A test_a.py%3A%3Atest_it[a%2Cb%3Ac]::"
        "SIGSEGV in call, 100%25%0Aand more%0AIt dies every time.%0AReproduce: python -m pytest x"
    )
    assert ordinary == "::error file=python/test_a.py,line=3,title=FAILED%3A test_a.py%3A%3Atest_plain::KeyError: 'x'"


def test_a_line_outside_the_repository_is_not_annotated():
    location = {"file": "/usr/lib/python3/ctypes/__init__.py", "line": 5, "function": "f"}
    (command,) = commands(failed("test_a.py::test_x", message="x", location=location))
    assert command.startswith("::error file=python/test_a.py,title=")


def test_no_more_than_github_shows_and_the_other_plugin_has_its_share():
    many = [failed(f"test_a.py::test_{number}", message="x") for number in range(MOST + 5)]
    assert len(commands(*many)) == MOST
    assert commands(*many, plain=False) == []
    assert len(commands(failed("t.py::test_x", verdict=CRASH), plain=False)) == 1


def test_in_a_job_of_github(run_pytest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        import os

        def test_dies():
            os.abort()

        def test_wrong():
            {}["observation"]
    """
    assert "::error" not in run_pytest(source).text
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(run_pytest.path.parent))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(run_pytest.path / "summary.md"))
    run_pytest.write("test_broken.py", "import nothing_like_this")
    outcome = run_pytest.run("--continue-on-collection-errors")
    lines = [line for line in outcome.text.splitlines() if line.startswith("::error")]
    folder = run_pytest.path.name
    assert [line.partition("::")[2].partition("::")[0].partition(",title")[0] for line in lines] == [
        f"error file={folder}/test_it.py,line=5",
        f"error file={folder}/test_broken.py",
        f"error file={folder}/test_it.py,line=8",
    ]
    assert "ModuleNotFoundError" in lines[1]
    assert lines[2].partition("Reproduce")[0].endswith("::KeyError: 'observation'%0A")
    table = (run_pytest.path / "summary.md").read_text()
    assert "`KeyError: 'observation'`<br>`test_it.py:8 in test_wrong`" in table
