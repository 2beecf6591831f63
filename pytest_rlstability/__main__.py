"""``rlstability`` and ``python -m pytest_rlstability``: one line per command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from pytest_rlstability import __version__

# command -> module with ``add_arguments(parser)`` and ``run(arguments) -> int``; the docstring's first line is its help
COMMANDS: dict[str, str] = {
    "audit": "pytest_rlstability.cli.audit",
    "completion": "pytest_rlstability.cli.completion",
    "diagnose": "pytest_rlstability.cli.diagnose",
    "doctor": "pytest_rlstability.cli.doctor",
    "fuzz": "pytest_rlstability.cli.fuzz",
    "pack": "pytest_rlstability.cli.pack",
    "verify": "pytest_rlstability.cli.verify",
    "report": "pytest_rlstability.cli.report",
    "rerun": "pytest_rlstability.cli.rerun",
    "run": "pytest_rlstability.cli.run",
}


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="rlstability",
        description="Find crashes, leaks and stalls of training code.",
        epilog="rlstability COMMAND --help shows examples and exit codes. Tests are checked by pytest --rl-stability.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        summary = (module.__doc__ or "").strip().split("\n")[0]
        command = commands.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = make_parser().parse_args(argv)
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
