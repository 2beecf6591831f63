"""Modules and conftests that crash, exit or hang while they are imported, and innocents that only look like it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_rlstability.osinfo import linux
from pytest_rlstability.osinfo.process_control import send_signal
from pytest_rlstability.osinfo.processes import children_of, is_alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="collection is guarded where pytest can be forked")

PASS = "def test_{}(): pass\n"
SEGFAULT = "import ctypes\nctypes.string_at(0)\n"
AGAIN = "collecting again without it"


def test_what_dies_at_import_fails_alone(run_pytest):
    run_pytest.write("test_a.py", PASS.format("first"))
    run_pytest.write("test_segfault.py", "print('written before')\n" + SEGFAULT)
    run_pytest.write("test_exit.py", "import os\nos._exit(0)\n")
    run_pytest.write("test_killed.py", "import os, time\nos.kill(os.getpid(), 9)\ntime.sleep(9)\n")
    run_pytest.write("sub/conftest.py", "import os\nos.abort()\n")
    run_pytest.write("sub/test_below.py", PASS.format("below"))
    run_pytest.write("test_z.py", PASS.format("last"))
    outcome = run_pytest.run()
    assert outcome.code == 1
    assert "2 passed, 4 errors" in outcome.text
    assert "4 crashes" in outcome.text
    assert outcome.tests["test_first"] == outcome.tests["test_last"] == "passed"
    assert outcome.properties["test_first"]["rl_stability.backend"] == "zygote"
    assert outcome.messages == {
        "test_segfault": "CRASH: SIGSEGV at import",
        "test_exit": "CRASH: ended itself with exit code 0 at import",
        "test_killed": "CRASH: SIGKILL at import",
        "sub": "CRASH: SIGABRT at import",
    }
    assert "ERROR test_segfault.py - CRASH: SIGSEGV at import" in outcome.text
    report = outcome.details["test_segfault"]
    assert f"at {run_pytest.path}/test_segfault.py:3 in <module>" in report
    assert "thread MainThread (crashed here)" in report
    assert report.rstrip().endswith(" test_segfault.py")
    assert "Reproduce: python -m pytest --rl-stability --rl-seed=" in report
    assert 'test_exit.py", line 2, in <module>' in outcome.details["test_exit"]
    assert outcome.text.count("written before") == 1
    assert outcome.properties["test_segfault"]["rl_stability.signal"] == "SIGSEGV"
    ended = {event["test"]: event["verdict"] for event in outcome.events if event["event"] == "finished"}
    assert ended["test_segfault.py"]["word"] == "CRASH"
    assert ended["test_a.py::test_first"] is None
    assert len([event for event in outcome.events if event["event"] == "session"]) == 1


@pytest.mark.parametrize("backend", ["zygote", "spawn"])
def test_no_process_of_the_run_imports_it_again(run_pytest, backend):
    run_pytest.write("test_crashes.py", SEGFAULT)
    run_pytest.write("test_z.py", PASS.format("last"))
    outcome = run_pytest.run("--rl-group=auto", f"--rl-backend={backend}")
    assert "1 passed, 1 error" in outcome.text
    assert f"1 test in 1 process ({backend})" in outcome.text


def test_under_nohup(run_pytest):
    run_pytest.write("test_a.py", SEGFAULT)
    run_pytest.write("test_b.py", PASS.format("it"))
    command = ["nohup", sys.executable, "-m", "pytest", "--rl-stability", "-q"]
    ran = subprocess.run(command, cwd=run_pytest.path, capture_output=True, text=True, timeout=120)
    assert "1 passed, 1 error" in ran.stdout
    assert ran.returncode == 1


HANGS = {
    "a lock": ("import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()\n", "waits for a lock"),
    "native code that holds the GIL": ("import ctypes\nctypes.PyDLL(None).pause()\n", "in pause"),
    "a busy loop": ("while True: pass\n", "spinning"),
}


@pytest.mark.parametrize("name", [*list(HANGS)[:2], pytest.param(list(HANGS)[2], marks=pytest.mark.slow)])
def test_what_hangs_at_import_fails_alone(run_pytest, name):
    source, word = HANGS[name]
    run_pytest.write("test_a.py", PASS.format("first"))
    run_pytest.write("test_hangs.py", source)
    run_pytest.write("test_z.py", PASS.format("last"))
    outcome = run_pytest.run("--rl-stall-after=1s")
    assert outcome.code == 1
    assert "2 passed, 1 error" in outcome.text
    assert outcome.messages["test_hangs"].startswith("STALL: ")
    assert outcome.messages["test_hangs"].endswith("at import")
    report = outcome.details["test_hangs"]
    assert word in report
    line = len(source.splitlines())
    assert f'test_hangs.py", line {line}, in <module>' in report


INNOCENTS = {
    "forks": "import os\npid = os.fork()\nif pid == 0: os._exit(3)\nassert os.waitpid(pid, 0)[1] == 3 << 8\n",
    "fork_crashes": """
        import ctypes, os, resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        pid = os.fork()
        if pid == 0: ctypes.string_at(0)
        assert os.waitpid(pid, 0)[1] & 127 == 11
    """,
    "reaps_all": """
        import os
        try:
            while True: os.wait()
        except ChildProcessError: pass
    """,
    "handlers": "import signal\nfor one in (1, 6, 11, 15): signal.signal(one, print)\n",
    "takes_faulthandler": "import faulthandler\nfaulthandler.enable()\n",
    "computes": """
        import time
        end, number = time.process_time() + 2, 0
        while time.process_time() < end:
            for number in range(1000):
                number += 1
            number = 0
    """,
}


def test_innocent_modules_are_imported_once(run_pytest):
    for name, source in INNOCENTS.items():
        path = run_pytest.write(f"test_{name}.py", source)
        path.write_text(f"{path.read_text()}\nopen('imported', 'a').write('{name} ')\ndef test_{name}(): pass\n")
    outcome = run_pytest.run("--rl-stall-after=1s")
    assert outcome.code == 0
    assert AGAIN not in outcome.text
    assert set(outcome.tests.values()) == {"passed"}
    assert sorted((run_pytest.path / "imported").read_text().split()) == sorted(INNOCENTS)


def test_a_module_that_starts_a_thread(run_pytest):
    """Its tests are not forked: each fresh interpreter imports it, for longer than a standstill may last."""
    outcome = run_pytest(
        """
        import threading, time
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        end = time.process_time() + 2
        while time.process_time() < end:
            for number in range(1000):
                number += 1
        def test_it(): pass
        """,
        "--rl-stall-after=1s",
    )
    assert outcome.code == 0
    assert outcome.properties["test_it"]["rl_stability.backend"] != "zygote"


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.exit(0)\n",
        pytest.param("raise ValueError\n", marks=pytest.mark.slow),
        pytest.param("import pytest\npytest.skip('no', allow_module_level=True)\n", marks=pytest.mark.slow),
    ],
)
def test_other_ends_of_an_import_are_pytests(run_pytest, source):
    run_pytest.write("test_a.py", PASS.format("first"))
    run_pytest.write("test_ends.py", source)
    guarded, plain = run_pytest.run(), run_pytest.run(on=False)
    assert (guarded.code, guarded.tests) == (plain.code, plain.tests)


def test_everything_is_put_back_after_collection(run_pytest):
    run_pytest.write(
        "conftest.py",
        """
        import faulthandler, os

        def pytest_runtestloop():
            caught = next(line for line in open("/proc/self/status") if line.startswith("SigCgt"))
            state = caught, os._exit, faulthandler.enable, faulthandler.is_enabled()
            open("states", "a").write(f"{state}\\n")
        """,
    )
    for on in (True, False):
        assert run_pytest("def test_it(): pass", on=on).code == 0
    guarded, plain = (run_pytest.path / "states").read_text().splitlines()
    assert guarded == plain


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-x"], "stopping after 1 failures"),
        (["--collect-only", "-q"], "1 test collected, 1 error"),
        pytest.param(["-s"], "1 passed, 1 error", marks=pytest.mark.slow),
        pytest.param(["--rl-native=off"], "1 passed, 1 error", marks=pytest.mark.slow),
    ],
)
def test_options(run_pytest, arguments, words):
    run_pytest.write("test_a.py", PASS.format("first"))
    run_pytest.write("test_b.py", SEGFAULT)
    outcome = run_pytest.run(*arguments)
    assert outcome.code == 1
    assert words in outcome.text
    assert "ERROR test_b.py - CRASH: SIGSEGV at import" in outcome.text


@pytest.mark.slow
def test_an_ordinary_error_beside_it_stops_the_run_as_always(run_pytest):
    run_pytest.write("test_a.py", PASS.format("first"))
    run_pytest.write("test_b.py", SEGFAULT)
    run_pytest.write("test_c.py", "raise ValueError\n")
    outcome = run_pytest.run()
    assert outcome.code == 1
    assert "Interrupted: 2 errors during collection" in outcome.text


@pytest.mark.slow
def test_workers_of_xdist_are_replaced_and_do_without_it(run_pytest):
    run_pytest.write("test_a.py", "".join(PASS.format(f"{number}") for number in range(6)))
    run_pytest.write("test_b.py", "print('written before')\n" + SEGFAULT)
    run_pytest.write("test_c.py", "import os\nos.kill(os.getpid(), 9)\n")
    run_pytest.write("test_d.py", HANGS["a lock"][0])
    outcome = run_pytest.run("-n2", "--rl-stall-after=1s")
    assert outcome.code == 1
    assert "6 passed, 3 errors" in outcome.text
    assert outcome.messages["test_b"] == "CRASH: SIGSEGV at import"
    assert outcome.messages["test_c"] == "CRASH: SIGKILL at import"
    assert outcome.messages["test_d"].startswith("STALL: ")
    assert outcome.text.count("written before") == 1
    ended = [event["test"] for event in outcome.events if event["event"] == "finished"]
    assert sorted(ended)[-3:] == ["test_b.py", "test_c.py", "test_d.py"]
    assert len(ended) == 9


@pytest.mark.parametrize(
    ("source", "title"),
    [
        (f"print('written before')\n{SEGFAULT}", "CRASH: SIGSEGV at import"),
        pytest.param(HANGS["a lock"][0], "STALL: ", marks=pytest.mark.slow),
    ],
)
def test_the_first_conftest_ends_the_run_with_its_report(run_pytest, source, title):
    run_pytest.write("conftest.py", source)
    outcome = run_pytest("def test_it(): pass", "--rl-stall-after=1s")
    assert outcome.code == 1
    assert f"ERROR: {title}" in outcome.text
    assert f'conftest.py", line {len(source.splitlines())}, in <module>' in outcome.text
    assert ("written before" in source) == ("written before" in outcome.text)


def test_a_crash_between_modules_ends_the_run_with_its_report(run_pytest):
    run_pytest.write("conftest.py", "def pytest_collection_modifyitems():\n    import ctypes; ctypes.string_at(0)\n")
    outcome = run_pytest("def test_it(): pass")
    assert outcome.code == 1
    assert "ERROR: CRASH: SIGSEGV at import" in outcome.text
    assert "conftest.py:2 in pytest_collection_modifyitems" in outcome.text


def test_a_program_that_calls_pytest_goes_on_after_it(run_pytest):
    run_pytest.write("test_a.py", PASS.format("first"))
    bad = run_pytest.write("test_b.py", SEGFAULT)
    run_pytest.write(
        "program.py",
        """
        import pytest

        class Collected:
            def pytest_collection_finish(self, session): self.items = session.items

        collected = Collected()
        code = pytest.main(["--rl-stability", "-q"], plugins=[collected])
        print(f"pytest said {int(code)} of {len(collected.items)}")
        """,
    )
    outcomes = []
    for _ in range(2):
        ran = subprocess.run([sys.executable, "program.py"], cwd=run_pytest.path, capture_output=True, text=True)
        outcomes.append((ran.returncode, ran.stdout.splitlines()[-1]))
        bad.unlink(missing_ok=True)
    assert outcomes == [(1, "pytest said 1 of 1"), (0, "pytest said 0 of 1")]


class Processes:
    """A run of pytest and its processes, found by a variable in their environment."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        name = f"RL_TEST_RUN={directory}-{time.monotonic()}"
        variable, _, value = name.partition("=")
        self._name = name
        self.pytest = subprocess.Popen(
            [sys.executable, "-m", "pytest", "--rl-stability", "-p", "no:cacheprovider", *arguments],
            cwd=directory, env={**os.environ, variable: value}, stdout=subprocess.PIPE, text=True, process_group=0,
        )  # fmt: skip

    def alive(self) -> set[int]:
        return {pid for pid in linux.pids() if linux.has_variable(pid, self._name) and is_alive(pid)}


