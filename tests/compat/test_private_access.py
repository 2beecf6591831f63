"""Only ``compat`` touches what is private of other packages, and it says what fails without each thing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest_rlstability

PACKAGE = Path(pytest_rlstability.__file__).parent
COMPAT = PACKAGE / "compat"
DOCUMENTED = {"_getframe", "_current_frames", "_exit", "_fields", "_fields_", "_replace", "_asdict", "_value_"}
"""Names with an underscore that the standard library documents."""
OF_KITS = {"_get_torch_save_params"}
"""Of Stable-Baselines3, in the kit that is made for it."""


def modules(*, compat: bool) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if (path.parent == COMPAT) is compat:
            yield path, ast.parse(path.read_text())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def accessed(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, object and name of every private attribute that is read, written or asked for by a constant name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.lineno, ast.unparse(node.value), node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr", "delattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield node.lineno, ast.unparse(node.args[0]), str(name.value)


def defined() -> set[str]:
    """Every private name that the package itself gives to something."""
    names: set[str] = set()
    for _, tree in modules(compat=False):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("self.", "cls.")):
                names |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
            elif isinstance(node, ast.keyword) and node.arg:
                names.add(node.arg)  # of __dict__.update()
    return names


def test_pytest_is_private() -> None:
    found = []
    for path, tree in modules(compat=False):
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path}:{node.lineno}" for name in names if name.partition(".")[0] == "_pytest"]  # type: ignore[attr-defined]
    assert not found, "imports of _pytest outside compat"


def test_attributes_are_private() -> None:
    ours = defined() | DOCUMENTED | OF_KITS
    touched = {name for _, tree in modules(compat=True) for _, owner, name in accessed(tree) if owner != "self"}
    found = []
    for path, tree in modules(compat=False):
        for line, owner, name in accessed(tree):
            inherited_or_own = owner in ("self", "cls") and name in ours
            if not inherited_or_own and (name not in ours or name in touched):
                found.append(f"{path}:{line}: {owner}.{name}")
    assert not found, "private attributes outside compat"


def test_every_entry_is_described_and_tested() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_compat_*.py"))
    for path, tree in modules(compat=True):
        found = list(entries(tree))
        assert not found or "Seen in" in (ast.get_docstring(tree) or ""), f"{path.name} does not say where it was seen"
        for name, text in found:
            assert "Without" in text or "See ``" in text, f"{name} in {path.name} does not say what fails without it"
            assert name in tests, f"{name} in {path.name} has no test"


def entries(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and docstring of all that is public in a module."""
    for node, following in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not is_private(node.name):
            yield node.name, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign):
            names = [name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)]
            yield from ((name, ast.unparse(following)) for name in names if not is_private(name))
