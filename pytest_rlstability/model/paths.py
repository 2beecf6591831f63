"""Paths in texts, as a person wants to read them."""

from __future__ import annotations

import re
from functools import lru_cache


def without_root(text: str, root: str) -> str:
    """*text* with the paths below the directory *root* shown from there.

    >>> without_root("/game/env.py:4 in step, /old/game/env.py:4", "/game")
    'env.py:4 in step, /old/game/env.py:4'
    >>> without_root("holds the absolute path /game/env.py", "/game")
    'holds the absolute path /game/env.py'
    """
    return _below(root).sub("", text) if root.strip("/\\") else text


@lru_cache(maxsize=64)
def _below(root: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w./\\-])(?<!absolute path ){re.escape(root)}[/\\]")
