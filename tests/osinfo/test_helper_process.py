"""Interpreters started beside the test's: what they can import, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlstability.osinfo.helper_process import PACKAGE_PARENT, HelperProcess, module_command
from pytest_rlstability.osinfo.processes import command_of, is_alive

SHOW = """
import json, os, sys
def main(arguments):
    print(json.dumps([arguments, sys.path, os.environ.get("RL_GIVEN"), os.environ.get("HOME")]))
"""


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module ``show`` that this process can import, and a trap for those who look into the working directory."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "show.py").write_text(SHOW)
    (tmp_path / "json.py").write_text("raise ImportError('not this one')")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "modules"


def test_a_module_of_this_process(show: Path) -> None:
    environment = {"RL_GIVEN": "yes", "HOME": None}
    with HelperProcess(module_command("show", "a", "b c"), environment=environment, stdout=subprocess.PIPE) as process:
        output, _ = process.communicate()
    arguments, path, given, home = json.loads(output)
    assert (arguments, given, home) == (["a", "b c"], "yes", None)
    assert str(show) in path
    assert "" not in path


def test_an_isolated_one_sees_only_what_is_installed(show: Path) -> None:
    command = module_command("show", isolated=True)
    with HelperProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        _, errors = process.communicate()
    assert b"No module named 'show'" in errors
    program = f"import sys; sys.path[:0] = [{PACKAGE_PARENT!r}]"
    assert program in command[3]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_ends_with_its_descendants() -> None:
    program = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    os.write(1, b"%d\\n" % os.getpid())
time.sleep(600)
"""
    process = HelperProcess([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        child = int(output.readline())
    assert not process.ended_within(0.05)
    process.end()
    assert process.returncode == -signal.SIGKILL
    while is_alive(child):
        os.sched_yield()
    process.end()
    assert process.ended_within(0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_its_name_comes_first_in_a_list_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waits.py").write_text("import time\ndef main(arguments):\n    print(flush=True); time.sleep(600)")
    monkeypatch.syspath_prepend(tmp_path)
    with HelperProcess(module_command("waits"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert command_of(process.pid).startswith(f"{sys.executable} -P -c 'waits'; ")
        process.end()
