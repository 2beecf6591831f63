"""Every way a test's process can die is that test's failure, with its cause; everything else stays what it was."""

from __future__ import annotations

import pytest

CRASHES = """
    import atexit, ctypes, faulthandler, gc, os, signal, subprocess, sys, threading, unittest
    import pytest

    def null_read():
        ctypes.string_at(0)

    def test_segv(rl_stage):
        print("said on stdout")
        print("said on stderr", file=sys.stderr)
        with rl_stage("load data"):
            pass
        with rl_stage("create model"):
            null_read()

    def test_thread():
        thread = threading.Thread(target=null_read, name="capture-1")
        thread.start()
        thread.join()

    def test_abort():
        os.abort()

    def test_bus_error():
        os.kill(os.getpid(), signal.SIGBUS)

    def test_kill():
        os.kill(os.getpid(), signal.SIGKILL)

    def test_exit_0():
        os._exit(0)

    def test_exit_3():
        os._exit(3)

    @pytest.fixture
    def bad_setup():
        null_read()

    def test_setup(bad_setup):
        pass

    @pytest.fixture
    def bad_teardown():
        yield
        null_read()

    def test_teardown(bad_teardown):
        pass

    class Bomb:
        def __del__(self):
            null_read()

    def test_garbage():
        bomb = Bomb()
        bomb.me = bomb

    def test_atexit():
        atexit.register(null_read)

    def test_at_thread_shutdown():
        def later():
            threading.main_thread().join()
            null_read()
        threading.Thread(target=later).start()

    @pytest.mark.rl_isolated(backend="spawn")
    def test_spawn_atexit():
        atexit.register(null_read)

    @pytest.mark.rl_isolated(backend="spawn")
    def test_spawn_segv():
        null_read()

    def test_faulthandler_disabled():
        faulthandler.disable()
        null_read()

    def test_faulthandler_taken_over():
        faulthandler.enable(file=sys.__stderr__)
        null_read()

    def test_handlers_replaced():
        for number in (signal.SIGSEGV, signal.SIGABRT):
            signal.signal(number, signal.SIG_DFL)
        os.abort()

    def test_holds_our_files_open():
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "301"])
            os._exit(0)
        null_read()


    class TestCase(unittest.TestCase):
        def test_unittest(self):
            null_read()

    @pytest.mark.xfail(reason="known", strict=True)
    def test_expected():
        null_read()

    @pytest.mark.xfail(raises=ValueError, strict=True)
    def test_not_expected():
        null_read()

    def test_fine():
        pass
"""

EXPECTED = {
    "test_segv": ("SIGSEGV in call, stage 'create model'", "SIGSEGV", "call"),
    "test_thread": ("SIGSEGV in call", "SIGSEGV", "call"),
    "test_abort": ("SIGABRT in call", "SIGABRT", "call"),
    "test_bus_error": ("SIGBUS in call", "SIGBUS", "call"),
    "test_kill": ("SIGKILL in call", "SIGKILL", "call"),
    "test_exit_0": ("ended itself with exit code 0 in call", "exit 0", "call"),
    "test_exit_3": ("ended itself with exit code 3 in call", "exit 3", "call"),
    "test_setup": ("SIGSEGV in set-up", "SIGSEGV", "setup"),
    "test_teardown": ("SIGSEGV in tear-down", "SIGSEGV", "teardown"),
    "test_garbage": ("SIGSEGV at exit", "SIGSEGV", "exit"),
    "test_atexit": ("SIGSEGV at exit", "SIGSEGV", "exit"),
    "test_at_thread_shutdown": ("SIGSEGV at exit", "SIGSEGV", "exit"),
    "test_spawn_atexit": ("SIGSEGV at exit", "SIGSEGV", "exit"),
    "test_spawn_segv": ("SIGSEGV in call", "SIGSEGV", "call"),
    "test_faulthandler_disabled": ("SIGSEGV in call", "SIGSEGV", "call"),
    "test_faulthandler_taken_over": ("SIGSEGV in call", "SIGSEGV", "call"),
    "test_handlers_replaced": ("SIGABRT in call", "SIGABRT", "call"),
    "test_holds_our_files_open": ("SIGSEGV in call", "SIGSEGV", "call"),
    "test_unittest": ("SIGSEGV in call", "SIGSEGV", "call"),
    "test_not_expected": ("SIGSEGV in call", "SIGSEGV", "call"),
}


