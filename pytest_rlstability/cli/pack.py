"""Bundle a saved model with observations and its predictions, to be verified on another machine.

  rlstability pack model.zip bundle.zip

A model that holds code, such as a schedule that is a lambda or a closure, is refused. With --i-trust-this-file it is
packed, and the code is named.

Exit code 0: packed, 1: the model does not work on this machine, 2: the file cannot or should not be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_rlstability.cli.audit import add_trust, refuse
from pytest_rlstability.kits.models.archive import RefusedError, as_text
from pytest_rlstability.kits.models.audit import audit
from pytest_rlstability.kits.models.judge import Trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="SB3 zip, VecNormalize or replay-buffer pickle, or torch file")
    parser.add_argument("out", type=Path, help="the bundle to write")
    parser.add_argument(
        "--observations", type=Path, metavar="FILE", help=".npy or .npz (default: drawn from the space)"
    )
    parser.add_argument(
        "--algorithm", default="", metavar="MODULE:CLASS", help="the class that loads it, if the file does not name one"
    )
    add_trusts(parser)


def add_trusts(parser: argparse.ArgumentParser) -> None:
    """What ``verify`` has too: trust in modules, and in the whole file."""
    add_trust(parser)
    parser.add_argument(
        "--i-trust-this-file", action="store_true", help="load it although it holds code, which then runs"
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
    lines = [done, f"check it on another machine: rlstability verify {arguments.out.name}"]
    if code := audit(arguments.model, trust=trust_of(arguments)).code:
        held = ", ".join(f"{entry} ({what})" for entry, what in code.items())
        lines.append(
            f"{arguments.model.name} holds code, which other Python versions may not run: {held}; "
            f"rlstability audit {arguments.model.name} --python VERSION says which"
        )
    print(as_text(*lines), end="")
    return 0
