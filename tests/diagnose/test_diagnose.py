"""``rlstability diagnose`` and ``rlstability rerun`` on real tests and commands."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import RunPytest

from pytest_rlstability.osinfo.native_stacks import find_tool
from pytest_rlstability.osinfo.processes import is_alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's means to watch processes")
COMMAND = [sys.executable, "-m", "pytest_rlstability"]


def rlstability(directory: Path, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=directory, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
    )


def write(directory: Path, name: str, source: str) -> Path:
    path = directory / name
    path.write_text(textwrap.dedent(source))
    return path


def diagnosed(directory: Path, *words: str) -> dict[str, Any]:
    result = rlstability(directory, "diagnose", "--json", *words)
    assert result.stdout, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    result = rlstability(tmp_path, "diagnose", "--", "no-such-program")
    assert result.returncode == 2
    assert "cannot start 'no-such-program': No such file or directory" in result.stdout


def test_one_run_that_takes_longer_than_the_time(tmp_path: Path) -> None:
    result = rlstability(tmp_path, "diagnose", "--for", "1s", "--", sys.executable, "-c", "import time; time.sleep(60)")
    assert result.returncode == 2
    assert "one run takes longer than the time given: give more with --for" in result.stdout


def test_a_test_that_cannot_be_found_is_told_with_pytests_words(tmp_path: Path) -> None:
    write(tmp_path, "test_it.py", "def test_one(): pass")
    result = rlstability(tmp_path, "diagnose", "test_it.py::test_two")
    assert result.returncode == 2
    assert "not found" in result.stdout


def test_nothing_to_diagnose(tmp_path: Path) -> None:
    assert rlstability(tmp_path, "diagnose").returncode == 2
    assert "one test at a time" in rlstability(tmp_path, "diagnose", "a.py::a", "b.py::b").stderr


def test_ctrl_c_gives_what_is_known(tmp_path: Path) -> None:
    source = "import os, signal, time; time.sleep(0.2); os.kill(os.getpid(), signal.SIGSEGV)"
    words = [*COMMAND, "diagnose", "--", sys.executable, "-c", source]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "8 of 8" in line:
            break
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: this is what is known" in output
    assert "It dies every time" in output
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_one_that_passes_is_told_with_a_bound(tmp_path: Path) -> None:
    result = rlstability(tmp_path, "diagnose", "--for", "30s", "--", sys.executable, "-c", "pass")
    assert result.returncode == 0
    assert re.search(
        r"It passed in all \d+ runs?: with 95 % confidence it fails in less than \d+ % of them", result.stdout
    )


def test_one_that_reads_the_terminal_gets_no_input(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        words = [
            *COMMAND,
            "diagnose",
            "--for=30s",
            "--factors=none",
            "--",
            sys.executable,
            "-c",
            "print(input('name? '))",
        ]
        result = subprocess.run(words, cwd=tmp_path, stdin=theirs, capture_output=True, text=True, timeout=120)
    finally:
        os.close(ours)
        os.close(theirs)
    assert result.returncode == 1
    assert "It fails every time" in result.stdout
    assert "No culprit" not in result.stdout


@pytest.mark.slow
def test_daemons_of_the_runs_are_ended(tmp_path: Path) -> None:
    source = """
        import os, pathlib, time
        if os.fork():
            os._exit(0)
        os.setsid()
        pathlib.Path(f"daemon.{os.getpid()}").touch()
        time.sleep(600)
    """
    write(tmp_path, "daemon.py", source)
    result = rlstability(tmp_path, "diagnose", "--for=30s", "--", sys.executable, "daemon.py")
    assert result.returncode == 0
    daemons = [int(path.suffix[1:]) for path in tmp_path.glob("daemon.[0-9]*")]
    assert [pid for pid in daemons if is_alive(pid)] == []


def test_a_missing_valgrind_is_named_with_the_line_that_installs_it(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "setarch").symlink_to(shutil.which("setarch") or "/usr/bin/setarch")
    words = [*COMMAND, "diagnose", "--for=20s", "--factors=none", "--"]
    result = subprocess.run(
        [*words, sys.executable, "-c", "import os; os.abort()"],
        cwd=tmp_path, env={**os.environ, "PATH": str(tools)}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert result.returncode == 1
    assert "valgrind: not installed (apt-get install valgrind)" in result.stdout
    assert "No culprit found." in result.stdout


def test_python_code_that_gives_ctypes_a_wrong_address_is_named(tmp_path: Path) -> None:
    if find_tool("pystack") is None and find_tool("gdb") is None:
        pytest.skip("needs pystack or gdb")
    write(tmp_path, "train.py", "import ctypes\ndef step():\n    ctypes.memset(8, 0, 64)\nstep()")
    found = diagnosed(tmp_path, "--for=60s", "--factors=none", "--", sys.executable, "train.py")
    assert (found["culprit"]["function"], found["culprit"]["place"]) == ("step", "train.py:3")


FACTORS = "one thread, gc off, workers by spawn, no ASLR, ends after stage 'make env'"


@pytest.mark.slow
def test_the_factor_that_matters_is_named_and_no_other(tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        """
        import os, signal
        from pytest_rlstability import stage

        with stage("make env"):
            pass
        with stage("learn"):
            if os.environ.get("OMP_NUM_THREADS") != "1":
                os.kill(os.getpid(), signal.SIGSEGV)
        """,
    )
    found = diagnosed(tmp_path, "--jsonl=why.jsonl", f"--factors={FACTORS}", "--", sys.executable, "train.py")
    effects = {one["factor"]: one["effect"] for one in found["factors"]}
    assert found["factor"] == "one thread"
    assert effects.pop("one thread") == "goes away"
    assert effects.pop("ends after stage 'make env'") == "goes away"
    assert set(effects.values()) == {"no difference"}
    assert found["plain"]["died"] == found["plain"]["runs"]
    events = [json.loads(line) for line in (tmp_path / "why.jsonl").read_text().splitlines()]
    assert events[-1]["verdict"]["sections"][-1][0] == "Diagnosis"


CULPRIT = """
    #include <stdlib.h>
    double *make_row(int n) { return malloc(n * sizeof(double)); }
    void fill_row(double *row, int n) { for (int i = 0; i <= n; i++) row[i] = i; }
    void drop_row(double *row) { free(row); }
