"""Bundle a saved model with observations and its predictions, to be verified on another machine.

Exit code 0: packed, 1: the model does not work on this machine, 2: the file cannot or should not be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_rlstability.models.archive import RefusedError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="SB3 zip, VecNormalize or replay-buffer pickle, or torch file")
    parser.add_argument("out", type=Path, help="the bundle to write")
    parser.add_argument(
        "--observations", type=Path, metavar="FILE", help=".npy or .npz (default: drawn from the space)"
    )
    parser.add_argument("--statistics", type=Path, metavar="FILE", help="VecNormalize pickle that belongs to the model")
    parser.add_argument("--algorithm", default="", metavar="MODULE:CLASS", help="when the file does not tell")


def run(arguments: argparse.Namespace) -> int:
    from pytest_rlstability.models.bundle import PackingError, pack

    try:
        description = pack(
            arguments.model,
            arguments.out,
            observations=arguments.observations,
            statistics=arguments.statistics,
            algorithm=arguments.algorithm,
        )
    except RefusedError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    except PackingError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"cannot write {arguments.out}: {error.strerror or error}", file=sys.stderr)
        return 2
    algorithm = description["algorithm"].rpartition(":")[2] or description["kind"]
    print(f"packed {arguments.model.name} ({algorithm}) into {arguments.out}")
    print(f"check it on another machine: rlstability verify {arguments.out.name}")
    return 0
