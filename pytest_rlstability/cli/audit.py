"""Find what in a saved model breaks on another Python or machine, without loading it.

  rlstability audit model.zip
  rlstability audit model.zip --python 3.12 --python 3.14

It names every entry that holds code (a lambda, a closure, a function of the training script), the Python that wrote
it, and the custom_objects argument with which load() does not need it.

Exit code 0: nothing breaks on the targets, 1: something does, 2: the file cannot or should not be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pytest_rlstability.cli.status_line import StatusLine
from pytest_rlstability.kits.models.archive import RefusedError
from pytest_rlstability.kits.models.audit import audit, parse_version
from pytest_rlstability.kits.models.bytecode import Version
from pytest_rlstability.kits.models.judge import Trust
from pytest_rlstability.model.units import format_size

_LARGE = 50_000_000
"""Bytes that take a while to read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=Path, nargs="?", help="SB3 zip, VecNormalize or replay-buffer pickle, or torch file"
    )
    parser.add_argument(
        "--python",
        nargs="+",
        action="extend",
        default=[],
        metavar="VERSION",
        help="Pythons the file will be loaded on, such as 3.12 (default: this one)",
    )
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.set_defaults(usage_error=parser.error)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """``--trust MODULE``, which ``pack`` and ``verify`` have too."""
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE",
        help="also allow the classes and functions of this module of yours (repeatable)",
    )


def refuse(error: RefusedError) -> int:
    """Say that the file was refused and what was found."""
    print(f"refused: {error.word}: {error}", file=sys.stderr)
    return 2


def _read(arguments: argparse.Namespace) -> tuple[Path, list[Version]]:
    """The model and the targets; after ``--python 3.12 model.zip`` argparse takes the model for a version."""
    versions = list(arguments.python)
    if not arguments.model and not versions:
        arguments.usage_error("the following arguments are required: model")
    model = arguments.model or Path(versions.pop())
    try:
        return model, [parse_version(version) for version in versions]
    except ValueError as error:
        arguments.usage_error(f"argument --python: {error}")
        raise


def run(arguments: argparse.Namespace) -> int:
    model, targets = _read(arguments)
    status = StatusLine()
    if model.is_file() and (size := model.stat().st_size) > _LARGE:
        status.show(f"reading {model.name}, {format_size(size)}")
    try:
        try:
            result = audit(model, targets, Trust(tuple(arguments.trust)))
        finally:
            status.clear()
    except RefusedError as error:
        if arguments.json:
            print(json.dumps({"path": str(model), "verdict": error.word, "refused": str(error)}))
        return refuse(error)
    print(json.dumps(result.to_dict(), indent=2) if arguments.json else result.text().rstrip("\n"))
    return result.exit_code
