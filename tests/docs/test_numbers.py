"""Numbers in README, docs and benchmarks agree: with the source, and with each other."""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT

from pytest_rlstability.model.units import parse_duration

TEXTS = {page.relative_to(ROOT).as_posix(): " ".join(page.read_text(encoding="utf-8").split()) for page in PAGES}
BENCHMARKS = {
    path.relative_to(ROOT).as_posix(): " ".join(path.read_text(encoding="utf-8").split())
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
}
_DEFAULT = re.compile(r"`(?:--rl-([a-z-]+)|rl_(\w+))(?:=[^`]*)?` \((\d+ ?(?:s|min|h))\)")
MEASURED = {
    "time of click's suite": r"click took ([\d.]+) times|\| one process at a time \|[^|]*\|[^|]*\| ([\d.]+)",
    "growth of LunarLander at a reset": r"`LunarLander(?:-v3)?` (?:loses|\| `LEAK`: each `reset\(\)` keeps) ([\d.]+) K",
    "runs of a flaky test that always passes": r"costs (\d+) runs|\| 0\.95 \| 0\.95 \| 60 \| 0\.75 \| (\d+) \|",
    "slow tests that were not called a stall": r"([\d,]+) (?:slow tests|passed), none called a stall",
    "speed through the proxy": r"([\d.]+) GB/s, 47 %|([\d.]+) GB/s",
    "leaks of the corpus": r"corpus \(`benchmarks/leak_corpus/`\) has (\d+) leaks",
    "tests of numpy's suite": r"\| numpy \|[^|]*\| ([\d,]+) \|",
    "pairs of models": r"these ([\d,]+) runs|([\d,]+) runs of `model_pairs",
    "unchanged tests called slower": r"of ([\d,]+) unchanged tests|about 1 in ([\d,]+) on simulated",
    "Box2D's loss for a polygon": r"(\d+) bytes per polygon",
}
"""Measured quantities that more than one place may quote, and how they are written."""
TOOLS = ("pytest-forked", "pytest-isolate", "pytest-isolated", "psleak", "pytest-memray", "Box2D", "click", "PyBoy")


def values(texts: dict[str, str], pattern: str) -> dict[str, set[str]]:
    """What *pattern* finds, and where."""
    found = defaultdict(set)
    for name, text in texts.items():
        for groups in re.finditer(pattern, text):
            value = next(group for group in groups.groups() if group is not None)
            found[value.replace(",", "")].add(name)
    return dict(found)


@pytest.mark.parametrize("quantity", MEASURED)
def test_a_measured_quantity_has_one_value(quantity: str) -> None:
    found = values({**TEXTS, **BENCHMARKS}, MEASURED[quantity])
    assert len(found) == 1, found


def test_two_values_are_noticed() -> None:
    texts = {"a.md": "The suite of click took 1.22 times as long.", "b.md": "the suite of click took 1.3 times"}
    assert len(values(texts, MEASURED["time of click's suite"])) == 2


def test_defaults_in_prose_are_those_of_the_source(pytestconfig: pytest.Config) -> None:
    wrong, seen = [], 0
    for name, text in TEXTS.items():
        for flag, setting, value in _DEFAULT.findall(text):
            seen += 1
            default = pytestconfig.getini(f"rl_{(flag or setting).replace('-', '_')}")
            wrong += (
                [f"{name}: {flag or setting} ({value})"] if parse_duration(default) != parse_duration(value) else []
            )
    assert seen > 5
    assert wrong == []


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_has_one_version(tool: str) -> None:
    """*2.8* and *2.8.1* are the same; the changelog is about other times."""
    texts = {name: text for name, text in TEXTS.items() if name != "CHANGELOG.md"}
    versions = sorted(values(texts, rf"(?<![\w-]){tool} (\d+(?:\.\d+)+)"))
    assert versions
    assert all(versions[-1].startswith(version) for version in versions), versions


def test_targets_are_those_of_the_benchmark() -> None:
    rows = re.findall(
        r"\| (?:DMG|CGB) \| `tick\((\d+)\)`[^\n]*\| ([\d.]+) \|\n", Path(ROOT, "docs/pyboy.md").read_text()
    )
    source = BENCHMARKS["benchmarks/pyboy_speed.py"]
    assert len(rows) == 4
    assert [target for _, target in rows if f"{float(target)}" not in source] == []


@pytest.mark.parametrize("page", [page for page in PAGES if "docs" in page.parts], ids=lambda page: page.stem)
def test_measured_numbers_have_a_command(page: Path) -> None:
    """A page that says on which cores something was measured has the command or the test that repeats it."""
    text = page.read_text(encoding="utf-8")
    if re.search(r"\b(on )?two (idle |busy |shared )?cores\b", text, re.IGNORECASE):
        assert re.search(r"benchmarks/\w+\.py|tests/[\w/]+\.py", text)


def test_the_size_of_the_leak_corpus_is_that_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    corpus = pytest.importorskip("leak_corpus").load("all").values()
    leaks = sum(case.leaks for case in corpus)
    assert f"has {leaks} leaks and {len(corpus) - leaks} innocents" in TEXTS["docs/leaks.md"]


def test_the_number_of_innocent_stalls_is_that_of_the_source() -> None:
    """The kinds of slow tests, with the parameters of each."""
    source = (ROOT / "benchmarks" / "stall_corpus" / "test_innocents.py").read_text(encoding="utf-8")
    kinds = 0
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            lists = [one.args[1] for one in node.decorator_list if isinstance(one, ast.Call) and len(one.args) > 1]
            kinds += math.prod(len(one.elts) for one in lists if isinstance(one, ast.List))
    assert f"the benchmark has {kinds} kinds now" in TEXTS["docs/stalls.md"]
