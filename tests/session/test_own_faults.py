"""Bad input and broken surroundings: a clear word each, never a hang, never a silent pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

PASS = "def test_it(): pass\n"


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("--rl-backend=threads", ("--rl-backend=threads", "auto, zygote, spawn, inprocess")),
        ("--rl-scope=some", ("--rl-scope=some", "all, marked")),
        ("--rl-group=package", ("--rl-group=package", "test, class, module, session")),
        ("--rl-stall-after=soon", ("--rl-stall-after=soon", "30s")),
        ("--rl-leak-budget=-1s", ("--rl-leak-budget=-1s", "30s")),
        ("--rl-leak-budget=0", ("--rl-leak-budget=0", "30s")),
        ("--rl-native=maybe", ("--rl-native=maybe", "auto, off")),
        ("--rl-seed=x", ("--rl-seed=x", "whole number")),
    ],
)
def test_a_wrong_option_is_a_usage_error(run_pytest, argument, parts):
    outcome = run_pytest(PASS, argument)
    assert outcome.code == 4
    for part in parts:
        assert part in outcome.text
    assert "Traceback" not in outcome.text


def test_a_wrong_ini_value_names_the_ini_key(run_pytest):
    run_pytest.write("pytest.ini", "[pytest]\nrl_backend = threads\n")
    outcome = run_pytest(PASS)
    assert outcome.code == 4
    assert "rl_backend=threads" in outcome.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marker", "parts"),
    [
        ("rl_isolated(memmory='1GiB')", ("memmory",)),
        ("rl_isolated(memory='banana')", ("memory='banana'", "2MB")),
        ("rl_isolated(backend='x')", ("backend='x'", "zygote")),
        ("rl_isolated(env={'A': 1})", ("env=",)),
        ("rl_no_stall(after='x')", ("after='x'", "30s")),
        ("rl_no_leak(limit='banana')", ("limit='banana'",)),
        ("rl_no_leak(laps=0)", ("laps=0",)),
        ("rl_no_leak(signals=['memmory'])", ("'memmory' is not a signal",)),
        ("forked(1)", ("forked()",)),
    ],
)
@pytest.mark.parametrize("on", [True, False])
def test_a_wrong_marker_is_a_usage_error_with_its_place(run_pytest, marker, parts, on):
    outcome = run_pytest(f"import pytest\n\n@pytest.mark.{marker}\ndef test_it(): pass\n", on=on)
    assert outcome.code == 4
    assert re.search(r"test_it\.py:3: test_it: .*" + re.escape(marker.split("(")[0]), outcome.text)
    for part in parts:
        assert part in outcome.text


def test_markers_and_help_read_well(run_pytest):
    text = run_pytest.run("--markers", on=False).text
    assert "@pytest.mark.rl_isolated(*, backend=None, memory=None, env=None, group=None, exit_check=True): run" in text
    assert "--rl-stability" in run_pytest.run("--help", on=False).text


ODD_CHILDREN = """
    import os, shutil, signal, sys, time
    import pytest

    def test_much_output():
        block = b"0123456789abcde\\n" * 65536
        os.write(1, b"the head\\n")
        for _ in range(100):
            os.write(1, block)
        os.write(1, b"the tail\\n")
        assert False

    def test_much_output_then_crash():
        os.write(1, b"crash head\\n")
        for _ in range(100):
            os.write(1, b"0123456789abcde\\n" * 65536)
        os.write(1, b"crash tail\\n")
        os.abort()

    def test_not_utf8():
        os.write(1, b"\\xff\\xfe binary\\n")
        sys.stderr.buffer.write(b"\\xff\\n")
        assert False

    def test_not_utf8_then_crash():
        os.write(1, b"\\xff\\xfe binary\\n")
        os.abort()

    def test_closes_stdio():
        for descriptor in (0, 1, 2):
            os.close(descriptor)

    def test_closes_stdio_and_crashes():
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        os.abort()

    def test_deletes_its_directory(tmp_path):
        os.chdir(tmp_path)
        shutil.rmtree(tmp_path)

    def test_deletes_its_directory_and_crashes(tmp_path):
        os.chdir(tmp_path)
        shutil.rmtree(tmp_path)
        os.abort()

    def test_forks_and_lets_both_run_on():
        os.fork()

    def test_changes_environment():
        os.environ.clear()

    def test_deep_recursion():
        def deep(): deep()
        with pytest.raises(RecursionError):
            deep()

    def test_new_session_leader():
        if os.fork() == 0:
            os.setsid()
            time.sleep(304)

    def test_next_is_fine():
        pass
