"""Check on this machine a model that was packed on another.

Exit code 0: it loads, predicts and learns as it did there, 1: it does not, 2: the bundle cannot or should not be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_rlstability.models.archive import RefusedError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="what rlstability pack wrote")


def run(arguments: argparse.Namespace) -> int:
    from pytest_rlstability.models.bundle import verify

    try:
        verification = verify(arguments.bundle)
    except RefusedError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    print(verification.text(), end="")
    return 0 if verification.passed else 1
