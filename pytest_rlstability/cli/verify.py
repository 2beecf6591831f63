"""Check on this machine a model that was packed on another.

  rlstability verify bundle.zip

Exit code 0: it loads, predicts and learns as it did there, 1: it does not, 2: the bundle cannot or should not be read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_rlstability.cli.audit import refuse
from pytest_rlstability.cli.pack import add_trusts, trust_of
from pytest_rlstability.kits.models.archive import RefusedError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="what rlstability pack wrote")
    add_trusts(parser)


def run(arguments: argparse.Namespace) -> int:
    from pytest_rlstability.kits.models.bundle import verify

    try:
        passed, report = verify(arguments.bundle, trust_of(arguments))
    except RefusedError as error:
        return refuse(error)
    print(report, end="")
    return 0 if passed else 1
