"""Every example in the docs is run and does what the page says, and every link in them leads somewhere.

A block of Python is one of these:

- ``python title="test_x.py" expects="LEAK"``: it is run. *expects* is ``passed``, ``failed``, or the verdict it fails
  with; *options* are added to the command line; without the library it *needs* it is left out.
- ``python file="examples/x.py"``: it stands in that file, which another test runs.
- ``python fragment="make_env is yours"``: it cannot be run, for that reason. Its syntax is checked.

``text output="test_x.py"`` is what that example prints, or the command: its lines must be there, in this order. Numbers
may differ, and ``...`` stands for anything.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT, Block, blocks

from pytest_rlstability import hookspecs

_PATH = re.compile(r"`([\w/]+(?:/|\.py))`")
_LINK = re.compile(r"\]\(([^)#:]+?)(#[\w-]+)?\)")
ALL = [block for page in PAGES for block in blocks(page)]


@cache
def examples() -> list[dict[str, str]]:
    defaults = {"options": "", "needs": ""}
    return [
        {"code": block.text, **defaults, **block.attributes}
        for block in ALL
        if block.language == "python" and "expects" in block.attributes
    ]


def by_options() -> dict[str, list[dict[str, str]]]:
    """The examples that can share a run."""
    groups = defaultdict(list)
    for example in examples():
        if not example["needs"] or importlib.util.find_spec(example["needs"]) is not None:
            groups[example["options"]].append(example)
    return groups


def outcomes(directory: Path, options: str) -> tuple[dict[str, str], str]:
    """What came of each file (its failure's message, or ``passed``), and what pytest printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rl-stability", "--rl-native=off"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "--junit-xml=junit.xml", *options.split(), "."],
        cwd=directory,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = {}
    for case in ElementTree.parse(directory / "junit.xml").getroot().iter("testcase"):
        trouble = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        message = "passed" if trouble is None else f"{trouble.tag}: {trouble.get('message')}"
        found[f"{case.get('classname', '').rpartition('.')[2]}.py"] = message
    return found, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("options", sorted(by_options()), ids=lambda options: options or "plain")
@pytest.mark.skipif(sys.platform != "linux", reason="the classes of stalls are told from Linux's /proc")
def test_examples_do_what_they_say(options: str, tmp_path: Path) -> None:
    group = by_options()[options]
    for example in group:
        (tmp_path / example["title"]).write_text(example["code"], encoding="utf-8")
    found, printed = outcomes(tmp_path, options)
    wanted = {example["title"]: example["expects"] for example in group}
    wrong = {title: (expects, found.get(title)) for title, expects in wanted.items() if not fits(found, title, expects)}
    assert not wrong
    assert [block.text for block in ALL if block.attributes.get("output") in wanted and not shows(printed, block)] == []


def shows(printed: str, block: Block) -> bool:
    """Whether the lines of *block* were printed, in this order."""
    pattern = ".*".join(_line_pattern(line) for line in block.text.splitlines() if line.strip(" ."))
    return re.search(pattern, printed, re.DOTALL) is not None


def _line_pattern(line: str) -> str:
    parts = re.split(r"(\.\.\.|\d+(?:\.\d+)?| +)", line.strip())
    free = {"...": r"[^\n]*", " ": " +"}
    return "".join(free.get(part[:1] if part.isspace() else part) or _part_pattern(part) for part in parts)


def _part_pattern(part: str) -> str:
    return r"[\d.]+" if part[:1].isdigit() else re.escape(part)


def test_outputs_belong_to_something() -> None:
    """An output is that of an example, or of a command that is run below."""
    known = {example["title"] for example in examples()} | set(OUTPUT_OF_COMMANDS)
    assert {block.attributes["output"] for block in ALL if "output" in block.attributes} - known == set()


OUTPUT_OF_COMMANDS = {
    "rlstability audit tests/data/models/w312sb26_ppo_lr.zip --python 3.11": ".",
    "rlstability audit tests/data/models/w312sb26_ppo_lr.zip --python 3.11 3.12": ".",
    "rlstability doctor --run stages:load_data stages:create_model": "examples/model_creation_stages",
}
"""Commands whose output a page shows, and the directory that they are typed in."""


@pytest.mark.slow
@pytest.mark.parametrize("command", OUTPUT_OF_COMMANDS)
def test_commands_print_what_the_page_shows(command: str) -> None:
    if "doctor" in command:
        pytest.importorskip("stable_baselines3")
    words = [sys.executable, "-m", "pytest_rlstability", *command.split()[1:]]
    directory = ROOT / OUTPUT_OF_COMMANDS[command]
    printed = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=200).stdout
    shown = [block for block in ALL if block.attributes.get("output") == command]
    assert shown
    assert all(shows(printed, block) for block in shown), printed


