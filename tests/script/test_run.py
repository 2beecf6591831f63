"""``rlstability run``: real commands under watch, seen as a user sees them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are held and read by Linux's means")

CRASHING = """
    import ctypes
    from pytest_rlstability import heartbeat, stage

    def tick():
        ctypes.string_at(0)

    with stage("make env"):
        pass
    with stage("learn"):
        heartbeat()
        tick()
"""


class Runner:
    """``run(source, *options)`` writes a script and runs it by ``rlstability run``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, source: str, *options: str, after: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        (self.path / "train.py").write_text(textwrap.dedent(source))
        return self.command([sys.executable, "train.py", *after], *options)

    def command(self, words: list[str], *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest_rlstability", "run", *options, "--", *words],
            cwd=self.path, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def log(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.path / "run.jsonl").read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_a_crash_has_its_stage_stacks_and_own_status(run: Runner) -> None:
    result = run(CRASHING, "--jsonl", "run.jsonl")
    assert result.returncode == 128 + signal.SIGSEGV
    assert "CRASH: SIGSEGV in the script, stage 'learn'" in result.stderr
    assert "done     make env" in result.stderr
    assert "train.py:6 in tick" in result.stderr
    assert "Reproduce: rlstability run --" in result.stderr
    kinds = [event["event"] for event in run.log()]
    assert kinds[:2] == ["session", "started"]
    assert kinds[-1] == "finished"
    assert run.log()[-1]["verdict"]["facts"]["signal"] == "SIGSEGV"  # type: ignore[index]


def test_the_log_of_a_script_makes_a_page(run: Runner) -> None:
    pytest.importorskip("plotly")
    assert run("print(7)", "--html", "run.html").stdout == "7\n"
    assert "train.py" in (run.path / "run.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("status", [0, 3])
def test_a_status_of_its_own_is_passed_on_and_is_not_a_crash(run: Runner, status: int) -> None:
    result = run(f"import sys; print('out'); sys.exit({status})")
    assert (result.returncode, result.stdout) == (status, "out\n")
    assert "CRASH" not in result.stderr


def test_what_other_commands_do_is_left_alone(run: Runner) -> None:
    assert run.command(["sh", "-c", "exit 5"]).returncode == 5
    assert run.command([sys.executable, "-c", "import sys; print(sys.argv)", "a b"]).stdout == "['-c', 'a b']\n"
    assert run.command([sys.executable, "-I", "-c", "print(1)"]).stdout == "1\n"
    module = run.command([sys.executable, "-m", "json.tool", "--help"])
    assert module.returncode == 0
    assert module.stdout.startswith("usage: python -m json.tool")


def test_a_command_that_does_not_exist(run: Runner) -> None:
    result = run.command(["no-such-program"])
    assert result.returncode == 127
    assert "cannot start 'no-such-program': No such file or directory" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_deadlock_ends_with_70(run: Runner) -> None:
    result = run(
        """
        import threading

        first, second = threading.Lock(), threading.Lock()

        def both(one, other):
            with one:
                threading.Event().wait(0.2)
                with other:
                    pass

        for locks in ((first, second), (second, first)):
            threading.Thread(target=both, args=locks).start()
        """
    )
    assert result.returncode == 70
    assert "STALL: deadlock" in result.stderr
    assert "in both" in result.stderr


def test_silence_after_heartbeats_is_a_stall(run: Runner) -> None:
    source = "from pytest_rlstability import heartbeat\nheartbeat()\nwhile True: pass"
    result = run(source, "--stall-after", "1s")
    assert result.returncode == 70
    assert "STALL: spinning, no progress" in result.stderr


def test_limits_end_a_script_with_70(run: Runner) -> None:
    result = run("import time; time.sleep(60)", "--limit", "500ms")
    assert (result.returncode, "over its limit (--limit) of 0.5 s" in result.stderr) == (70, True)
    result = run("memory = bytearray(200_000_000)\nwhile True: pass", "--memory", "100MB")
    assert (result.returncode, "killed for memory" in result.stderr) == (70, True)


WORKERS = """
    import ctypes, multiprocessing, sys

    def work():
        if "die" in sys.argv:
            ctypes.string_at(0)

    if __name__ == "__main__":
        codes = []
        for method in ("fork", "spawn", "forkserver"):
            process = multiprocessing.get_context(method).Process(target=work)
            process.start()
            process.join()
            codes.append(process.exitcode)
        print(codes)
        sys.exit(any(codes))
"""


def test_workers_of_every_start_method_run_as_without_a_watch(run: Runner) -> None:
    result = run(WORKERS)
    assert (result.returncode, result.stdout) == (0, "[0, 0, 0]\n")


def test_dead_workers_are_named(run: Runner) -> None:
    result = run(WORKERS, after=("die",))
    assert (result.returncode, result.stdout) == (1, "[-11, -11, -11]\n")
    assert "died by SIGSEGV in the script, and 2 more" in result.stderr
    assert "in work" in result.stderr


def test_a_script_that_becomes_a_daemon_goes_on(run: Runner) -> None:
    result = run(
        """
        import os, pathlib, time

        if os.fork():
            os._exit(0)
        os.setsid()
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        while not pathlib.Path("stop").exists():
            time.sleep(0.05)
        pathlib.Path("stopped").write_text("by itself")
        """
    )
    assert result.returncode == 0
    assert "still running, and not watched any more" in result.stderr
    (run.path / "stop").touch()
    deadline = time.monotonic() + 60
    while not (run.path / "stopped").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (run.path / "stopped").exists()


def test_a_script_may_read_the_terminal(run: Runner) -> None:
    """The standstill limit is over before the person answers."""
    (run.path / "train.py").write_text("print('hello', input('name? '))")
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "pytest_rlstability", "run", "--stall-after=300ms", "--", sys.executable, "train.py"]
    process = subprocess.Popen(
        words, cwd=run.path, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    os.close(theirs)
    time.sleep(3)
    os.write(ours, b"bob\n")
    output, errors = process.communicate(timeout=60)
    os.close(ours)
    assert (process.returncode, b"hello bob" in output) == (0, True), errors.decode()


def test_signals_are_passed_on(run: Runner) -> None:
    (run.path / "train.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-m", "pytest_rlstability", "run", "--", sys.executable, "train.py"]
    process = subprocess.Popen(words, cwd=run.path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    assert process.wait(60) == 9
    process.stdout.close()


class Started:
    """A script that runs under watch and has printed ``ready``."""

    def __init__(self, run: Runner, source: str, *options: str) -> None:
        (run.path / "train.py").write_text(textwrap.dedent(source))
        words = [sys.executable, "-m", "pytest_rlstability", "run", *options, "--", sys.executable, "train.py"]
        self._process = subprocess.Popen(
            words, cwd=run.path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.wait_for("ready")

    def wait_for(self, line: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{line}\n"

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Its exit status and what was reported."""
        _, errors = self._process.communicate(timeout=60)
        return self._process.returncode, errors


def test_ctrl_c_is_the_scripts_affair(run: Runner) -> None:
    caught = """
        import time
        try:
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            raise SystemExit(5)
    """
    started = Started(run, caught)
    started.interrupt()
    status, errors = started.end()
    assert (status, "CRASH" in errors, "STALL" in errors) == (5, False, False)
    started = Started(run, "import time\nprint('ready', flush=True)\ntime.sleep(60)")
    started.interrupt()
    status, errors = started.end()
    assert (status, "KeyboardInterrupt" in errors) == (128 + signal.SIGINT, True)


def test_a_second_ctrl_c_ends_a_script_that_goes_on_and_shows_what_it_does(run: Runner) -> None:
    started = Started(
        run,
        """
        import signal, time
        signal.signal(signal.SIGINT, lambda *_: print("not now", flush=True))
        def learn():
            while True:
                time.sleep(0.05)
        print("ready", flush=True)
        learn()
        """,
    )
    started.interrupt()
    started.wait_for("not now")
    started.interrupt()
    status, errors = started.end()
    assert status == 70
    assert "still running at the second Ctrl-C" in errors
    assert "in learn" in errors


def test_a_pools_worker_that_is_killed_is_named(run: Runner) -> None:
    """As the kernel does when memory runs out: the worker can write nothing."""
    result = run(
        """
        import os, signal
        from concurrent.futures import ProcessPoolExecutor

        def work(number):
            os.kill(os.getpid(), signal.SIGKILL)

        if __name__ == "__main__":
            with ProcessPoolExecutor(1) as pool:
                list(pool.map(work, range(2)))
        """
    )
    assert result.returncode == 1
    assert "died by SIGKILL in the script" in result.stderr


def test_workers_that_the_script_ends_itself_are_not_dead(run: Runner) -> None:
    result = run(
        """
        import multiprocessing, sys, time

        if __name__ == "__main__":
            process = multiprocessing.Process(target=time.sleep, args=(60,))
            process.start()
            process.terminate()
            process.join()
            sys.exit(1)
        """
    )
    assert (result.returncode, "CRASH" in result.stderr) == (1, False)


def test_the_peak_of_memory_is_the_scripts_and_not_that_of_the_watch(run: Runner) -> None:
    result = run("import time; time.sleep(1)")
    peak = float(result.stderr.partition("peak memory ")[2].partition(" MiB")[0])
    assert 0 < peak < 24


def test_a_wrong_value_is_told_with_what_is_accepted(run: Runner) -> None:
    for option, word in (("--stall-after=soon", "a duration such as"), ("--memory=lots", "a size such as")):
        result = run("print(1)", option)
        assert (result.returncode, word in result.stderr) == (2, True)


def test_another_sitecustomize_is_imported_too(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.path / "sitecustomize.py").write_text("import builtins; builtins.customized = True")
    monkeypatch.setenv("PYTHONPATH", str(run.path))
    assert run("print(customized)").stdout == "True\n"


def test_the_import_does_nothing_where_nobody_watches(tmp_path: Path) -> None:
    source = "import sys\nfrom pytest_rlstability import heartbeat, stage\nwith stage('x'): heartbeat()\n"
    source += "print('pytest' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("False\n", "")


def test_a_probe_calls_the_clean_up_and_the_command(run: Runner) -> None:
    result = run(
        """
        from pytest_rlstability import heartbeat, probe

        food = list(range(90))
        probe("food", lambda: len(food), warning=50, critical=80, on_critical=food.clear)
        print(len(food))
        """,
        "--jsonl=run.jsonl",
        "--on-critical=echo $RL_PROBE > command.txt",
    )
    assert result.stdout == "0\n"
    assert "critical: food reached 90 (critical level 80); the clean-up took it to 0" in result.stderr
    sample = next(event for event in run.log() if event["event"] == "sample" and "food" in event["values"])  # type: ignore[operator]
    assert sample["judged"][0]["state"] == "critical"  # type: ignore[index]
    deadline = time.monotonic() + 30
    while not (run.path / "command.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (run.path / "command.txt").exists()
