"""The lock holds: what a locked process tries against the machine fails, and what loading a model needs works."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from pytest_rlstability.__main__ import main
from pytest_rlstability.kits.models import lock
from pytest_rlstability.steps import Outcome, Step, run_step

pytestmark = pytest.mark.skipif(bool(lock.missing()), reason=lock.missing())

LOCKED = """
import errno, importlib.util, os, sys
spec = importlib.util.spec_from_file_location("lock", arguments["lock"])
lock = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lock)
lock.lock_in([arguments["scratch"], sys.argv[1]], [*sys.path, sys.prefix, sys.base_prefix], 60)
def attempt(function, *given):
    try:
        function(*given)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
"""


def locked(code: str, scratch: Path, **arguments: object) -> Outcome:
    return run_step(
        Step(
            "locked",
            code=LOCKED + code,
            arguments={"scratch": str(scratch), "lock": lock.__file__, **arguments},
            environment=lock.environment(scratch),
            search_path=tuple(os.path.abspath(entry) for entry in sys.path),
            timeout=60.0,
        )
    )


def test_network_is_out_of_reach(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = "import socket; result = attempt(socket.create_connection, ('127.0.0.1', arguments['port']), 2)"
        outcome = locked(code, tmp_path, port=server.getsockname()[1])
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()
    assert outcome.result == "EPERM", outcome
    assert locked("import socket; result = attempt(socket.socket, socket.AF_UNIX)", tmp_path).result == "EPERM"


def test_only_the_scratch_directory_is_written_to(tmp_path: Path) -> None:
    scratch, other = tmp_path / "scratch", tmp_path / "other"
    scratch.mkdir()
    other.write_text("kept")
    code = """
other, scratch = arguments["other"], arguments["scratch"]
result = {
    "write": attempt(open, other, "w"),
    "append": attempt(open, other, "a"),
    "new": attempt(open, other + "2", "x"),
    "read": attempt(open, other),
    "remove": attempt(os.unlink, other),
    "rename": attempt(os.rename, other, other + "3"),
    "link": attempt(os.link, other, scratch + "/link"),
    "truncate": attempt(os.truncate, other, 0),
    "mode": attempt(os.chmod, other, 0o777),
    "times": attempt(os.utime, other),
    "symlink": attempt(os.symlink, other, scratch + "/symlink"),
    "scratch": attempt(open, scratch + "/file", "w"),
}
"""
    result = locked(code, scratch, other=str(other)).result
    assert result.pop("scratch") == "done"
    assert set(result.values()) <= {"EACCES", "EPERM", "EXDEV"}, result
    assert other.read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["other", "scratch"]


def test_no_process_is_started_and_none_is_signalled(tmp_path: Path) -> None:
    code = """
import signal, subprocess
result = {
    "fork": attempt(os.fork),
    "spawn": attempt(subprocess.run, [sys.executable, "-c", ""]),
    "shell": attempt(os.posix_spawn, "/bin/sh", ["sh"], {}),
    "exec": attempt(os.execv, sys.executable, [sys.executable]),
    "kill": attempt(os.kill, os.getppid(), 0),
    "all": attempt(os.kill, -1, 0),
    "itself": attempt(os.kill, os.getpid(), 0),
}
"""
    result = locked(code, tmp_path).result
    assert result.pop("itself") == "done"
    assert set(result.values()) == {"EPERM"}, result


def test_environment_is_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    code = """
def others():
    return [pid for pid in os.listdir("/proc") if pid.isdigit()]
result = [dict(os.environ), open("/proc/self/environ").read(), attempt(os.listdir, "/proc"),
          attempt(open, f"/proc/{os.getppid()}/environ")]
"""
    result = locked(code, tmp_path).result
    assert "hush" not in str(result)
    assert result[0]["HOME"] == str(tmp_path)
    assert result[2:] == ["EACCES", "EACCES"]


def test_memory_and_files_are_limited(tmp_path: Path) -> None:
    code = """
try:
    held = bytearray(arguments["size"])
    result = "held"
except MemoryError:
    result = "no memory"
"""
    assert locked(code, tmp_path, size=lock.MEMORY + 2**20).result == "no memory"
    assert locked(code, tmp_path, size=2**20).result == "held"


def test_threads_still_start(tmp_path: Path) -> None:
    code = """
import threading
result = []
thread = threading.Thread(target=lambda: result.append(attempt(os.fork)))
thread.start()
thread.join()
"""
    assert locked(code, tmp_path).result == ["EPERM"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_code_that_is_trusted_is_still_locked_in(tmp_path: Path) -> None:
    """A schedule that writes where it must not: pack runs it when told to, and it leaves no trace."""
    real_saves = pytest.importorskip("real_saves")
    trace = str(tmp_path / "trace")

    def schedule(progress: float) -> float:
        import contextlib
        import os

        with contextlib.suppress(OSError):
            open(trace, "w").close()
        with contextlib.suppress(OSError):
            os.system(f"touch {trace}")
        return 1e-3

    box, choice = real_saves.OBSERVATIONS["box"], real_saves.ACTIONS["choice"]
    real_saves.make("PPO", box, choice, n_steps=16, learning_rate=schedule).save(model := tmp_path / "m.zip")
    assert os.path.exists(trace)
    os.unlink(trace)
    assert main(["pack", str(model), str(tmp_path / "out")]) == 2
    assert main(["pack", str(model), str(tmp_path / "out"), "--i-trust-this-file"]) == 0
    assert not os.path.exists(trace)