"""


def test_odd_children(run_pytest):
    outcome = run_pytest(ODD_CHILDREN, "--rl-native=off", "--rl-stall-after=20s")
    expected = dict.fromkeys(re.findall(r"def (test_\w+)", ODD_CHILDREN), "passed")
    for name in expected:
        if name.endswith(("crash", "crashes")) or name in ("test_much_output", "test_not_utf8"):
            expected[name] = "failed"
    assert outcome.tests == expected, outcome.text[-5000:]
    for name, message in outcome.messages.items():
        assert message.startswith("CRASH: SIGABRT" if name.endswith(("crash", "crashes")) else "assert False"), name
    for part in ("the head", "the tail", "crash head", "crash tail", "left out by rl-stability", " binary"):
        assert part in outcome.text
    assert len(outcome.text) < 8_000_000
    assert "test_new_session_leader left processes running" in outcome.text


@pytest.mark.parametrize("backend", ["zygote", "spawn"])
def test_a_test_that_closes_more_than_its_own(run_pytest, backend):
    outcome = run_pytest(
        """
        import os, sys
        def test_every_descriptor(): os.closerange(3, 500)
        def test_its_stdout(): sys.stdout.close()
        def test_next_is_fine(): pass
        """,
        f"--rl-backend={backend}",
    )
    assert set(outcome.tests) == {"test_every_descriptor", "test_its_stdout", "test_next_is_fine"}
    assert outcome.tests["test_next_is_fine"] == "passed"
    message = "CRASH: closed the descriptors that its reports go through, noticed at exit"
    assert outcome.messages["test_every_descriptor"].startswith(message), outcome.text
    assert "I/O operation on closed file" in outcome.messages["test_its_stdout"], outcome.text


def test_a_crash_beside_workers_of_a_fork_server_leaves_no_directory(run_pytest):
    """Which the fixture sees to: multiprocessing removes it at exit, and there was none."""
    outcome = run_pytest(
        """
        import multiprocessing, os

        def started():
            context = multiprocessing.get_context("forkserver")
            worker = context.Process(target=os.getpid)
            worker.start()
            worker.join()
            return multiprocessing.Manager()

        def test_crashes():
            manager = started()
            os.abort()

        def test_ends(): started().shutdown()
        """,
    )
    assert outcome.tests == {"test_crashes": "failed", "test_ends": "passed"}, outcome.text
    assert outcome.messages["test_crashes"].startswith("CRASH: SIGABRT")
    assert "left behind" not in outcome.text


@pytest.mark.skipif(sys.platform != "linux", reason="crashes are held on Linux only")
def test_a_fatal_error_of_pythons_own_is_a_crash(run_pytest):
    outcome = run_pytest(
        """
        import ctypes
        def test_it(): ctypes.pythonapi.Py_FatalError(b"the heap is full")
        def test_next_is_fine(): pass
        """,
        "--rl-stall-after=0",
    )
    assert outcome.tests == {"test_it": "failed", "test_next_is_fine": "passed"}
    assert outcome.messages["test_it"].startswith("CRASH: SIGABRT in call")
    assert "test_it.py:3 in test_it" in outcome.details["test_it"], outcome.text
    assert "the heap is full" in outcome.text


def test_a_copy_of_the_test_that_goes_on_does_not_change_its_phase(run_pytest):
    outcome = run_pytest(
        """
        import os, time
        def test_it():
            if os.fork():
                time.sleep(1)
                os._exit(0)
        """
    )
    assert outcome.messages["test_it"].startswith("CRASH: ended itself with exit code 0 in call"), outcome.text


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_shared_memory_counts_for_the_cap(run_pytest):
    outcome = run_pytest(
        """
        import mmap, time
        import pytest

        @pytest.mark.rl_isolated(memory="150MB")
        def test_it():
            shared = mmap.mmap(-1, 400 << 20)
            for page in range(0, 400 << 20, 4096):
                shared[page] = 1
            time.sleep(60)
        """
    )
    assert outcome.messages["test_it"].startswith("CRASH: killed for memory"), outcome.text


def test_a_test_that_asks_the_collector_gets_the_whole_heap(run_pytest):
    outcome = run_pytest(
        """
        import gc, weakref
        class Node: pass
        kept = Node()
        HOLDER = [kept]
        cycle = Node()
        cycle.itself = cycle
        gone = weakref.ref(cycle)

        def test_referrers(): assert HOLDER in gc.get_referrers(kept)
        def test_objects(): assert any(thing is kept for thing in gc.get_objects())
        def test_cycle():
            global cycle
            del cycle
            gc.collect()
            assert gone() is None
        def test_nothing_is_frozen(): assert gc.get_freeze_count() == 0
        """
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text


@pytest.mark.slow
def test_a_stopped_process_is_ended(run_pytest):
    outcome = run_pytest(
        "import os, signal\ndef test_it(): os.kill(os.getpid(), signal.SIGSTOP)\n",
        "--rl-stall-after=2s",
        "--rl-native=off",
    )
    assert outcome.messages["test_it"].startswith("STALL: blocked, no progress for")
    assert "stopped by a signal" in outcome.details["test_it"]


def test_the_zygote_killed(run_pytest):
    outcome = run_pytest(
        """
        import os, signal, time
        def test_before(): pass
        def test_kills_its_zygote():
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(300)
        def test_after(): pass
        def test_last(): pass
        """
    )
    assert outcome.tests == {
        "test_before": "passed", "test_kills_its_zygote": "failed", "test_after": "passed", "test_last": "passed",
    }  # fmt: skip
    assert "exit status unknown: its parent died" in outcome.messages["test_kills_its_zygote"]


def test_a_fault_of_ours_is_an_error_that_says_so(run_pytest):
    run_pytest.write(
        "conftest.py",
        """
        from pytest_rlstability.session import report_replay

        def pytest_collection_finish(session):
            def broken(*args):
                raise ZeroDivisionError("in the plugin")
            report_replay.restore_report = broken
        """,
    )
    outcome = run_pytest("def test_a(): pass\ndef test_b(): pass\n")
    assert outcome.code == 1
    assert outcome.tests == {"test_a": "error", "test_b": "error"}
    assert "rl-stability internal error" in outcome.text
    assert "ZeroDivisionError: in the plugin" in outcome.text


def test_a_fault_of_ours_in_the_tests_process_is_one_too(run_pytest):
    run_pytest.write(
        "conftest.py",
        """
        from pytest_rlstability.child import runner

        def broken(*args, **keywords):
            raise ZeroDivisionError("in the plugin")
        runner.check_exit = broken
        """,
    )
    outcome = run_pytest("def test_a(): pass\ndef test_b(): pass\n")
    assert outcome.tests == {"test_a": "error", "test_b": "error"}, outcome.text
    assert "rl-stability internal error" in outcome.text
    assert "ZeroDivisionError: in the plugin" in outcome.text


def test_a_bracket_in_the_directorys_name(run_pytest, monkeypatch):
    place = run_pytest.path / "runs[1]"
    place.mkdir()
    monkeypatch.chdir(place)
    run_pytest.write("runs[1]/test_it.py", PASS)
    outcome = run_pytest.run("--rl-stability", "--rl-backend=spawn", "test_it.py", on=False)
    assert outcome.tests == {"test_it": "passed"}, outcome.text


def test_a_test_that_cannot_be_found_again_is_our_error(run_pytest):
    outcome = run_pytest(
        """
        import os
        import pytest
        if os.environ.get("PYTHONHASHSEED") is None:
            def test_only_here(): pass
        """,
        "--rl-backend=spawn",
    )
    assert outcome.tests == {"test_only_here": "error"}
    assert "rl-stability internal error" in outcome.text


def _with_tools(run_pytest, scripts: dict[str, str]) -> str:
    """Run a crashing test with only these tools to be found."""
    tools = run_pytest.path / "tools"
    tools.mkdir()
    for name, text in scripts.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    run_pytest.write("test_it.py", "import ctypes\ndef test_it(): ctypes.string_at(0)\n")
    run_pytest.write(
        "conftest.py",
        "from pytest_rlstability.osinfo import native_stacks\n"
        f"native_stacks.sysconfig.get_path = lambda name: {str(tools)!r}\n",
    )
    environment = {**os.environ, "PATH": str(tools)}
    command = [sys.executable, "-m", "pytest", "--rl-stability"]
    return subprocess.run(command, env=environment, cwd=run_pytest.path, capture_output=True, text=True).stdout


def test_no_native_tool(run_pytest):
    text = _with_tools(run_pytest, {})
    has_c_stack = sys.version_info >= (3, 14)
    assert f"({'by faulthandler;' if has_c_stack else 'none:'} pystack is not installed; gdb is not installed)" in text
    assert ("    ffi_call at libffi" in text) is has_c_stack
    assert "CRASH: SIGSEGV in call" in text


def test_gdb_is_asked_when_pystack_finds_only_python_frames(run_pytest):
    pystack = (
        "#!/bin/sh\necho 'Traceback for thread 7 (python) (most recent call last):'\n"
        "echo '    (Python) File \"test_it.py\", line 2, in test_it'\n"
    )
    gdb = "#!/bin/sh\necho 'Thread 1 (Thread 0x7f (LWP 7) \"python\"):'\necho '#0  step (world=0x0) at game.c:40'\n"
    text = _with_tools(run_pytest, {"pystack": pystack, "gdb": gdb})
    assert "    step at game.c:40\n  (by gdb)" in text
    assert "[Python]" not in text


def test_no_right_to_trace(run_pytest):
    refusal = "#!/bin/sh\necho 'ptrace: Operation not permitted.' >&2\nexit 1\n"
    text = _with_tools(run_pytest, {"pystack": refusal, "gdb": refusal})
    assert "pystack: not permitted to attach (ptrace); gdb: not permitted to attach (ptrace)" in text
    assert "in test_it" in text


def test_a_report_that_cannot_be_written(run_pytest):
    run_pytest.write("test_it.py", PASS)
    for path in ("/proc/nowhere/events.jsonl", "/dev/full"):
        outcome = run_pytest.run("--rl-stability", f"--rl-jsonl={path}", on=False)
        assert outcome.tests == {"test_it": "passed"}
        assert outcome.code == 1
        assert outcome.text.count("the event log is not complete") == 1, outcome.text
        assert path in outcome.text


def test_pdb_keeps_tests_in_pytests_process(run_pytest):
    outcome = run_pytest("import os\nPID = os.getpid()\ndef test_it(): assert os.getpid() == PID\n", "--pdb")
    assert outcome.tests == {"test_it": "passed"}
    assert "--pdb keeps tests in pytest's own process" in outcome.text


def test_timeout_is_honoured_from_outside(run_pytest):
    outcome = run_pytest(
        """
        import ctypes, time
        import pytest

        @pytest.mark.timeout(1)
        def test_python_sleep():
            time.sleep(60)

        @pytest.mark.timeout(1)
        def test_gil_held():
            libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
            libc.pthread_mutex_lock(mutex)
            libc.pthread_mutex_lock(mutex)

        @pytest.mark.timeout(1, method="thread")
        def test_thread_method():
            while True:
                pass

        @pytest.fixture
        def slow_setup():
            ctypes.PyDLL(None).usleep(700_000)
            ctypes.PyDLL(None).usleep(700_000)

        @pytest.mark.timeout(1, func_only=True)
        def test_only_the_body_counts(slow_setup):
            pass

        def test_without(): pass
        """,
        "--rl-native=off",
    )
    assert "Timeout (>1.0s) from pytest-timeout" in outcome.messages["test_python_sleep"]
    assert outcome.messages["test_gil_held"].startswith("STALL: deadlock, over its timeout of 1 s, in call")
    assert "in test_gil_held" in outcome.details["test_gil_held"]
    assert outcome.messages["test_thread_method"].startswith("STALL: slow, over its timeout of 1 s, in call")
    assert outcome.tests["test_only_the_body_counts"] == "passed"
    assert outcome.tests["test_without"] == "passed"


@pytest.mark.slow
def test_fork_after_native_threads_falls_back_to_the_template(run_pytest):
    torch = pytest.importorskip("torch")
    if torch.get_num_threads() < 2:
        pytest.skip("torch has one thread here")
    # As with a library whose pool cannot be paused.
    run_pytest.write(
        "conftest.py", "from pytest_rlstability.osinfo import fork_safety\nfork_safety.pause_openmp = lambda: None\n"
    )
    outcome = run_pytest(
        """
        import torch
        torch.ones(900, 900) @ torch.ones(900, 900)  # at import: the pool exists before any fork
        def test_it(): assert (torch.ones(900, 900) @ torch.ones(900, 900)).sum() > 0
        """
    )
    assert outcome.tests == {"test_it": "passed"}, outcome.text
    assert "rl-stability: template backend, because threads run since test_it.py was imported" in outcome.text
    assert "1 test in 1 process (template)" in outcome.text


def test_an_orphan_that_has_ended_goes_while_the_test_runs(run_pytest):
    outcome = run_pytest(
        """
        import os, subprocess, time

        def test_it():
            parent = subprocess.Popen(["sh", "-c", "sleep 0.2 & echo $!"], stdout=subprocess.PIPE, text=True)
            orphan = int(parent.stdout.readline())
            parent.wait()
            patience = time.monotonic() + 30
            while os.path.exists(f"/proc/{orphan}"):
                assert time.monotonic() < patience, "still a zombie"
                time.sleep(0.02)
        """
    )
    assert outcome.tests == {"test_it": "passed"}, outcome.text
    assert "left processes" not in outcome.text


def test_a_test_that_replaces_every_clock_is_an_ordinary_test(run_pytest):
    outcome = run_pytest(
        """
        import signal, time
        from unittest import mock
        import pytest

        CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns")

        @pytest.fixture(params=[lambda: -446_000_000 * 10**9, lambda: 1.5, mock.MagicMock()], ids=["1955", "x", "mock"])
        def other_clocks(request, monkeypatch):
            for name in CLOCKS:
                monkeypatch.setattr(time, name, request.param)

        def test_in_set_up(other_clocks): signal.alarm(10); signal.alarm(0)
        """,
        "-p",
        "no:timeout",
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text


@pytest.mark.parametrize("group", ["test", "auto"])
@pytest.mark.parametrize("lost", ["setup", "call", "teardown", "all"])
def test_an_outcome_that_does_not_arrive_is_an_error(run_pytest, group, lost):
    """A conftest takes reports out of the channel in the test's own process."""
    run_pytest.write(
        "conftest.py",
        f"""
        from pytest_rlstability.child import report_sender
        original = report_sender.ReportSender.pytest_runtest_logreport
        def lose(self, report):
            if {lost!r} not in (report.when, "all"):
                original(self, report)
        report_sender.ReportSender.pytest_runtest_logreport = lose
        """,
    )
    outcome = run_pytest("def test_a(): pass\ndef test_b(): assert 0\n", f"--rl-group={group}")
    assert outcome.code == 1
    assert set(outcome.tests.values()) == {"error"}, outcome.text
    assert "the test ran, but no report of its" in outcome.text


