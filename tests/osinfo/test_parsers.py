"""Texts that faulthandler, pystack and gdb wrote, read back."""

from __future__ import annotations

import pytest

from pytest_rlstability.model.stack_dump import parse_dump
from pytest_rlstability.osinfo import native_stacks
from pytest_rlstability.osinfo.native_stacks import (
    NativeThread,
    _parse_gdb,
    _parse_pystack,
    native_stack,
    parse_c_stack,
)

DUMP = """Fatal Python error: Segmentation fault

Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/game/capture.py", line 12 in loop
  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f0000000002 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 20 in forward
  File "/game/policy.py", line 40 in make_policy
  File "/game/test_policy.py", line 9 in test_policy
  File "/venv/lib/python3.11/site-packages/_pytest/python.py", line 187 in pytest_pyfunc_call
  File "/venv/lib/python3.11/site-packages/pluggy/_callers.py", line 121 in _multicall

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""


def test_a_crash_dump():
    dump = parse_dump(DUMP, {0x7F0000000001: "capture-1", 0x7F0000000002: "MainThread"})
    assert dump.signal == "SIGSEGV"
    assert dump.extensions == ("numpy.core._multiarray_umath", "torch._C")
    assert dump.packages == ("numpy", "torch")
    assert [thread.name for thread in dump.threads] == ["MainThread", "capture-1"], "the crashed one first"
    assert dump.crashed is dump.threads[0]
    assert [frame.function for frame in dump.threads[0].own_frames] == ["forward", "make_policy", "test_policy"]
    assert [frame.is_users for frame in dump.threads[0].own_frames] == [False, True, True]
    assert [frame.function for frame in dump.threads[1].own_frames] == ["wait", "loop"]


def test_a_dump_that_was_asked_for_has_no_crash():
    dump = parse_dump(DUMP.partition("\n\n")[2])
    assert dump.signal == ""
    assert dump.crashed is None
    assert len(dump.threads) == 2


def test_text_cut_short_or_foreign():
    assert parse_dump("") == parse_dump("no dump at all")
    cut = parse_dump(DUMP[: DUMP.index("line 40")])
    assert [len(thread.frames) for thread in cut.threads] == [1, 4]


PYSTACK = """Traceback for thread 11 (python) [] (most recent call last):
    (C) File "./nptl/pthread_create.c", line 442, in start_thread (/lib/libc.so.6)
    (Python) File "/game/capture.py", line 12, in loop
        self.wait()
    (C) File "./nptl/futex-internal.c", line 57, in __futex_abstimed_wait (inlined) (/lib/libc.so.6)

Traceback for thread 10 (python) [Has the GIL] (most recent call last):
    (C) File "Modules/main.c", line 734, in Py_BytesMain (/lib/libpython3.11.so.1.0)
    (Python) File "/venv/site-packages/_pytest/python.py", line 187, in pytest_pyfunc_call
        testfunction()
    (Python) File "/game/test_it.py", line 3, in test_it
        step()
    (C) File "???", line 0, in ffi_call (/usr/lib/libffi.so.8.1.2)
    (C) File "game.c", line 40, in step (/game/_game.so)
    (C) File "???", line 0, in __restore_rt (/lib/libc.so.6)
    (C) File "pause.c", line 29, in pause (/lib/libc.so.6)
