"""The lock holds: what a locked process tries against the machine fails, and what loading a model needs works."""

from __future__ import annotations

import os
import shutil
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


def test_time_of_the_processor_and_size_of_files_are_limited(tmp_path: Path) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n" + LOCKED + "while True: pass"
    step = Step("locked", code=code, arguments={"scratch": str(tmp_path), "lock": lock.__file__})
    assert run_step(step).signal in ("SIGKILL", "SIGXCPU")
    code = """
import resource
limits = ("RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_DATA", "RLIMIT_NOFILE", "RLIMIT_CORE")
result = {name: resource.getrlimit(getattr(resource, name)) for name in limits}
try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
except (OSError, ValueError):
    result["raised"] = "no"
with open(arguments["scratch"] + "/large", "wb") as stream:
    stream.seek(result["RLIMIT_FSIZE"][0])
    result["larger"] = attempt(stream.raw.write, b"x")
"""
    result = locked(code, tmp_path).result
    assert result.pop("larger") == "EFBIG"
    assert result.pop("raised") == "no"
    assert all(0 <= soft == hard < 2**40 for soft, hard in result.values()), result


def test_only_the_system_calls_of_the_list_are_answered(tmp_path: Path) -> None:
    """Each number up to the newest: the others are not permitted, also those that no kernel has yet."""
    code = """
import ctypes, platform
column = 0 if platform.machine() == "x86_64" else 1
answered = [*lock._ANSWERED.values(), *lock._ITS_OWN.values(), *(one for one, _ in lock._REQUESTS.values())]
numbers = {one[column] for one in [*answered, lock._CLONE, lock._CLONE3, lock._PRLIMIT]}
libc = ctypes.CDLL(None, use_errno=True)
result = []
for number in set(range(520)) - numbers - {335, 336}:  # the kernel's own return from probes, never filtered
    ctypes.set_errno(0)
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.EPERM:
        result.append(number)
"""
    outcome = locked(code, tmp_path)
    assert (outcome.ending, outcome.result) == ("ok", []), outcome


def test_terminal_is_not_typed_into_and_signals_have_no_owner(tmp_path: Path) -> None:
    code = """
import fcntl, resource, termios
end = os.pipe()[0]
result = {
    "type": attempt(fcntl.ioctl, 0, termios.TIOCSTI, b"x"),
    "steal": attempt(fcntl.ioctl, 0, termios.TIOCSCTTY, 0),
    "owner": attempt(fcntl.fcntl, end, fcntl.F_SETOWN, os.getppid()),
    "signal": attempt(fcntl.fcntl, end, fcntl.F_SETSIG, 9),
    "affinity": attempt(os.sched_setaffinity, os.getppid(), [0]),
    "limits": attempt(resource.prlimit, os.getppid(), 4, (0, 0)),
    "flags": attempt(fcntl.fcntl, end, fcntl.F_GETFL),
}
"""
    result = locked(code, tmp_path).result
    assert result.pop("flags") == "done"
    assert set(result.values()) == {"EPERM"}, result


def test_process_that_does_not_end_is_ended(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    step = Step("locked", code=LOCKED + "import time; time.sleep(600)", timeout=2.0,
                arguments={"scratch": str(tmp_path), "lock": lock.__file__})  # fmt: skip
    assert run_step(step).ending == "hang"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_without_landlock_bubblewrap_is_the_wall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_interface", lambda: 0)
    assert lock.missing() == ""
    scratch = tmp_path / "in" / "scratch"
    scratch.mkdir(parents=True)
    (tmp_path / "other").write_text("kept")
    python, walled = lock.interpreter(sys.executable, scratch, [os.path.abspath(entry) for entry in sys.path])
    assert walled
    code = (
        LOCKED.replace(", 60)", ", 60, walled=True)")
        + """
import socket
other = arguments["other"]
result = [attempt(open, other), attempt(open, other, "w"), attempt(socket.socket), attempt(os.fork),
          attempt(open, arguments["lock"], "a"), attempt(open, arguments["scratch"] + "/file", "w")]
"""
    )
    arguments = {"scratch": str(scratch), "lock": lock.__file__, "other": str(tmp_path / "other")}
    outcome = run_step(Step("walled", code=code, arguments=arguments, python=python))
    assert outcome.result[:1] == ["ENOENT"], outcome
    assert outcome.result[2:] == ["EPERM", "EPERM", "EROFS", "done"]
    assert (tmp_path / "other").read_text() == "kept"


def test_without_landlock_and_bubblewrap_there_is_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_interface", lambda: 0)
    monkeypatch.setenv("PATH", "")
    assert "neither Landlock" in lock.missing()


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
