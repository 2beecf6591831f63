"""Shared by all tests: a real pytest in a process of its own, and its results as data."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

_HANGUP = getattr(signal, "SIGHUP", signal.SIGTERM)


def pytest_configure() -> None:
    """A job in the background of a shell ignores Ctrl-C, one under nohup SIGHUP, and so would the runs of tests."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (_HANGUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            with suppress(ValueError):  # not in the main thread: then it stays so
                signal.signal(number, handler)


@dataclass
class Outcome:
    """What one pytest run showed: exit code, terminal text, and per test its JUnit outcome, text and properties."""

    code: int
    text: str
    tests: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    properties: dict[str, dict[str, str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    events: list[dict[str, object]] = field(default_factory=list)


NOT_LOADED = "-p no:allure_pytest -p no:dependency"
"""Plugins that tests of other plugins load."""


class RunPytest:
    """``run_pytest(source, *arguments)``: writes the source as a test file and runs it with ``--rl-stability``.

    Every test has a process of its own, unless an argument says otherwise: ``--rl-group=auto`` is the default of users.
    """

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.limit = 120

    def __call__(self, source: str | None = None, *arguments: str, on: bool = True) -> Outcome:
        if source is not None:
            self.write("test_it.py", source)
        return self.run(*arguments, on=on)

    def write(self, name: str, source: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return path

    def run(self, *arguments: str, on: bool = True) -> Outcome:
        junit, events = self.path / "junit.xml", self.path / "events.jsonl"
        for path in (junit, events):
            path.unlink(missing_ok=True)
        switch = ["--rl-stability", "--rl-group=test", f"--rl-jsonl={events}"] if on else []
        result = self.pytester.runpytest_subprocess(
            *switch, f"--junitxml={junit}", "-o", "junit_family=xunit1", *arguments, timeout=self.limit
        )
        outcome = Outcome(int(result.ret), result.stdout.str() + result.stderr.str())
        if junit.exists():
            _read_junit(outcome, junit)
        if events.exists():
            outcome.events = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
        return outcome


def _read_junit(outcome: Outcome, path: Path) -> None:
    for case in ElementTree.parse(path).iter("testcase"):
        name = str(case.get("name"))
        outcome.seconds[name] = float(case.get("time", 0))
        outcome.properties[name] = {str(p.get("name")): str(p.get("value")) for p in case.iter("property")}
        outcome.tests.setdefault(name, "passed")
        for tag, word in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
            node = case.find(tag)
            if node is not None:
                outcome.tests[name] = "xfailed" if "xfail" in str(node.get("type")) else word
                outcome.messages[name] = str(node.get("message"))
                outcome.details[name] = node.text or ""


@pytest.fixture
def run_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunPytest]:
    monkeypatch.setenv("PYTEST_ADDOPTS", NOT_LOADED)
    for name in ("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY",
                 "PYTHONUNBUFFERED"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)  # "python" in what is to be typed
    # Not below pytester's own directory: multiprocessing's sockets need a short path.
    short = None if sys.platform == "win32" else "/tmp"
    with tempfile.TemporaryDirectory(prefix="rl", dir=short) as temporary:
        for name in ("TMPDIR", "TEMP", "TMP"):
            monkeypatch.setenv(name, temporary)
        yield RunPytest(pytester)
        left = [path.name for path in Path(temporary).iterdir() if not path.name.startswith("pytest-of-")]
        assert left == [], "a run left files behind"
