"""The source of a line: the whole statement that it belongs to."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache

_LONGEST = 160


def statement_at(file: str, line: int) -> str:
    """The statement at *line* in one line, of a compound one only that line. Empty when the file cannot be read."""
    first, last = _span(file, line)
    text = ""
    for part in (linecache.getline(file, number).strip() for number in range(first, last + 1)):
        text += part if not text or text.endswith(("(", "[", "{")) or part.startswith((")", "]", "}")) else f" {part}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def _span(file: str, line: int) -> tuple[int, int]:
    """The lines of the simple statement around *line*."""
    return next((span for span in _statements(file) if span[0] <= line <= span[1]), (line, line))


@lru_cache(maxsize=64)
def _statements(file: str) -> tuple[tuple[int, int], ...]:
    """The first and the last line of each simple statement that has several."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    simple = (node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not hasattr(node, "body"))
    return tuple((node.lineno, node.end_lineno) for node in simple if node.end_lineno and node.end_lineno > node.lineno)
