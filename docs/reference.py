"""The tables of the reference pages, made from the source: flags, markers, fixtures, commands, events, metrics."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest_rlstability
from pytest_rlstability.__main__ import COMMANDS, make_parser
from pytest_rlstability.child.verdict_report import PREFIX
from pytest_rlstability.compat.cpython import arguments_of, commands_of
from pytest_rlstability.config.markers import MARKERS, marker_signature
from pytest_rlstability.kits.box2d.census import PREFIX as BOX2D
from pytest_rlstability.kits.box2d.plugin import pytest_rlstability_metric
from pytest_rlstability.leaks.signals.registry import shipped_signals
from pytest_rlstability.model import events
from pytest_rlstability.model.soak_state import SoakState
from pytest_rlstability.model.verdict import CrashClass, StallClass, Verdict, Word
from pytest_rlstability.reports.exposition import registry_of
from pytest_rlstability.reports.run_state import RunState

PACKAGE = Path(pytest_rlstability.__file__).parent


def first_line(text: str | None) -> str:
    """The first paragraph of a docstring, as one line of Markdown."""
    return markdown((text or "").strip().split("\n\n")[0])


def markdown(text: str) -> str:
    """One line of Markdown: code as Markdown writes it, no sign that HTML or a table would take for its own."""
    text = " ".join(text.split()).replace("``", "`")
    return re.sub(r"`[^`]*`|<", lambda found: found[0] if found[0] != "<" else "&lt;", text)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', 'or') for cell in line)} |" for line in lines)


class _Recorder:
    """Takes the place of pytest's parser and keeps what is added."""

    def __init__(self) -> None:
        self.flags: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, tuple[str, Any]] = {}

    def getgroup(self, name: str, description: str = "") -> _Recorder:
        return self

    def addoption(self, name: str, **rest: Any) -> None:
        self.flags[name] = rest

    def addini(self, name: str, help: str, type: str | None = None, default: Any = None) -> None:
        self.settings[name] = (help, default)


def _recorded() -> _Recorder:
    recorder = _Recorder()
    for path in sorted(PACKAGE.rglob("*.py"), key=lambda path: (path.name != "plugin.py", len(path.parts), path)):
        if "def pytest_addoption(" in path.read_text(encoding="utf-8"):
            module = ".".join(("pytest_rlstability", *path.relative_to(PACKAGE).with_suffix("").parts))
            import_module(module).pytest_addoption(recorder)
    return recorder


def flags() -> str:
    """Every flag with its ini setting, if it has one."""
    recorded = _recorded()
    rows = []
    for name, rest in recorded.flags.items():
        setting = name.removeprefix("--").replace("-", "_")
        value, text = _choices(rest.get("metavar", ""), markdown(rest["help"]))
        shown = name if not value else f"{name}[={value}]" if rest.get("nargs") == "?" else f"{name}={value}"
        ini = f"<br>`{setting}`" if setting in recorded.settings else ""
        rows.append((f"`{shown}`{ini}", text))
    return table(("flag and ini setting", "meaning"), rows)


def _choices(metavar: str, text: str) -> tuple[str, str]:
    """``all|marked`` is a list of choices, which belongs into the text."""
    if "|" not in metavar:
        return metavar, text
    return "CHOICE", f"{text}. Choose from: {', '.join(f'`{one}`' for one in metavar.split('|'))}"


def settings() -> str:
    """The ini settings that have no flag."""
    recorded = _recorded()
    alone = [name for name in recorded.settings if f"--{name.replace('_', '-')}" not in recorded.flags]
    rows = [(f"`{name}`", markdown(recorded.settings[name][0]), _default(recorded.settings[name][1])) for name in alone]
    return table(("ini setting", "meaning", "default"), rows)


def _default(value: Any) -> str:
    return "none" if value in (None, [], "") else f"`{value}`"


def markers() -> str:
    """Every marker with its signature."""
    rows = [(f"`{name}{marker_signature(marker)}`", markdown(marker.__doc__ or "")) for name, marker in MARKERS.items()]
    return table(("marker", "the test promises"), rows)


def _fixtures() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any("fixture" in ast.dump(one) for one in node.decorator_list):
                yield node.name, ast.get_docstring(node) or ""


def fixtures() -> str:
    """Every fixture with the first paragraph of its docstring."""
    rows = [(f"[`{name}`](#{name})", first_line(text)) for name, text in _fixtures()]
    return table(("fixture", "what it gives"), rows)


def commands() -> str:
    """Every command: what it does, how it is called, its arguments."""
    parts = []
    for name, parser in _parsers().items():
        text = inspect.cleandoc(parser.description or "")
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        rows = [(_argument(one), markdown((one.help or "") % {"default": one.default})) for one in _arguments(parser)]
        parts += [f"## rlstability {name}", _without_exit_codes(text), f"```text\n{usage}\n```"]
        parts += [table(("argument", "meaning"), rows)]
    return "\n\n".join(parts)


def _parsers() -> dict[str, argparse.ArgumentParser]:
    commands = commands_of(make_parser())
    return {name: commands[name][1] for name in COMMANDS}


def _arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [one for one in arguments_of(parser) if one.help != argparse.SUPPRESS and one.dest != "help"]