def test_every_road_to_a_crash(run_pytest):
    outcome = run_pytest(CRASHES, "--rl-stall-after=30s")
    wrong = {}
    for name, (headline, signal_name, phase) in EXPECTED.items():
        properties = outcome.properties.get(name, {})
        got = (
            outcome.tests.get(name),
            outcome.messages.get(name, ""),
            outcome.details.get(name, "").split("\n")[0],
            properties.get("rl_stability.verdict"),
            properties.get("rl_stability.signal"),
            properties.get("rl_stability.phase"),
        )
        title = f"CRASH: {headline}"
        if got != ("failed", title, title, "CRASH", signal_name, phase):
            wrong[name] = got
    assert not wrong, outcome.text
    assert outcome.tests["test_fine"] == "passed"
    assert outcome.tests["test_expected"] == "xfailed"
    assert outcome.code == 1
    assert "PASSED" not in outcome.text
    assert f"{len(EXPECTED) + 2} tests in {len(EXPECTED) + 2} processes (zygote, spawn)" in outcome.text
    assert "sleep 301" in outcome.text, "what a test left running is named"

    report = outcome.details["test_segv"]
    for part in (
        "done     load data",
        "died in  create model",
        "thread MainThread (crashed here)",
        "in null_read",
        "Native stack:",
        "string_at at",
        "peak memory",
        "Platform: Python",
        "Signature: SIGSEGV call string_at<",
        "string_at<null_read ",
        "Reproduce: python -m pytest --rl-stability --rl-seed=",
    ):
        assert part in report, report
    assert "_pytest" not in report.split("Native stack")[0], "pytest's own frames are left out"
    assert report.strip().splitlines()[-1].startswith("Reproduce: ")
    assert "said on stdout" in outcome.text
    assert "said on stderr" in outcome.text
    assert "thread capture-1 (crashed here)" in outcome.details["test_thread"]
    assert outcome.properties["test_segv"]["rl_stability.stage"] == "create model"


@pytest.mark.slow
def test_the_reproduce_command_reproduces(run_pytest):
    outcome = run_pytest(
        """
        import ctypes, random, pytest

        @pytest.mark.parametrize("word", ["a b", "it's"])
        def test_it(word):
            print("drew", random.random())
            ctypes.string_at(0)
        """,
        "--rl-seed=7",
    )
    import re
    import shlex
    import subprocess
    import sys

    drawn = re.findall(r"drew (\S+)", outcome.text)
    assert len(drawn) == 2
    assert drawn[0] != drawn[1], "each test has a seed of its own"
    for line, number in zip(re.findall(r"^Reproduce: (.*)$", outcome.text, re.MULTILINE), drawn, strict=True):
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", "pytest"]
        again = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, cwd=run_pytest.path)
        assert again.returncode == 1
        assert re.findall(r"drew (\S+)", again.stdout) == [number]
        assert "1 failed" in again.stdout


@pytest.mark.slow
def test_a_signature_is_the_same_from_run_to_run(run_pytest):
    source = "import ctypes\ndef test_it():\n    ctypes.string_at(0)\n"
    first = run_pytest(source).properties["test_it"]["rl_stability.signature"]
    second = run_pytest("\n\n\n" + source).properties["test_it"]["rl_stability.signature"]
    assert first == second


