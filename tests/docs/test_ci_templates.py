"""action.yml, templates/ and the snippets of other services: well-formed, and their commands do what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CI = ROOT / "examples" / "ci"
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
HEAD, JOBS = yaml.safe_load_all((ROOT / "templates" / "stability.yml").read_text(encoding="utf-8"))
WRITTEN = {"junit.xml", "run.jsonl", "run.html"}

TESTS = """
    import os
    import pytest

    def test_dies():
        os.abort()

    @pytest.mark.rl_soak
    def test_long(rl_laps):
        for lap in rl_laps:
            pass
"""


def pytest_lines(text: str) -> list[list[str]]:
    return [shlex.split(line.strip()) for line in text.splitlines() if re.match(r"\s*(- )?pytest ", line)]


def test_action_names_only_inputs_that_it_has() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.(\w+)", text)) == set(ACTION["inputs"])
    assert all({"description", "default"} == set(one) for one in ACTION["inputs"].values())
    for step in STEPS:
        assert ("run" in step) != ("uses" in step)
        assert step.get("shell") == "bash" or "uses" in step
        # An input in a script would be run as code; as a variable it is text.
        assert "${{" not in step.get("run", "")
    assert set(STEPS[-1]["with"]["path"].split()) == WRITTEN


def test_template_names_only_inputs_that_it_has() -> None:
    text = (ROOT / "templates" / "stability.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.(\w+) \]\]", text)) == set(HEAD["spec"]["inputs"])
    artifacts = JOBS[".stability"]["artifacts"]
    assert {artifacts["reports"]["junit"], *artifacts["paths"]} == WRITTEN
    assert {job.get("extends") for name, job in JOBS.items() if not name.startswith(".")} == {".stability"}


def test_readme_of_the_folder_has_the_lines_to_include() -> None:
    text = (CI / "README.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    (step,), include = blocks
    assert step["uses"].startswith("pytest-rlstability/pytest-rlstability@")
    assert include["include"]["remote"].endswith("/main/templates/stability.yml")
    assert f'include: {{remote: "{include["include"]["remote"]}"}}' in (ROOT / "templates/stability.yml").read_text()
    for names in (ACTION["inputs"], HEAD["spec"]["inputs"]):
        assert [name for name in names if f"`{name}`" not in text] == []
    assert [path.name for path in CI.iterdir() if f"`{path.name}`" not in text and path.name != "README.md"] == []


@pytest.mark.parametrize("name", ["Jenkinsfile", "buildkite.yml", "../../templates/stability.yml"])
def test_every_flag_exists(name: str, request: pytest.FixtureRequest) -> None:
    text = re.sub(r"\$\[\[ inputs\.\w+ \]\]", "1", (CI / name).read_text(encoding="utf-8"))
    lines = pytest_lines(text)
    assert lines
    for words in lines:
        start = words.index("pytest") + 1
        _, unknown = request.config._parser.parse_known_and_unknown_args(words[start:])
        assert unknown == [], words


def test_buildkite_keeps_what_is_written() -> None:
    step = yaml.safe_load((CI / "buildkite.yml").read_text(encoding="utf-8"))["steps"][0]
    assert set(step["artifact_paths"]) == WRITTEN
    jenkins = (CI / "Jenkinsfile").read_text(encoding="utf-8")
    assert jenkins.count("{") == jenkins.count("}")
    assert all(name in jenkins for name in WRITTEN)


@pytest.mark.slow
@pytest.mark.parametrize("soak, outcomes", [("", {"failed": 1, "skipped": 1}), ("1s", {"passed": 1})])
def test_action_runs(
    soak: str, outcomes: dict[str, int], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every script of the action, as the runner does it. pip is a command that only writes down its arguments."""
    pytester.makepyfile(TESTS)
    programs = pytester.mkdir("programs")
    (programs / "pip").write_text(f'#!/bin/sh\necho "$@" >> {programs}/asked\n')
    (programs / "pip").chmod(0o755)
    inputs = {name.upper(): one["default"] for name, one in ACTION["inputs"].items()}
    inputs.update(WORKERS="1", SOAK=soak, INSTALL="pip install -r 'my requirements.txt'", ARGUMENTS="-k 'dies or long'")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_"))}
    scripts = Path(sys.executable).parent
    environment |= {**inputs, "PATH": f"{programs}:{scripts}:{environment['PATH']}", "GITHUB_ACTION_PATH": str(ROOT)}
    shown = {}
    for step in (one for one in STEPS if "run" in one and "doctor" not in one["run"]):
        if "report" in step["run"] and importlib.util.find_spec("plotly") is None:
            continue
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        result = subprocess.run(
            command, env=environment, cwd=pytester.path, capture_output=True, text=True, timeout=200
        )
        shown[step["name"]] = result.stdout + result.stderr
        assert result.returncode == int("pytest -n" in step["run"] and not soak), shown[step["name"]]
    for word, count in outcomes.items():
        assert f"{count} {word}" in shown["Tests in processes that may die"]
    assert (programs / "asked").read_text().splitlines()[0] == "install -r my requirements.txt"
    assert WRITTEN - {"run.html"} <= {path.name for path in pytester.path.iterdir()}
