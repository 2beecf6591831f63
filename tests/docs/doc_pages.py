"""The pages of the documentation, and the blocks and commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_STARTS_COMMAND = re.compile(r"(pytest|rlstability|python|pip|cd|tox|sudo|promtool|prometheus|mkdocs|git) ?\S*")


@dataclass(frozen=True)
class Block:
    """A fenced block; *attributes* are those behind its language, such as ``title="test_x.py"``."""

    page: Path
    language: str
    text: str
    attributes: dict[str, str] = field(default_factory=dict)


def blocks(page: Path) -> Iterator[Block]:
    for language, head, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        yield Block(page, language, text, dict(_ATTRIBUTE.findall(head)))


def commands(page: Path) -> Iterator[str]:
    """Every command of *page* that stands on a line of its own: in a block of bash, or indented."""
    text = page.read_text(encoding="utf-8")
    shell = [block.text for block in blocks(page) if block.language in ("bash", "")]
    indented = re.findall(r"^    (.*)$", _FENCE.sub("", text), re.MULTILINE)
    for line in "\n".join([*shell, *indented]).replace("\\\n", " ").splitlines():
        for part in line.split(" && "):
            command = " ".join(part.split("  #")[0].split(" # ")[0].split())
            if _STARTS_COMMAND.match(command) and _is_typed(command):
                yield command


def _is_typed(command: str) -> bool:
    """Whether it can be a command line at all, and is not a line of a table or of prose."""
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    return command == "rlstability doctor" or any(re.search(r"[-./:=]", word) for word in words[1:])


def options_in(text: str) -> set[str]:
    """The options of ours that *text* names."""
    return set(re.findall(r"(?<![\w-])--rl-[a-z-]*[a-z]", text))