def wait_for(condition: Callable[[], object]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen within a minute")


SLOW_SIGKILL, SLOW_SIGTERM = (
    pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGKILL, signal.SIGTERM)
)


class GuardedRun:
    """A run whose tests run in a copy, because a module has crashed, and that has come to its test."""

    def __init__(self, path: Path, test: str) -> None:
        (path / "test_a.py").write_text(SEGFAULT)
        (path / "test_b.py").write_text(f"import os, time\ndef test_it():\n    open('began', 'w')\n    {test}\n")
        self._run = Processes(path)
        wait_for((path / "began").exists)
        alive = self._run.alive()
        self._pids = {"original": self._run.pytest.pid}
        self._pids["keeper"] = next(
            pid for pid in alive - {self._run.pytest.pid} if _parent(pid) not in alive and children_of(pid)
        )
        self._pids["standby"] = next(pid for pid in alive if _parent(pid) == self._pids["keeper"])
        self._pids["copy"] = next(pid for pid in alive if _parent(pid) == self._pids["standby"])

    def send(self, who: str, number: int) -> None:
        send_signal(self._pids[who], number)

    def end(self) -> tuple[int, str]:
        """Exit status and output. Nothing is left."""
        try:
            shown, _ = self._run.pytest.communicate(timeout=60)
            wait_for(lambda: not self._run.alive())
            return self._run.pytest.returncode, shown
        finally:
            for pid in self._run.alive():
                send_signal(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, SLOW_SIGTERM])
