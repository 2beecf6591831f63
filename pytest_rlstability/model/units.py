"""Durations, sizes and counts as people write them: ``250ms``, ``30 s``, ``8h``; ``1 KiB``, ``2MB``; ``3 tests``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-zµ]*)\s*")

_SECONDS = {
    "": 1.0, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400,
}  # fmt: skip
_BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip

DURATION_FORM = "a duration such as 250ms, 30s, 10min or 8h"
SIZE_FORM = "a size such as 512, 1KiB or 2MB"

KEPT_BYTES = 256 * 1024
"""How much of the head and how much of the tail of one captured stream is kept in a report."""


def shorten(text: str, kept: int = KEPT_BYTES) -> str:
    """*text*, with its middle left out when it is too long: *kept* characters at each end stay.

    >>> shorten("abcdefghij", 2)
    'ab\\n[... 6 characters left out by rl-stability ...]\\nij'
    """
    left_out = len(text) - 2 * kept
    if left_out <= 0:
        return text
    return f"{text[:kept]}\n[... {left_out:,} characters left out by rl-stability ...]\n{text[-kept:]}"


def parse_duration(value: str | float) -> float:
    """Seconds in *value*: a number of seconds, or text such as ``250ms``, ``30 s``, ``10min``, ``8h``."""
    return _quantity(value, (int, float), _SECONDS, DURATION_FORM)


def parse_size(value: str | int) -> int:
    """Bytes in *value*: a whole number, or text such as ``512``, ``1KiB``, ``2 MB``."""
    return int(_quantity(value, (int,), _BYTES, SIZE_FORM))


def _quantity(value: object, numbers: tuple[type[float], ...], units: Mapping[str, float], form: str) -> float:
    """*value*, one of *numbers* or text with one of *units*, as a number that is finite and not negative."""
    number = -1.0
    if isinstance(value, numbers) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, str) and (match := _QUANTITY.fullmatch(value)) and match[2].lower() in units:
        number = float(match[1]) * units[match[2].lower()]
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r} is not {form}")
    return number


def format_duration(seconds: float) -> str:
    """*seconds* for a person: ``12 µs``, ``250 ms``, ``3.2 s``, ``10 min``, ``1 h 5 min``."""
    if 0 < seconds < 0.0000995:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.0995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_size(size: float) -> str:
    """*size* in bytes for a person: ``512 B``, ``1.5 KiB``, ``2.1 GiB``; the sign is kept."""
    sign, size = ("-", -size) if size < 0 else ("", size)
    if size < 1024:
        return f"{sign}{size:.4g} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{sign}{size:.1f} {unit}"
    return f"{sign}{size / 1024:.1f} TiB"


def counted(number: int, one: str, many: str = "") -> str:
    """*number* with its noun.

    >>> counted(1, "test"), counted(1200, "test"), counted(2, "process", "processes")
    ('1 test', '1,200 tests', '2 processes')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def escaped(text: str) -> str:
    r"""*text* with everything escaped that would end a line or that a terminal would act on.

    >>> escaped("name: \x1b[2Jwiped\n")
    'name: \\x1b[2Jwiped\\n'
    """
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
