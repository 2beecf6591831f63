"""Every example in the docs that says what it expects is run, and every link in them leads somewhere.

An example is a fenced block such as ``python title="test_x.py" expects="LEAK"``: *expects* is ``passed``, ``failed``,
or the verdict it fails with; *options* are added to the command line; without the library it *needs* it is left out.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

import pytest

from pytest_rlstability import hookspecs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r'^```python (title="[^\n]*)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_PATH = re.compile(r"`([\w/]+(?:/|\.py))`")
_LINK = re.compile(r"\]\(([^)#:]+?)(#[\w-]+)?\)")


def examples() -> list[dict[str, str]]:
    found = []
    for page in PAGES:
        for head, code in _BLOCK.findall(page.read_text(encoding="utf-8")):
            found.append({"code": code, "options": "", "needs": "", **dict(_ATTRIBUTE.findall(head))})
    return found


def by_options() -> dict[str, list[dict[str, str]]]:
    """The examples that can share a run."""
    groups = defaultdict(list)
    for example in examples():
        if not example["needs"] or importlib.util.find_spec(example["needs"]) is not None:
            groups[example["options"]].append(example)
    return groups


def outcomes(directory: Path, options: str) -> dict[str, str]:
    """What came of each file: its failure's message, or ``passed``."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rl-stability", "--rl-native=off"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    subprocess.run(
        [*command, "--junit-xml=junit.xml", *options.split(), "."],
        cwd=directory,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        timeout=300,
    )
    found = {}
    for case in ElementTree.parse(directory / "junit.xml").getroot().iter("testcase"):
        trouble = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        message = "passed" if trouble is None else f"{trouble.tag}: {trouble.get('message')}"
        found[f"{case.get('classname', '').rpartition('.')[2]}.py"] = message
    return found


@pytest.mark.slow
@pytest.mark.parametrize("options", sorted(by_options()), ids=lambda options: options or "plain")
@pytest.mark.skipif(sys.platform != "linux", reason="the classes of stalls are told from Linux's /proc")
def test_examples_do_what_they_say(options: str, tmp_path: Path) -> None:
    group = by_options()[options]
    for example in group:
        (tmp_path / example["title"]).write_text(example["code"], encoding="utf-8")
    found = outcomes(tmp_path, options)
    wanted = {example["title"]: example["expects"] for example in group}
    wrong = {title: (expects, found.get(title)) for title, expects in wanted.items() if not fits(found, title, expects)}
    assert not wrong


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