@pytest.mark.parametrize("killed", ["original", "standby", "copy"])
def test_nothing_is_left_whichever_process_is_killed(run_pytest, killed, number):
    run = GuardedRun(run_pytest.path, "time.sleep(600)")
    run.send(killed, number)
    code, shown = run.end()
    assert code == (-number if killed == "original" else 1)
    assert killed == "original" or f"was killed ({number.name}): its results are lost" in shown


@pytest.mark.parametrize("number", [SLOW_SIGKILL, SLOW_SIGTERM, signal.SIGSTOP])
def test_a_run_goes_on_without_the_keeper(run_pytest, number):
    run = GuardedRun(run_pytest.path, "time.sleep(1)")
    run.send("keeper", number)
    code, shown = run.end()
    assert code == 1
    assert "1 passed, 1 error" in shown


@pytest.mark.parametrize("stopped", ["standby", "copy"])
def test_who_is_stopped_is_woken_up(run_pytest, stopped):
    run = GuardedRun(run_pytest.path, "time.sleep(1)")
    run.send(stopped, signal.SIGSTOP)
    code, shown = run.end()
    assert code == 1
    assert "1 passed, 1 error" in shown


@pytest.mark.parametrize("number", [SLOW_SIGKILL, SLOW_SIGTERM, signal.SIGSTOP])
def test_a_signal_to_the_standby_before_trouble_changes_nothing(run_pytest, number):
    run_pytest.write("test_a.py", "import time\nopen('began', 'w')\ntime.sleep(2)\n" + PASS.format("it"))
    run = Processes(run_pytest.path, "--rl-stall-after=20s")
    try:
        wait_for((run_pytest.path / "began").exists)
        for pid in run.alive() - {run.pytest.pid}:
            if _parent(pid) in run.alive():
                send_signal(pid, number)
        shown, _ = run.pytest.communicate(timeout=60)
        wait_for(lambda: not run.alive())
    finally:
        for pid in run.alive():
            send_signal(pid, signal.SIGKILL)
    assert run.pytest.returncode == 0
    assert "1 passed" in shown