"""
VICTIM = """\
    import ctypes

    library = ctypes.CDLL("./librows.so")
    library.make_row.restype = ctypes.c_void_p
    library.fill_row.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.drop_row.argtypes = [ctypes.c_void_p]
    rows = [library.make_row(3) for _ in range(300)]
    for row in rows:
        library.fill_row(row, 3)
    for row in rows:
        library.drop_row(row)
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc") or not shutil.which("valgrind"), reason="needs gcc and valgrind")
def test_the_function_that_damages_memory_is_named_and_not_its_victim(tmp_path: Path) -> None:
    write(tmp_path, "rows.c", CULPRIT)
    write(tmp_path, "train.py", VICTIM)
    subprocess.run(["gcc", "-g", "-shared", "-fPIC", "-o", "librows.so", "rows.c"], cwd=tmp_path, check=True)
    found = diagnosed(tmp_path, "--factors=none", "--", sys.executable, "train.py")
    assert found["culprit"], found
    assert (found["culprit"]["function"], found["culprit"]["place"]) == ("fill_row", "rows.c:4")
    assert "train.py:9 in <module>" in found["culprit"]["python_lines"][0]
    assert "make_row" in found["culprit"]["details"]


@pytest.mark.slow
def test_failures_of_a_run_are_run_again_each_with_its_seed(tmp_path: Path) -> None:
    write(
        tmp_path,
        "test_it.py",
        """
        import ctypes, os, random

        def test_crash(): ctypes.string_at(0)
        def test_drawn(): assert random.random() > 2
        def test_cured(): assert os.path.exists("cure")
        def test_fine(): pass
        """,
    )
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rl-stability",
         "--rl-seed=7", "--rl-jsonl=run.jsonl", "test_it.py"],
        cwd=tmp_path, capture_output=True,
    )  # fmt: skip
    (tmp_path / "cure").touch()
    result = rlstability(tmp_path, "rerun", "run.jsonl")
    assert result.returncode == 1
    assert "CRASH again: SIGSEGV in call (the same signature)" in result.stdout
    assert "passed this time" in result.stdout
    assert "2 of 3 failures came back" in result.stdout
    assert "--rl-seed=7" in result.stdout
    only = rlstability(tmp_path, "rerun", "run.jsonl", "--only", "crash", "--list")
    assert only.stdout.count("\n") == 1
    assert "test_it.py::test_crash" in only.stdout
    nothing = rlstability(tmp_path, "rerun", "run.jsonl", "--only", "STALL")
    assert (nothing.returncode, "nothing to run again" in nothing.stdout) == (0, True)
    assert rlstability(tmp_path, "rerun", "no.jsonl").returncode == 2


def test_a_crash_of_a_run_is_diagnosed_in_its_report(run_pytest: RunPytest) -> None:
    source = "import ctypes\ndef test_crash(): ctypes.string_at(0)\ndef test_fails(): assert False"
    outcome = run_pytest(source, "--rl-native=off", "--rl-diagnose=3s")
    assert "Diagnosis:" in outcome.details["test_crash"]
    assert "test_it.py::test_crash: diagnosed in" in outcome.details["test_crash"]
    assert "Diagnosis:" not in outcome.details["test_fails"]
    assert "--rl-diagnose=soon: expected a duration" in run_pytest(None, "--rl-diagnose=soon").text
