"""Command lines as a report may show them: what looks like a credential is replaced by ``***``."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HIDDEN = "***"
_NAME = (
    r"(?:[\w-]*[-_])?(?:pass(?:word|wd|phrase)?|pwd|secret|(?:auth)?token|credentials?|(?:api|access|private)[-_]?key"
    r"|auth|authorization|bearer)(?:[-_][\w-]*)?"
)
_OPTION = re.compile(rf"-+{_NAME}", re.IGNORECASE)
_ASSIGNED = re.compile(rf"(\b{_NAME}['\"]?\s*[=:]\s*['\"]?(?:(?:basic|bearer)\s+)?)[^\s'\"&,;]+", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(\w://[^/\s:@]*:)[^/\s@]+@")
_KNOWN_SHAPE = re.compile(
    r"\b(?:gh[pousr]_|github_pat_|glpat-|sk-|hf_|xox[abprs]-|AKIA|ASIA|AIza|pypi-|eyJ)[\w.-]{12,}"
    r"|(?<![\w/.+-])(?=[\w+-]*\d)(?=[\w+-]*[A-Za-z])[\w+-]{32,}={0,2}(?![\w/.+-])"
)


def redacted(words: Iterable[str]) -> list[str]:
    """The words of a command line without what looks like a credential.

    >>> redacted(["train", "--api-key", "a1b2", "--db=postgres://me:s3cret@host/db", "TOKEN=a1b2", "--steps=7"])
    ['train', '--api-key', '***', '--db=postgres://me:***@host/db', 'TOKEN=***', '--steps=7']
    """
    shown: list[str] = []
    follows = False
    for word in words:
        hidden = _IN_ADDRESS.sub(rf"\1{_HIDDEN}@", _ASSIGNED.sub(rf"\1{_HIDDEN}", word))
        shown.append(_HIDDEN if follows and not word.startswith("-") else _KNOWN_SHAPE.sub(_HIDDEN, hidden))
        follows = _OPTION.fullmatch(word) is not None
    return shown
