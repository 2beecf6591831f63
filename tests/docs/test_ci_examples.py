"""examples/ci: every command and flag in it exists, and the lines do what the README of the folder says."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_rlstability.__main__ import COMMANDS

FOLDER = Path(__file__).parents[2] / "examples" / "ci"

TESTS = """
    import os
    import pytest

    def test_fine():
        pass

    def test_dies():
        os.abort()

    @pytest.mark.rl_soak
    def test_long(rl_laps):
        for lap in rl_laps:
            pass
"""


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return document


def scripts(name: str) -> list[str]:
    """Every line of shell in the file."""
    document = load(name)
    if name == "github-actions.yml":
        runs = [step["run"] for job in document["jobs"].values() for step in job["steps"] if "run" in step]
        return [line for run in runs for line in run.splitlines()]
    keys = ("before_script", "script", "after_script")
    return [line for job in document.values() for key in keys for line in job.get(key, [])]


def commands(name: str, program: str) -> list[list[str]]:
    """The uses of *program*, as words."""
    pieces = [piece for line in scripts(name) for piece in re.split(r"\s*(?:;|&&|\bthen\b)\s*", line)]
    words = [shlex.split(piece) for piece in pieces if piece.startswith(program)]
    return [found for found in words if found[0] == program]


FILES = ("github-actions.yml", "gitlab-ci.yml")


@pytest.mark.parametrize("name", FILES)
def test_every_flag_of_pytest_exists(name: str, request: pytest.FixtureRequest) -> None:
    lines = commands(name, "pytest")
    assert len(lines) == 2
    for words in lines:
        _, unknown = request.config._parser.parse_known_and_unknown_args(words[1:])
        assert unknown == [], words


@pytest.mark.parametrize("name", FILES)
def test_every_command_exists(name: str) -> None:
    used = commands(name, "rlstability")
    assert {words[1] for words in used} == {"doctor", "report"}
    for words in used:
        _parse(words)


def _parse(words: list[str]) -> None:
    """As the command line would; a wrong argument leaves by SystemExit."""
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[words[1]]).add_arguments(parser)
    parser.parse_args(words[2:])


def test_both_forges_run_the_same() -> None:
    for program in ("pytest", "rlstability", "pip"):
        of_github, of_gitlab = (commands(name, program) for name in FILES)
        assert sorted(set(map(tuple, of_github))) == sorted(set(map(tuple, of_gitlab)))


def test_readme_explains_the_flags() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    for words in commands(FILES[0], "pytest"):
        for flag in words[1:]:
            assert flag.partition("=")[0] in text, flag
    for line in re.findall(r"`(rlstability [^`]*)`", text):
        _parse(shlex.split(line))


def _uploaded(job: dict[str, Any]) -> set[str]:
    return {name for step in job["steps"] if "with" in step for name in str(step["with"].get("path", "")).split()}


def test_artifacts_are_the_files_that_the_commands_write() -> None:
    github, gitlab = (load(name) for name in FILES)
    for job in ("tests", "soak"):
        artifacts = gitlab[job]["artifacts"]
        assert {artifacts["reports"]["junit"], *artifacts["paths"]} == _uploaded(github["jobs"][job])


def _in_short(words: list[str]) -> list[str]:
    """The same line, soaking for a second, and without the page where its library is not installed."""
    charts = importlib.util.find_spec("plotly") is not None
    kept = [word for word in words if charts or not word.startswith("--rl-html")]
    return [re.sub(r"^--rl-soak=.*", "--rl-soak=1s", word) for word in kept]


@pytest.mark.slow
@pytest.mark.parametrize(
    "job, outcomes", [("tests", {"passed": 1, "failed": 1, "skipped": 1}), ("soak", {"passed": 1})]
)
def test_lines_work(
    job: str, outcomes: dict[str, int], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTEST_ADDOPTS", "CI", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    pytester.makepyfile(TESTS)
    (words,) = [words for words in commands(FILES[0], "pytest") if ("--rl-stability" in words) == (job == "tests")]
    words = _in_short(words)
    result = pytester.runpytest_subprocess(*words[1:], timeout=120)
    found = result.parseoutcomes()
    assert {word: found.get(word, 0) for word in outcomes} == outcomes, result.stdout.str()
    wanted = {word.partition("=")[2] for word in words if word.startswith(("--rl-jsonl", "--rl-html", "--junitxml"))}
    assert wanted <= _uploaded(load(FILES[0])["jobs"][job])
    for name in wanted:
        assert (pytester.path / name).stat().st_size > 0
    if job == "tests":
        assert "CRASH" in (pytester.path / "summary.md").read_text()
