"""What a test wrote, made fit to be shown: no terminal codes, no half-drawn progress bars, no endless logs."""

from __future__ import annotations

import re

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def readable(text: object, most: int) -> str:
    """*text* as a person would have seen it in a terminal, and at most about *most* characters of it.

    >>> readable("\\x1b[31mred\\x1b[0m 10%\\rdone", 100)
    'done'
    """
    shown = _TERMINAL_CODES.sub("", _shortened(str(text), most)).replace("\r\n", "\n")
    if "\r" in shown:
        shown = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in shown.split("\n"))
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", shown)


def _shortened(text: str, most: int) -> str:
    """The end says more than the beginning, so that it gets most of the room."""
    if len(text) <= most:
        return text
    head, tail = most // 3, most - most // 3
    return f"{text[:head]}\n[... {len(text) - most:,} characters left out of this page ...]\n{text[-tail:]}"
