"""``python -m pytest_rlstability.parent.spawn DIRECTORY``: the parent of spawned test processes.

An interpreter that has imported nothing of the user's.
"""

from __future__ import annotations

import subprocess
import sys

from pytest_rlstability.model.messages import StartProcess
from pytest_rlstability.osinfo.endpoint import Endpoint
from pytest_rlstability.osinfo.process_control import OWN_SESSION, follow_child
from pytest_rlstability.parent.loop import ProcessParent, connect_parent


def serve(endpoint: Endpoint) -> None:
    def start(order: StartProcess) -> int:
        """Start a fresh interpreter, which asks pytest's process what to prepare."""
        module = "pytest_rlstability.child.spawn_main"
        command = [order.python, "-m", module, str(endpoint.directory), str(order.serial)]
        process = subprocess.Popen(command, env=order.environment, cwd=order.directory, **OWN_SESSION)
        follow_child(process.pid)
        process.returncode = 0  # reaped by the loop, not by Popen
        return process.pid

    ProcessParent(connect_parent(endpoint), start, endpoint).serve()


if __name__ == "__main__":
    serve(Endpoint.load(sys.argv[1]))