def test_the_standby_ends_if_pytest_is_dead_before_it_looks(run_pytest):
    run_pytest.write("slow_fork.py", "import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(1))\n")
    run_pytest.write("test_a.py", "import os\nos.kill(os.getpid(), 9)\n")
    run_pytest.write("test_b.py", "def test_it(): open('ran', 'w')\n")
    run = Processes(run_pytest.path, "-p", "slow_fork")
    run.pytest.communicate(timeout=60)
    assert run.pytest.returncode == -9
    wait_for(lambda: not run.alive())
    assert not (run_pytest.path / "ran").exists()


def _parent(pid: int) -> int:
    stat = linux.stat(pid)
    return 0 if stat is None else stat.parent


@pytest.mark.parametrize("bad", [False, True])
def test_ctrl_c_ends_it_all(run_pytest, bad):
    """During collection, and in the copy that runs the tests."""
    source = "import time\nopen('began', 'w')\ntime.sleep(600)\n"
    if bad:
        run_pytest.write("test_a.py", SEGFAULT)
        source = "import time\ndef test_it():\n    open('began', 'w')\n    time.sleep(600)\n"
    run_pytest.write("test_b.py", source)
    run = Processes(run_pytest.path)
    try:
        wait_for((run_pytest.path / "began").exists)
        os.killpg(run.pytest.pid, signal.SIGINT)
        shown, _ = run.pytest.communicate(timeout=60)
        assert run.pytest.returncode == (1 if bad else 2)
        assert "KeyboardInterrupt" in shown
        assert ("SIGSEGV at import" in shown) == bad
        wait_for(lambda: not run.alive())
    finally:
        for pid in run.alive():
            send_signal(pid, signal.SIGKILL)
