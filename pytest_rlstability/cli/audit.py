"""What in a saved model will not survive the trip to another Python or machine (never unpickles it).

Exit code 0: nothing breaks on the targets, 1: something does, 2: the file cannot or should not be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pytest_rlstability.models.archive import RefusedError
from pytest_rlstability.models.audit import audit, parse_version
from pytest_rlstability.models.bytecode import Version


def _version(text: str) -> Version:
    try:
        return parse_version(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="SB3 zip, VecNormalize or replay-buffer pickle, or torch file")
    parser.add_argument(
        "--python",
        type=_version,
        nargs="+",
        action="extend",
        default=[],
        metavar="VERSION",
        help="Pythons the file will be loaded on, such as 3.12 (default: this one)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    try:
        result = audit(arguments.model, arguments.python)
    except RefusedError as error:
        if arguments.json:
            print(json.dumps({"path": str(arguments.model), "refused": str(error)}))
        print(f"refused: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result.to_dict(), indent=2) if arguments.json else result.text(), end="\n" * arguments.json)
    return result.exit_code