@pytest.mark.parametrize("moment", ["import", "start"])
def test_a_stopped_worker_of_xdist_is_woken_up(run_pytest, monkeypatch, moment):
    """While it imports tests, or before it has said anything."""
    is_worker = "'-c' in sys.orig_argv" if moment == "start" else "'PYTEST_XDIST_WORKER' in os.environ"
    run_pytest.write(
        "sitecustomize.py" if moment == "start" else "conftest.py",
        f"import os, signal, sys\nif {is_worker}: os.kill(os.getpid(), signal.SIGSTOP)\n",
    )
    monkeypatch.setenv("PYTHONPATH", str(run_pytest.path))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # this test may run in one
    outcome = run_pytest("def test_it(): pass", "-n1")
    assert outcome.tests == {"test_it": "passed"}


def test_no_room_for_the_run_is_one_clear_line(run_pytest):
    run_pytest.write(
        "no_room.py",
        """
        from pytest_rlstability.session import connections
        def listen(): raise OSError(28, "No space left on device")
        connections.listen = listen
        """,
    )
    outcome = run_pytest("def test_it(): pass", "-p", "no_room")
    assert outcome.code == 4
    assert "ERROR: rl-stability cannot start: [Errno 28] No space left on device" in outcome.text
    assert "INTERNALERROR" not in outcome.text
