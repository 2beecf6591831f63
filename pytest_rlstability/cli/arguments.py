"""Types of command-line arguments that several commands have. A wrong value is told with what is accepted."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from pytest_rlstability.model.units import parse_duration, parse_size

Value = TypeVar("Value", int, float)


def _parsed(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    def parsed(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


duration = _parsed(parse_duration)
size = _parsed(parse_size)
