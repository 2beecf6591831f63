"""Writes the generated tables of the docs: ``python docs/generate.py``. A test says when they are stale."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import reference
from reference import PACKAGE, first_line, table

from pytest_rlstability.model import messages
from pytest_rlstability.session.lane import TRANSITIONS

DOCS = Path(__file__).resolve().parent
PROCESSES = {"session": "pytest's", "parent": "the parent's", "child": "the test's", "leaks": "the test's"}


def rooms() -> str:
    """Each package with what it holds, top layer first."""
    order = ["cli", "doctor", "diagnose", "script", "kits", "integrations", "steps", "reports", "session", "parent"]
    order += ["child", "leaks", "verdicts", "config", "osinfo", "model", "compat"]
    found = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert found == set(order), f"put {found ^ set(order)} into the order of rooms"
    text = {
        name: first_line(ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text()))) for name in order
    }
    return table(("room", "what is in it"), [(f"`{name}/`", text[name]) for name in order])


def message_kinds() -> str:
    """Each message under the comment that says who sends it to whom."""
    rows: list[tuple[str, ...]] = []
    way = ""
    for line in Path(messages.__file__).read_text().splitlines():
        if line.startswith("# From "):
            way = line.removeprefix("# ").rstrip(".")
        elif found := re.match(r"class (\w+):", line):
            kind = getattr(messages, found[1])
            rows.append((way if not rows or rows[-1][3] != way else "", f"`{found[1]}`", first_line(kind.__doc__), way))
    return table(("way", "message", "meaning"), [row[:3] for row in rows])


def transitions() -> str:
    """The scheduler's table."""
    rows = [
        (before.name, f"{event.name}: {event.value}", after.name, action.value)
        for (before, event), (after, action) in TRANSITIONS.items()
    ]
    return table(("state", "event", "next state", "what is done"), rows)


def hooks() -> str:
    """Every hook that the package implements, with the module and the process that it runs in."""
    rows = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if place.name == "hookspecs.py":
            continue
        names = sorted(_hooks_in(ast.parse(path.read_text(encoding="utf-8"))))
        if names:
            room = place.parts[0]
            process = PROCESSES.get(room, "the test's and pytest's" if room == "kits" else "pytest's")
            rows.append((f"`{place.as_posix()}`", process, ", ".join(f"`{name}`" for name in names)))
    return table(("module", "process", "hooks"), rows)


def _hooks_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("pytest_"):
            yield node.name


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "architecture.md": {"rooms": rooms, "messages": message_kinds, "transitions": transitions, "hooks": hooks},
    "options.md": {"flags": reference.flags, "settings": reference.settings},
    "markers.md": {"markers": reference.markers},
    "fixtures.md": {"fixtures": reference.fixtures},
    "commands.md": {"exit codes": reference.exit_codes, "commands": reference.commands},
    "events.md": {
        "events": reference.event_kinds,
        "classes": reference.classes,
        "signals": reference.signals,
        "metrics": reference.metrics,
    },
}
"""The generated tables of each page."""


def generated(page: str, text: str) -> str:
    """The text of *page* with every generated table made new."""
    for name, make in PAGES[page].items():
        pattern = rf"(<!-- generated: {name} -->\n).*?(\n<!-- end -->)"
        assert re.search(pattern, text, re.DOTALL), f"{page} has no place for {name}"
        text = re.sub(pattern, lambda found, make=make: f"{found[1]}\n{make()}\n{found[2]}", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(generated(name, (DOCS / name).read_text(encoding="utf-8")), encoding="utf-8")
