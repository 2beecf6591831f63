"""JSON for whatever a test hands over: a value that JSON does not know crosses as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from pytest_rlstability.model.units import shorten


def plain(value: object, fallback: Callable[[object], str], depth: int = 20) -> object:
    """*value* made of JSON's own types; *fallback* makes text of the parts that JSON does not know.

    >>> plain({1: {2, 2}, "x": [None, {(): 1}]}, str)
    {'1': '{2}', 'x': [None, {'()': 1}]}
    """
    try:
        _to_json_only(value)
    except Exception:
        if isinstance(value, Mapping) and depth:
            return {str(key): plain(item, fallback, depth - 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)) and depth:
            return [plain(item, fallback, depth - 1) for item in value]
        try:
            return fallback(value)
        except Exception:
            return printable(value)
    return value


def cut(value: object, kept: int) -> object:
    """*value* with at most some *kept* characters or items at each end of every text, list and object in it."""
    match value:
        case str():
            return shorten(value, kept)
        case dict():
            names = [*value][: 2 * kept]
            return {name: cut(value[name], kept) for name in names}
        case list() | tuple():
            return [cut(item, kept) for item in (value if len(value) <= 2 * kept else [*value[:kept], *value[-kept:]])]
    return value


def _refuse(value: object) -> object:
    raise TypeError(type(value).__name__)


def printable(value: object) -> str:
    """Text for a value that JSON does not know: what a test puts into a report must never break the report."""
    try:
        return repr(value)
    except Exception:
        return f"<unprintable {type(value).__name__}>"


class _Encoder(json.JSONEncoder):
    """With references of its own: a test may replace the methods of json's class."""

    iterencode = json.JSONEncoder.iterencode


class _Decoder(json.JSONDecoder):
    raw_decode = json.JSONDecoder.raw_decode


to_json = _Encoder(default=printable).encode
_to_json_only = _Encoder(default=_refuse).encode
from_json = _Decoder().decode
