"""``python -m pytest_rlstability.parent.spawn ADDRESS TOKEN DIRECTORY``: the parent of spawned test processes.

An interpreter that has imported nothing of the user's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pytest_rlstability.model.messages import StartProcess
from pytest_rlstability.osinfo.message_socket import Endpoint
from pytest_rlstability.parent.loop import ProcessParent, connect_parent


def serve(endpoint: Endpoint) -> None:
    def start(order: StartProcess) -> int:
        """Start a fresh interpreter, which asks pytest's process what to prepare."""
        command = [order.python, "-m", "pytest_rlstability.child.spawn_main", *to_arguments(endpoint)]
        process = subprocess.Popen(
            [*command, str(order.serial)], env=order.environment, cwd=order.directory, start_new_session=True
        )
        process.returncode = 0  # reaped by the loop, not by Popen
        return process.pid

    ProcessParent(connect_parent(endpoint), start, endpoint).serve()


def to_arguments(endpoint: Endpoint) -> list[str]:
    """*endpoint* as words of a command line; ``from_arguments`` reads them."""
    return [json.dumps(endpoint.address), endpoint.token, str(endpoint.directory)]


def from_arguments(arguments: list[str]) -> Endpoint:
    address, token, directory = arguments
    return Endpoint(json.loads(address), token, Path(directory))


if __name__ == "__main__":
    serve(from_arguments(sys.argv[1:]))