def test_memory_over_the_cap_is_named(run_pytest):
    outcome = run_pytest(
        """
        import subprocess, sys
        import pytest

        @pytest.mark.rl_isolated(memory="100MiB")
        def test_python_hog():
            kept = []
            while True:
                kept.append(bytearray(1 << 20))

        @pytest.mark.rl_isolated(memory="100MiB")
        def test_child_hog():
            code = "import time; kept = [b'x' * (1 << 20) + bytes([i % 256]) for i in range(300)]; time.sleep(60)"
            subprocess.run([sys.executable, "-c", code])

        @pytest.mark.rl_isolated(memory="100MiB")
        def test_modest():
            assert len(bytearray(20 << 20)) == 20 << 20

        @pytest.mark.rl_isolated(memory="100MiB")
        def test_hog_for_a_moment():
            b"x" * (90 << 20) + b"y" * (90 << 20)

        @pytest.mark.rl_isolated(memory="100MiB")
        def test_child_hog_for_a_moment():
            subprocess.run([sys.executable, "-c", "b'x' * (130 << 20)"])

        @pytest.mark.rl_isolated(memory="100MiB")
        def test_modest_child():
            subprocess.run([sys.executable, "-c", "b'x' * (20 << 20)"])

        def test_no_cap():
            assert sum(bytearray(200 << 20)) == 0
        """
    )
    hogs = ("test_python_hog", "test_child_hog", "test_hog_for_a_moment", "test_child_hog_for_a_moment")
    assert {name for name, result in outcome.tests.items() if result == "failed"} == {*hogs}
    for name in hogs:
        assert outcome.messages[name].startswith("CRASH: "), outcome.messages
        assert "memory" in outcome.messages[name]
        assert "100.0 MiB" in outcome.messages[name]


def test_the_cap_and_the_limit_of_every_test(run_pytest):
    outcome = run_pytest(
        """
        import time
        import pytest

        def test_small():
            bytearray(10 << 20)

        def test_hog():
            kept = []
            while True:
                kept.append(b"x" * (1 << 20))

        def test_small_again():
            bytearray(10 << 20)

        @pytest.mark.rl_isolated(memory="500MiB")
        def test_own_cap():
            b"x" * (200 << 20)

        def test_computes():
            while True:
                pass

        @pytest.mark.timeout(60)
        def test_own_timeout():
            time.sleep(3)
        """,
        "--rl-memory=150MiB",
        "--rl-limit=2s",
        "--rl-group=auto",
    )
    assert {name for name, result in outcome.tests.items() if result == "failed"} == {"test_hog", "test_computes"}
    assert outcome.messages["test_hog"].startswith("CRASH: ")
    assert "150.0 MiB" in outcome.messages["test_hog"]
    assert "STALL: slow, over its limit (--rl-limit) of 2 s" in outcome.messages["test_computes"]
    assert "It fails the same way alone." in outcome.text


def test_a_dead_worker_is_named_only_when_the_test_fails(run_pytest):
    outcome = run_pytest(
        """
        import ctypes, multiprocessing, os, signal
        import pytest

        def die():
            ctypes.string_at(0)

        def killed():
            os.kill(os.getpid(), signal.SIGKILL)

        @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
        def test_worker(method):
            worker = multiprocessing.get_context(method).Process(target=die, name="env-3")
            worker.start()
            worker.join()
            assert worker.exitcode == 0

        def test_worker_killed():
            worker = multiprocessing.get_context("fork").Process(target=killed, name="env-4")
            worker.start()
            worker.join()
            raise EOFError("worker gone")

        def test_worker_expected_to_die():
            worker = multiprocessing.get_context("fork").Process(target=die)
            worker.start()
            worker.join()
            assert worker.exitcode == -signal.SIGSEGV

        def test_terminated_on_purpose():
            worker = multiprocessing.get_context("fork").Process(target=signal.pause)
            worker.start()
            worker.terminate()
            worker.join()
            assert False, "an ordinary failure"
        """
    )
    for method in ("fork", "spawn", "forkserver"):
        message = outcome.messages[f"test_worker[{method}]"]
        assert message.startswith("CRASH: worker process env-3 (pid "), message
        assert message.endswith("died by SIGSEGV in call"), message
        assert "in die" in outcome.details[f"test_worker[{method}]"], "the worker's stack is shown"
    assert "assert" in outcome.details["test_worker[fork]"], "what the test itself failed with is shown"
    assert outcome.messages["test_worker_killed"].startswith("CRASH: worker process env-4")
    assert outcome.tests["test_worker_expected_to_die"] == "passed"
    assert outcome.messages["test_terminated_on_purpose"].startswith("AssertionError")
