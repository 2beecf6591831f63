"""Bundle a saved model with observations and its predictions, to be verified on another machine.

Exit code 0: packed, 1: the model does not work on this machine, 2: the file cannot or should not be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_rlstability.cli.audit import add_trust, refuse
from pytest_rlstability.kits.models.archive import RefusedError, as_text
from pytest_rlstability.kits.models.judge import Trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="SB3 zip, VecNormalize or replay-buffer pickle, or torch file")
    parser.add_argument("out", type=Path, help="the bundle to write")
    parser.add_argument(
        "--observations", type=Path, metavar="FILE", help=".npy or .npz (default: drawn from the space)"
    )
    parser.add_argument("--algorithm", default="", metavar="MODULE:CLASS", help="when the file does not tell")
    add_trusts(parser)


def add_trusts(parser: argparse.ArgumentParser) -> None:
    """What ``verify`` has too: trust in modules, and in the whole file."""
    add_trust(parser)
    parser.add_argument(
        "--i-trust-this-file", action="store_true", help="load it even if it holds code that would be run"
    )


def trust_of(arguments: argparse.Namespace) -> Trust:
    return Trust(tuple(arguments.trust), everything=arguments.i_trust_this_file)


def run(arguments: argparse.Namespace) -> int:
    from pytest_rlstability.kits.models.bundle import PackingError, pack

    try:
        description = pack(
            arguments.model,
            arguments.out,
            observations=arguments.observations,
            algorithm=arguments.algorithm,
            trust=trust_of(arguments),
        )
    except RefusedError as error:
        return refuse(error)
    except PackingError as error:
        print(error, end="", file=sys.stderr)
        return 1
    except OSError as error:
        print(as_text(f"cannot write {arguments.out}: {error.strerror or error}"), end="", file=sys.stderr)
        return 2
    algorithm = description["algorithm"].rpartition(":")[2] or description["kind"]
    done = f"packed {arguments.model.name} ({algorithm}) into {arguments.out}"
    print(as_text(done, f"check it on another machine: rlstability verify {arguments.out.name}"), end="")
    return 0