"""

GDB = """
Thread 2 (Thread 0x7f32589386c0 (LWP 11) "capture"):
#0  0x00007f325a928fa8 in accept4 (fd=13, addr=..., flags=524288) at ../sysdeps/unix/accept4.c:31
Thread 1 (Thread 0x7f325b017b80 (LWP 10) "python"):
#0  0x00007f325a8f1df2 in __libc_pause () at pause.c:29
#1  <signal handler called>
#2  step (world=0x0) at game.c:40
#3  0x00007f325a268b0d in ffi_call () from /lib/x86_64-linux-gnu/libffi.so.8
#4  0x00007f272fd9c3 in _PyEval_EvalFrameDefault (tstate=<optimized out>) at Python/ceval.c:4769
"""


def test_pystack_and_gdb_tell_the_same_story():
    for parse, text, library in ((_parse_pystack, PYSTACK, "libffi.so.8.1.2"), (_parse_gdb, GDB, "libffi.so.8")):
        threads = list(parse(text))
        assert [thread.crashed for thread in threads] == [False, True]
        lines = [line.strip() for line in threads[1].render().splitlines()]
        assert lines[1:3] == ["step at game.c:40", f"ffi_call at {library}"]
        assert not any("_PyEval" in line or "_pytest" in line or "pause" in line for line in lines)


C_STACK = """
Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3.14", at _Py_DumpStack+0x4a [0x49b2f9]
  Binary file "/usr/bin/python3.14" [0x53d28e]
  Binary file "/usr/lib/libc.so.6", at +0x406b0 [0x7f3a527806b0]
  Binary file "/game/_game.so", at step+0x17 [0x7f3a528ba718]
  Binary file "/usr/lib/_ctypes.cpython-314.so", at +0xe4ad [0x7f3a5245c4ad]
  Binary file "/usr/lib/libffi.so.8", at ffi_call+0x155 [0x7f3a52442fe5]
  Binary file "/usr/bin/python3.14" [0x576aab]
  Binary file "/usr/bin/python3.14", at PyEval_EvalCode+0x9d [0x592ead]

Extension modules: _game (total: 1)
"""


def test_the_c_stack_of_faulthandler():
    thread = parse_c_stack(DUMP + C_STACK)
    assert thread is not None
    assert thread.render().splitlines()[1:] == [
        "  step at _game.so", "  ?? at _ctypes.cpython-314.so", "  ffi_call at libffi.so.8",
    ]  # fmt: skip
    assert parse_c_stack(DUMP) is None
    assert parse_dump(DUMP + C_STACK) == parse_dump(DUMP)


FREE_THREADED = """Fatal Python error: Segmentation fault

<Cannot show all threads while the GIL is disabled>
Stack (most recent call first):
  File "/usr/lib/python3.14/ctypes/__init__.py", line 624 in string_at
  File "/game/test_it.py", line 8 in test_it
"""


def test_a_python_without_a_gil_writes_the_crashed_thread_without_its_name():
    dump = parse_dump(FREE_THREADED, {0x7F01: "MainThread", 0x7F02: "capture-1"})
    assert dump.signal == "SIGSEGV"
    assert [(thread.name, thread.current) for thread in dump.threads] == [("?", True)]
    assert [frame.line for frame in dump.crashed_frames] == [624, 8]
    asked = parse_dump(FREE_THREADED.partition("\n\n")[2], {0x7F01: "MainThread"})
    assert [(thread.name, thread.current) for thread in asked.threads] == [("MainThread", False)]


def test_a_tool_that_found_only_python_frames_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    python_only = "\n".join(line for line in PYSTACK.splitlines() if "(C)" not in line)
    asked: list[str] = []

    def run(command: list[str]) -> tuple[str, str]:
        asked.append(command[0])
        return (python_only if command[0] == "pystack" else GDB), ""

    monkeypatch.setattr(native_stacks, "find_tool", lambda name: name)
    monkeypatch.setattr(native_stacks, "_run", run)
    monkeypatch.setattr(native_stacks, "_found_none", set())
    for _ in range(2):
        assert native_stack(7).endswith("(by gdb)")
    assert native_stack(7, python=True).endswith("(by pystack)")
    assert asked == ["pystack", "gdb", "gdb", "pystack"]


def test_a_thread_with_brackets_in_its_name():
    (thread,) = _parse_pystack("Traceback for thread 7 (Thread-1 (step)) [] (most recent call last):\n")
    assert thread.title == "thread 7 (Thread-1 (step))"


def test_a_thread_that_only_pytest_runs_still_shows_something():
    thread = NativeThread("thread 1 (x)", ["pytest_pyfunc_call at /site-packages/_pytest/python.py:1 [Python]"])
    assert len(thread.render().splitlines()) == 2


def test_no_native_stack_where_none_is_wanted():
    assert native_stack(1, "off") == "(off)"
