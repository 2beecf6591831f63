"""Every command in the docs is run, or has a reason why not; every option that they name exists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT, commands, options_in

from pytest_rlstability.__main__ import COMMANDS, make_parser

NOT_RUN = {
    r"pip install ": "installs packages; .ci/run types the README's own line",
    r"python -m pytest|tox|git |mkdocs |pre-commit": "for contributors; .ci/run does the same",
    r"python examples/demo.py": "tests/docs/test_demo.py runs it",
    r"(sudo )?python benchmarks/": "takes minutes; its name and options are checked here",
    r"(cd |pytest .*|rlstability .*)\bexamples/": "tests/docs/test_demo.py runs the examples; the path is checked here",
    r"rlstability doctor": "tests/doctor runs its steps; all of them take a minute",
    r"rlstability diagnose": "tests/diagnose runs it; a diagnosis takes minutes",
    r"rlstability fuzz": "tests/kits/fuzz runs it",
    r"rlstability (pack|verify)": "tests/kits/models runs them",
    r"prometheus |promtool ": "tests/docs/test_monitoring_example.py runs promtool where it is installed",
    r"pytest .*--tx ": "needs two hosts: benchmarks/two_hosts.py",
}
"""Commands that this test does not run, and why."""
SHORTER = {
    r"--rl-soak=\w+": "--rl-soak=1s",
    r"--rl-leaks=\w+": "--rl-leaks=1s",
    r"--rl-leaks$": "--rl-leaks=1s",
    r"--rl-metrics-port=\d+": "--rl-metrics-port=0",
    r"/var/lib/node_exporter/": "",
    r"-n (auto|\d+)": "-n 2",
    r"\$CI_NODE_INDEX": "1",
}
"""What is typed in another way here: shorter times, free ports, files in the test's directory."""
ALL = sorted({command for page in PAGES for command in commands(page)})


def to_run() -> list[str]:
    return [command for command in ALL if not any(re.match(pattern, command) for pattern in NOT_RUN)]


def test_the_docs_have_commands_and_no_reason_is_stale() -> None:
    assert len(to_run()) >= 15
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, command) for command in ALL)] == []


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands are about: some tests, a training script, logs, a model."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "tests").mkdir()
    test = "def test_step():\n    pass\n"
    soak = "import pytest\n\n@pytest.mark.rl_soak\ndef test_soak(rl_laps):\n    for lap in rl_laps:\n        pass\n"
    for name in {"tests/test_env.py", *re.findall(r"\b[\w/]*test_\w+\.py", "\n".join(to_run()))}:
        (directory / name).write_text(test, encoding="utf-8")
    (directory / "tests" / "test_soak.py").write_text(soak, encoding="utf-8")
    (directory / "train.py").write_text("print('trained')\n", encoding="utf-8")
    package = directory / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "train.py").write_text("print('trained')\n", encoding="utf-8")
    model = Path("tests", "data", "models", "w312sb26_ppo_lr.zip")
    (directory / model).parent.mkdir(parents=True)
    for place in (model, "model.zip"):
        shutil.copy(ROOT / model, directory / place)
    run(directory, "pytest --rl-stability --rl-jsonl=run.jsonl --rl-save-baseline=baseline.json tests/test_env.py")
    for name in ("run-1.jsonl", *re.findall(r"\b[\w-]+\.jsonl", "\n".join(to_run()))):
        if not (directory / name).exists():
            shutil.copy(directory / "run.jsonl", directory / name)
    return directory


def run(directory: Path, command: str) -> subprocess.CompletedProcess[str]:
    for pattern, instead in SHORTER.items():
        command = re.sub(pattern, instead, command)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    command = re.sub(r"^pytest\b", f"{shlex.quote(sys.executable)} -m pytest", command)
    command = re.sub(r"^rlstability\b", f"{shlex.quote(sys.executable)} -m pytest_rlstability", command)
    command = re.sub(r"(-- )python\b", rf"\1{shlex.quote(sys.executable)}", command)
    # The docs' command lines use the shell: wildcards and redirections.
    return subprocess.run(
        command, shell=True, cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the docs show a POSIX shell")
def test_commands_run(project: Path, tmp_path: Path) -> None:
    def run_in_a_copy(number: int) -> subprocess.CompletedProcess[str]:
        return run(shutil.copytree(project, tmp_path / str(number)), to_run()[number])

    wrong = {}
    with ThreadPoolExecutor(2) as pool:
        for command, done in zip(to_run(), pool.map(run_in_a_copy, range(len(to_run()))), strict=True):
            # The model of `audit` breaks on other Pythons: that is exit code 1. The rest works.
            expected = {0, 1} if command.startswith("rlstability audit") else {0}
            if done.returncode not in expected:
                wrong[command] = (done.returncode, done.stdout[-1000:] + done.stderr[-1000:])
    assert wrong == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_options_that_a_page_names_exist(page: Path, pytestconfig: pytest.Config) -> None:
    known = {name for option in pytestconfig._parser._anonymous.options for name in option.names()}
    known |= {name for group in pytestconfig._parser._groups for option in group.options for name in option.names()}
    prefixes = {"--rl-"}  # `--rl-` alone stands for all
    assert options_in(page.read_text(encoding="utf-8")) - known - prefixes == set()


def subcommand_options() -> dict[str, set[str]]:
    action = next(action for action in make_parser()._actions if action.dest == "command")
    assert action.choices is not None
    parsers = dict(action.choices)  # type: ignore[arg-type]
    return {name: set(parsers[name]._option_string_actions) for name in COMMANDS}


def test_rlstability_commands_and_their_options_exist() -> None:
    options, wrong = subcommand_options(), []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, rest in re.findall(r"(?:`|^ *)rlstability ([a-z]+)([^`\n]*)", text, re.MULTILINE):
            own = rest.split(" -- ")[0].split("  #")[0]
            unknown = [word for word in re.findall(r"(?<= )--[a-z-]+", own) if word not in options.get(name, set())]
            wrong += [f"{page.name}: rlstability {name}{rest}"] if name not in options or unknown else []
    assert wrong == []


def test_benchmarks_and_their_options_exist() -> None:
    wrong = []
    for page in PAGES:
        for script, rest in re.findall(
            r"python ((?:benchmarks|examples|docs)/\w+\.py)([^`\n|&]*)", page.read_text("utf-8")
        ):
            source = (ROOT / script).read_text(encoding="utf-8") if (ROOT / script).is_file() else ""
            options = re.findall(r" (--[a-z-]+)", rest.split("  #")[0])
            if script.endswith("parity.py"):
                options = []  # these are pytest's
            wrong += [f"{page.name}: {script}{rest}" for option in options if f'"{option}"' not in source]
            wrong += [] if source else [f"{page.name}: {script}"]
    assert wrong == []


def test_examples_that_commands_name_exist() -> None:
    named = {path for command in ALL for path in re.findall(r"\bexamples/[\w/.]+", command)}
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
