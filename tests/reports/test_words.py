"""Verdict words come from one enum: each of them reaches every report, and nothing else spells them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import pytest_rlstability
from pytest_rlstability.model.verdict import Verdict, Word

pytest.importorskip("plotly")
pytest.importorskip("prometheus_client")

PACKAGE = Path(pytest_rlstability.__file__).parent

ONE_OF_EACH = """
    import pytest
    from pytest_rlstability.model.verdict import Verdict, VerdictFailure, Word

    @pytest.mark.parametrize("word", list(Word))
    def test_it(word):
        raise VerdictFailure(Verdict(word, "made up", facts={"class": "odd"}))
"""


def test_every_word_reaches_every_report(run_pytest, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(run_pytest.path / "summary.md"))
    files = ("--rl-html=run.html", "--rl-prometheus=run.prom", "--rl-save-baseline=base.json")
    outcome = run_pytest(ONE_OF_EACH, *files)
    summary, metrics, page, baseline = (
        (run_pytest.path / name).read_text() for name in ("summary.md", "run.prom", "run.html", "base.json")
    )
    shown = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    log = {event["test"]: event["verdict"] for event in outcome.events if event["event"] == "finished"}
    assert [test["status"] for test in shown["tests"]] == list(Word)  # worst first, as the enum has them
    assert re.findall(r"^\| \*\*(\w+)\*\* \|", summary, re.MULTILINE) == list(Word)
    for word in Word:
        name = f"test_it[{word}]"
        assert f"1 {word.one}" in outcome.text
        assert outcome.properties[name]["rl_stability.verdict"] == word
        assert outcome.messages[name] == f"{word}: made up"
        assert log[f"test_it.py::{name}"]["word"] == word
        assert f"1 {word}" in summary
        assert f'rlstability_verdicts_total{{word="{word}"}} 1.0' in metrics
        assert f'rlstability_test_failed{{test="test_it.py::{name}",word="{word}"}} 1.0' in metrics
        (status,) = (status for status in shown["statuses"] if status["name"] == word)
        assert (status["one"], status["many"], status["bad"]) == (word.one, word.many, True)
        assert json.loads(baseline)["tests"][f"test_it.py::{name}"]["passes"] == 0


def test_nothing_else_spells_a_word():
    spelt = []
    for path in PACKAGE.rglob("*.py"):
        if path != PACKAGE / "model" / "verdict.py":
            strings = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
            spelt += [f"{path}: {text!r}" for text in strings if text in list(Word)]
    for path in (PACKAGE / "reports" / "page").iterdir():
        spelt += [f"{path}: {word}" for word in Word if re.search(rf"\b{word}\b", path.read_text())]
    assert spelt == []


def test_a_verdict_with_another_word_is_refused():
    assert Verdict("LEAK", "threads grow").word is Word.LEAK
    with pytest.raises(ValueError, match="GRASH"):
        Verdict("GRASH", "SIGSEGV in call")