def _argument(action: argparse.Action) -> str:
    names = list(action.option_strings) or [str(action.metavar or action.dest)]
    takes_value = bool(action.option_strings) and action.nargs != 0
    value = str(action.metavar or (" or ".join(map(str, action.choices or ())) or action.dest.upper()))
    return ", ".join(f"`{name}{f' {value}' if takes_value else ''}`" for name in names)


def _without_exit_codes(text: str) -> str:
    """The description, with its indented examples as a block."""
    parts = [part for part in text.split("\n\n") if not part.startswith("Exit ")]
    return "\n\n".join(_block(inspect.cleandoc(part)) if part.startswith("  ") else markdown(part) for part in parts)


def _block(text: str) -> str:
    return f"```{'bash' if text.startswith('rlstability') else 'text'}\n{text}\n```"


def exit_codes() -> str:
    """The paragraph on exit codes of each command's help."""
    rows = []
    for name, parser in _parsers().items():
        paragraphs = inspect.cleandoc(parser.description or "").split("\n\n")
        code = next((part for part in paragraphs if part.startswith("Exit ")), None)
        assert code, f"the help of {name} does not say its exit codes"
        rows.append((f"`rlstability {name}`", markdown(re.sub(r"^Exit (code|status):? ", "", code))))
    return table(("command", "exit code"), rows)


def event_kinds() -> str:
    """The events of the log, each with its fields."""
    parts = []
    own = {one.name for one in fields(events.Event)}
    for kind in (events.Event, events.Session, events.Started, events.Sample, events.Finished):
        title = "Every event" if kind is events.Event else f"`{kind.__name__.lower()}`"
        parts += [f"### {title}", first_line(kind.__doc__), _field_table(kind, set() if kind is events.Event else own)]
    for title, part in (("verdict", Verdict), ("judged", events.Judged), ("soak", SoakState)):
        parts += [f"### The field `{title}`", first_line(part.__doc__), _field_table(part, set())]
    return "\n\n".join(parts)


_PLURALS = {"str": "texts", "float": "numbers", "Any": "objects", "Fact": "texts and numbers"}
_PLURALS |= {"Judged": "judgements, see below", "Section": "pairs of title and text"}
_NAMED = {"Outcome": ", ".join(f"`{one}`" for one in events.Outcome), "Word": ", ".join(f"`{word}`" for word in Word)}
_NAMED |= {"SoakState": "object, see below", "Verdict": "object, see below"}
_NAMED |= {"Location": "object: `file`, `line`, `function`"} | dict.fromkeys(("str", "int", "float", "bool"), "")


def _field_table(kind: Any, left_out: set[str]) -> str:
    rows = [(f"`{one.name}`", _json_type(str(one.type))) for one in fields(kind) if one.name not in left_out]
    return table(("field", "JSON type"), rows)


def _json_type(annotation: str) -> str:
    """``Mapping[str, float] | None`` is an object of numbers; what is None is left out."""
    name, _, inner = annotation.removesuffix(" | None").partition("[")
    parts = [part for part in inner.rstrip("]").split(", ") if part not in ("", "...")]
    many = {"Sequence": "list", "tuple": "list", "Mapping": "object", "dict": "object"}
    if name in many:
        return f"{many[name]} of {_PLURALS.get(parts[-1], parts[-1])}"
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}.get(name, _NAMED[name])


def classes() -> str:
    """The words, and what the ``class`` of a verdict can be."""
    rows = [("`verdict`", ", ".join(f"`{word}`" for word in Word))]
    rows += [("`class` of a CRASH", ", ".join(f"`{one}`" for one in CrashClass))]
    rows += [("`class` of a STALL", ", ".join(f"`{one}`" for one in StallClass))]
    return table((f"property (after `{PREFIX}`)", "values"), rows)


def metrics() -> str:
    """Every metric, from the page of a made-up run that has one value of each kind."""
    rows = []
    for family in registry_of(_made_up_run(), lambda name: pytest_rlstability_metric(name=name)).collect():
        if "_growth" in family.name:
            continue
        sample = next(iter(family.samples))
        labels = ", ".join(f"`{name}`" for name in sample.labels)
        rows.append((f"`{sample.name}`", family.type, labels, markdown(family.documentation)))
    return table(("metric", "type", "labels", "meaning"), sorted(rows))


def _made_up_run() -> RunState:
    state = RunState()
    state.handle(events.Session(host="host", platform="Linux", versions="Python", seed=1))
    counts = ("bodies", "dynamic", "fixtures", "joints", "contacts", "worlds")
    values = {"rss": 1.0, "fds": 1.0, "food": 1.0, "run_passed": 1.0, "run_seconds": 1.0, "peak_memory": 1.0}
    values |= {f"{BOX2D}{name}": 1.0 for name in counts}
    for test in ("test_running", "test_failed"):
        state.handle(events.Started(test=test))
        for lap in range(1, 9):
            state.handle(events.Sample(test=test, values=values, lap=lap, seconds=10.0 * lap))
    verdict = Verdict(Word.CRASH, "SIGSEGV")
    failed = events.Finished(test="test_failed", outcome=events.Outcome.FAILED, verdict=verdict, duration=1, laps=8)
    state.handle(failed)
    return state


def signals() -> str:
    """What a leak check measures."""
    rows = [
        (
            f"`{one.name}`",
            one.title,
            one.group if one.judged else "",
            one.unit,
            "judged" if one.judged else "charts only",
        )
        for one in shipped_signals()
    ]
    return table(("signal", "what it is", "group", "unit", ""), rows)
