"""The parent of test processes, in a process of its own, asked over a socket of this test's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pids import is_gone, pid_in

from pytest_rlstability.model.messages import EndProcess, Finish, ProcessEnded, Quit, StartFailed, StartProcess
from pytest_rlstability.model.progress_counters import ProgressCounters
from pytest_rlstability.osinfo.endpoint import Endpoint
from pytest_rlstability.osinfo.message_socket import MessageSocket
from pytest_rlstability.parent.loop import ProcessParent

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the parent is forked for this test")


class Parent:
    """A parent process that runs the Python program which an order names instead of an interpreter."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.counters = ProgressCounters(directory)
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            self._serve(theirs)
        theirs.close()
        self.messages = MessageSocket(ours)

    def _serve(self, connection: socket.socket) -> None:
        code = 1
        try:
            connection.setblocking(False)

            def start(order: StartProcess) -> int:
                if order.python in ("no room", "no way"):
                    raise OSError("no room") if order.python == "no room" else RuntimeError("no way")
                command = [sys.executable, "-c", order.python]
                process = subprocess.Popen(command, start_new_session=True, cwd=self.directory)
                process.returncode = 0
                return process.pid

            ProcessParent(MessageSocket(connection), start, Endpoint("", "", self.directory)).serve()
            code = 0
        finally:
            os._exit(code)

    def run(self, program: str, serial: int = 1) -> None:
        self.messages.send(StartProcess(serial, python=program))

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        self.messages.close()
        if self.pid:
            self.wait()


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    (tmp_path / "run").mkdir()
    forked = Parent(tmp_path / "run")
    yield forked
    forked.close()


STRAY = """
import subprocess, sys
stray = subprocess.Popen([sys.executable, "-c", {program!r}], start_new_session={session})
open("stray", "w").write(f"{{stray.pid}}\\n")
"""


@pytest.mark.parametrize(
    ("program", "status"),
    [("pass", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9)],
    ids=["passes", "exits", "killed"],
)
def test_how_a_process_ended_is_sent(parent, program, status):
    parent.run(program, 3)
    ended = parent.messages.receive()
    assert isinstance(ended, ProcessEnded)
    assert (ended.serial, ended.status, ended.strays) == (3, status, ())
    assert ended.peak > 1 << 20


def test_a_process_is_ended_when_asked_with_everything_below_it(parent):
    parent.run(STRAY.format(program="import time; time.sleep(600)", session=True) + "stray.wait()")
    stray = pid_in(parent.directory / "stray")
    parent.messages.send(EndProcess(1))
    assert parent.messages.receive().status == -signal.SIGKILL
    assert is_gone(stray)


@pytest.mark.parametrize("session", [False, True], ids=["same session", "session of its own"])
@pytest.mark.parametrize(
    "program",
    ["import time; time.sleep(600)", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"],
    ids=["ends on SIGTERM", "ignores SIGTERM"],
)
def test_what_a_process_left_running_is_ended_and_named(parent, program, session):
    parent.run(STRAY.format(program=program, session=session))
    ended = parent.messages.receive()
    stray = pid_in(parent.directory / "stray")
    assert ended.status == 0
    (name,) = ended.strays
    assert name.endswith(f"(pid {stray})")
    assert is_gone(stray)


def test_strays_of_another_session_are_left_alone_while_a_test_runs(parent):
    """They may belong to the test that runs."""
    parent.counters.of_process(1).enter("call")
    parent.run("import time; time.sleep(600)", serial=1)
    parent.run(STRAY.format(program="import time; time.sleep(600)", session=True), serial=2)
    ended = parent.messages.receive()
    assert (ended.serial, ended.strays) == (2, ())
    stray = pid_in(parent.directory / "stray")
    os.kill(stray, 0)
    parent.messages.send(EndProcess(1))
    ended = parent.messages.receive()
    assert ended.serial == 1
    assert len(ended.strays) == 1
    assert is_gone(stray)


def test_quit_ends_the_parent_and_keeps_the_files(parent):
    parent.run("import os, time; open('pid', 'w').write(f'{os.getpid()}\\n'); time.sleep(600)")
    running = pid_in(parent.directory / "pid")
    parent.messages.send(Quit())
    parent.messages.close()
    assert parent.wait() == 0
    assert is_gone(running)
    assert parent.directory.exists()


def test_when_pytest_is_killed_everything_ends_and_the_files_go(parent):
    parent.run("import os, time; open('pid', 'w').write(f'{os.getpid()}\\n'); time.sleep(600)")
    running = pid_in(parent.directory / "pid")
    parent.messages.close()
    assert parent.wait() == 0
    assert is_gone(running)
    assert not parent.directory.exists()


def test_an_order_that_is_not_for_a_parent_is_an_error(parent):
    parent.messages.send(Finish())
    assert parent.messages.receive() is None
    assert parent.wait() == 1


def test_a_start_that_fails_is_an_answer_and_not_the_end(parent):
    parent.run("no room", serial=1)
    parent.run("no way", serial=2)
    assert parent.messages.receive() == StartFailed(1, "no room", again=True)
    assert parent.messages.receive() == StartFailed(2, "no way", again=False)
    parent.run("raise SystemExit(3)", serial=3)
    ended = parent.messages.receive()
    assert (ended.serial, ended.status) == (3, 3)
