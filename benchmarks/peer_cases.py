"""What ``benchmarks/peers.py`` compares: the contenders as their own pages say to use them, and the faults.

Every fault is a test file with one bad test and a good one after it. A leak is a function ``lap`` that each leak
checker is given in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]
LIMIT = 8  # seconds: the limit on hangs that every contender is given, where it has one
LONG = 12  # seconds that an honest computation takes: longer than that limit


@dataclass(frozen=True)
class Contender:
    """A tool, or the pair in which it is commonly used. What is not in *scopes* it was not made for."""

    name: str
    packages: tuple[str, ...]
    options: tuple[str, ...]
    scopes: frozenset[str]
    leak_test: str = ""
    environment: dict[str, str] = field(default_factory=dict)


OURS_LEAK = """
import pytest

@pytest.mark.rl_no_leak
def test_bad(rl_laps):
    for _ in rl_laps:
        lap()

def test_good():
    pass
"""

MEMRAY_LEAK = """
import pytest

@pytest.mark.limit_leaks("100 KB")
def test_bad():
    for _ in range(2000):
        lap()

def test_good():
    pass
"""

PSLEAK_LEAK = """
from psleak import MemoryLeakTestCase

class TestLeaks(MemoryLeakTestCase):
    def test_bad(self):
        self.execute(lap)

    def test_good(self):
        pass
"""

CRASHES, HANGS, LEAKS = "crashes", "hangs", "leaks"

CONTENDERS = (
    Contender(
        "pytest-rlstability",
        (str(ROOT),),
        ("--rl-stability", f"--rl-stall-after={LIMIT}s"),
        frozenset({CRASHES, HANGS, LEAKS}),
        OURS_LEAK,
    ),
    # without timeout_func_only the timer is pytest's, not the fork's, and a hang ends in an internal error
    Contender(
        "pytest-forked + timeout",
        ("pytest-forked", "pytest-timeout"),
        ("--forked", f"--timeout={LIMIT}", "-o", "timeout_func_only=true"),
        frozenset({CRASHES, HANGS}),
    ),
    Contender(
        "pytest-isolate",
        ("pytest-isolate",),
        ("--isolate", f"--isolate-timeout={LIMIT}"),
        frozenset({CRASHES, HANGS}),
    ),
    Contender(
        "pytest-isolated",
        ("pytest-isolated",),
        ("--isolated", f"--isolated-timeout={LIMIT}"),
        frozenset({CRASHES, HANGS}),
    ),
    # one worker, so that the good test really comes after the bad one
    Contender(
        "xdist + timeout",
        ("pytest-xdist", "pytest-timeout"),
        ("-n1", f"--timeout={LIMIT}"),
        frozenset({CRASHES, HANGS}),
    ),
    Contender("pytest-timeout", ("pytest-timeout",), (f"--timeout={LIMIT}",), frozenset({HANGS})),
    Contender("pytest-memray", ("pytest-memray",), ("--memray",), frozenset({LEAKS}), MEMRAY_LEAK),
    Contender(
        "psleak",
        ("psleak",),
        (),
        frozenset({LEAKS}),
        PSLEAK_LEAK,
        {"PYTHONMALLOC": "malloc", "PYTHONUNBUFFERED": "1"},
    ),
)

GREEN = """
def test_bad():
    pass

def test_good():
    pass
"""

# the crash is in a function of its own, so that naming the test is not yet naming the line
SEGFAULT = """
import ctypes

def read_nothing():
    ctypes.string_at(0)  # here

def test_bad():
    read_nothing()

def test_good():
    pass
"""

SILENT_EXIT = """
import os

def test_bad():
    os._exit(0)

def test_good():
    pass
"""

ABORT_AT_EXIT = """
import atexit
import os

def test_bad():
    atexit.register(os.abort)

def test_good():
    pass
"""

ABORT_IN_COLLECTION = """
import os

class Handle:
    def __init__(self):
        self.cycle = self

    def __del__(self):
        os.abort()

def test_bad():
    Handle()

def test_good():
    pass
"""

# as vector environments do it: the worker is gone, and all that the test sees is the end of a pipe
WORKER_KILLED = """
import multiprocessing
import os

def work(pipe):
    pipe.recv()
    os.kill(os.getpid(), 9)

def test_bad():
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    worker = context.Process(target=work, args=(theirs,))
    worker.start()
    theirs.close()
    ours.send("step")
    ours.recv()

def test_good():
    pass
"""

# the other thread is a daemon, so that a tool that ends the test can also end the interpreter
LOCK_CYCLE = """
import threading

def take(first, second, both_hold):
    with first:
        both_hold.wait()
        with second:
            pass

def test_bad():
    one, two, both_hold = threading.Lock(), threading.Lock(), threading.Barrier(2)
    threading.Thread(target=take, args=(two, one, both_hold), daemon=True).start()
    take(one, two, both_hold)

def test_good():
    pass
"""

NATIVE_DEADLOCK = """
import ctypes

def test_bad():
    native = ctypes.PyDLL(None)  # keeps the GIL during calls
    mutex = ctypes.create_string_buffer(64)
    native.pthread_mutex_lock(mutex)
    native.pthread_mutex_lock(mutex)

def test_good():
    pass
"""

LONG_COMPUTATION = f"""
import time

def test_bad():
    end = time.monotonic() + {LONG}
    while time.monotonic() < end:
        sum(range(1000))

def test_good():
    pass
"""

TESTS = {
    "green": GREEN,
    "segfault": SEGFAULT,
    "silent exit": SILENT_EXIT,
    "abort at exit": ABORT_AT_EXIT,
    "abort in collection": ABORT_IN_COLLECTION,
    "worker killed": WORKER_KILLED,
    "lock cycle": LOCK_CYCLE,
    "native deadlock": NATIVE_DEADLOCK,
    "long computation": LONG_COMPUTATION,
}

LAPS = {
    "green": """
        def lap():
            sum(range(100))
    """,
    "python leak": """
        kept = []

        def lap():
            kept.append(bytes(1000))
    """,
    "native leak": """
        import ctypes

        allocate = ctypes.pythonapi.PyMem_RawMalloc  # calls malloc as C code does: memray does not see ctypes' own
        allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]

        def lap():
            allocate(1000)
    """,
    "replay buffer": """
        from collections import deque

        buffer = deque(maxlen=10_000)

        def lap():
            buffer.append(bytes(1000))
    """,
    "sawtooth": """
        rollout = []

        def lap():
            rollout.append(bytes(1000))
            if len(rollout) == 256:
                rollout.clear()
    """,
}


def file_for(contender: Contender, case: str) -> str:
    """The file that *contender* is run on: a leak checker gets even the green case as a lap."""
    if case in LAPS and contender.leak_test and (case not in TESTS or contender.scopes == {LEAKS}):
        return dedent(LAPS[case]) + contender.leak_test
    return TESTS[case]


def line_of_crash() -> int:
    """The line of the segfault in its file, from 1."""
    return next(number for number, line in enumerate(SEGFAULT.splitlines(), 1) if line.endswith("# here"))