def test_an_output_that_was_not_printed_is_noticed() -> None:
    block = Block(ROOT, "text", "LEAK: fds grow by 12 per lap, held by ...\n...\nReproduce: pytest\n")
    assert shows("x\nLEAK: fds grow by 3 per lap, held by a list\nmore\nReproduce: pytest\n", block)
    assert not shows("LEAK: fds shrink by 3 per lap, held by a list\nReproduce: pytest\n", block)
    assert not shows("Reproduce: pytest\nLEAK: fds grow by 3 per lap, held by a list\n", block)


def test_every_block_of_python_is_run_or_says_why_not() -> None:
    kinds = ("expects", "file", "fragment")
    python = [block for block in ALL if block.language == "python"]
    unknown = [block for block in python if not any(block.attributes.get(kind) for kind in kinds)]
    assert [f"{block.page.name}: {block.text[:60]}" for block in unknown] == []
    for block in python:
        ast.parse(block.text)


def test_blocks_of_a_file_stand_in_it() -> None:
    named = [block for block in ALL if "file" in block.attributes]
    assert named
    assert [b.text for b in named if b.text not in (ROOT / b.attributes["file"]).read_text("utf-8")] == []


def fits(found: dict[str, str], title: str, expects: str) -> bool:
    message = found.get(title, "did not run")
    if expects == "passed":
        return message == "passed"
    if expects == "failed":
        return message.startswith(("failure:", "error:"))
    return message.startswith((f"failure: {expects}:", f"error: {expects}:"))


def test_titles_are_unique() -> None:
    titles = [example["title"] for example in examples()]
    assert len(titles) == len(set(titles))
    assert len(titles) >= 20


def test_each_marker_and_fixture_has_an_example() -> None:
    code = "\n".join(example["code"] for example in examples())
    from pytest_rlstability.config.markers import MARKERS

    unshown = [name for name in MARKERS if name != "forked" and f"pytest.mark.{name}" not in code]
    fixtures = re.findall(
        r"^@pytest\.fixture[^\n]*\ndef (\w+)\(",
        "\n".join(path.read_text() for path in (ROOT / "pytest_rlstability").rglob("*.py")),
        re.MULTILINE,
    )
    assert len(fixtures) >= 11
    unshown += [name for name in fixtures if not re.search(rf"def test_\w+\([^)]*\b{name}\b", code)]
    assert unshown == []


def test_each_hook_has_an_example() -> None:
    hooks = [name for name in vars(hookspecs) if name.startswith("pytest_rlstability_")]
    code = "\n".join(example["code"] for example in examples())
    assert len(hooks) >= 9
    assert [name for name in hooks if f"def {name}(" not in code] == []


def test_what_contributing_says_about_the_code_is_true() -> None:
    """Every path in its table exists, and has the name that the row mentions."""
    rows = [line.split("|")[2:4] for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line[:2] == "| "]
    wrong = []
    for written, line_in in rows[2:]:
        here = next(iter(_PATH.findall(written)), "")
        for name, path in re.findall(r"`([\w.]+)` (?:in `([\w./]+)`|there)", line_in):
            file = ROOT / "pytest_rlstability" / (path or here)
            wrong += [line_in] if not file.is_file() or name not in file.read_text(encoding="utf-8") else []
        wrong += [written for path in _PATH.findall(written) if not _exists(path)]
    assert len(rows) >= 13
    assert wrong == []


def _exists(path: str) -> bool:
    return any((parent / path).exists() for parent in (ROOT, ROOT / "pytest_rlstability", *ROOT.glob("*/kits/pyboy")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target, _ in _LINK.findall(page.read_text(encoding="utf-8"))]
    assert [target for target in targets if not (page.parent / target).exists()] == []
