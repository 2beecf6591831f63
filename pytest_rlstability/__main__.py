"""``rlstability`` and ``python -m pytest_rlstability``: one line per command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

# command -> module with ``add_arguments(parser)`` and ``run(arguments) -> int``; the docstring's first line is its help
COMMANDS: dict[str, str] = {
    "audit": "pytest_rlstability.cli.audit",
    "doctor": "pytest_rlstability.cli.doctor",
    "pack": "pytest_rlstability.cli.pack",
    "verify": "pytest_rlstability.cli.verify",
    "report": "pytest_rlstability.cli.report",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(prog="rlstability", description="Crashes, leaks and stalls of training code.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        summary = (module.__doc__ or "").strip().split("\n")[0]
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
