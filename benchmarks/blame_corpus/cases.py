"""Test files in which one test does the damage, ``test_culprit``, and a later one dies of it.

Each has innocents before, between and after. ``VICTIMS`` may die; of the others none may fail.
"""

from __future__ import annotations

import textwrap

INNOCENTS_BEFORE = """
import atexit, ctypes, gc, os, signal, threading, time
import pytest
KEPT = []

def test_before_sums(): assert sum(range(100)) == 4950
def test_before_leaves_a_thread():
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
def test_before_changes_the_environment():
    os.environ["CORPUS"] = "1"
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    atexit.register(int)
"""
INNOCENTS_BETWEEN = """
def test_between_allocates(): assert len([bytes(n) for n in range(2000)]) == 2000
"""
INNOCENTS_AFTER = """
def test_after(): assert gc.collect() >= 0
"""
VICTIMS = ("test_victim", "test_between_allocates", "test_after")
"""Damage may show in any test after the culprit, and at exit."""

CASES = {
    "heap overrun": """
        def test_culprit(damage): damage.paint_rows()
        def test_victim(damage): damage.churn()
        """,
    "use after free": """
        def test_culprit(damage):
            damage.make_table()
            damage.drop_table()
        def test_victim(damage): assert damage.read_table() == 0
        """,
    "thread that crashes later": """
        def test_culprit(damage): damage.start_crasher()
        def test_victim(): time.sleep(1)
        """,
    "native signal handler": """
        def test_culprit(damage): damage.handle_badly()
        def test_victim(damage): damage.raise_if_handled()
        """,
    "python signal handler": """
        def test_culprit(): signal.signal(signal.SIGUSR2, lambda *_: os.abort())
        def test_victim():
            if signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
                signal.raise_signal(signal.SIGUSR2)
        """,
    "descriptor closed under a library": """
        @pytest.fixture(scope="module")
        def log(damage):
            descriptor = os.open(os.devnull, os.O_WRONLY)
            damage.keep_descriptor(descriptor)
            return descriptor
        def test_opens(log, damage): damage.use_descriptor()
        def test_culprit(log): os.close(log)
        def test_victim(log, damage): damage.use_descriptor()
        """,
    "alarm left armed": """
        def test_culprit(): signal.setitimer(signal.ITIMER_REAL, 0.5)
        def test_victim(): time.sleep(1.5)
        """,
    "thread that kills": """
        def test_culprit():
            threading.Timer(0.4, os.abort).start()
        def test_victim(): time.sleep(1)
        """,
    "exit callback that aborts": """
        def test_culprit(): atexit.register(os.abort)
        def test_victim(): pass
        """,
    "memory kept": """
        def test_culprit(): KEPT.append(b"x" * (200 << 20))
        def test_victim(): b"y" * (150 << 20)
        """,
    "thread that keeps the interpreter": """
        def test_culprit():
            pause = ctypes.PyDLL(None).pause
            threading.Timer(0.3, pause).start()
        def test_victim(): time.sleep(0.6)
        """,
    "physics joint after its body": """
        Box2D = pytest.importorskip("Box2D")
        def test_culprit():
            world = Box2D.b2World()
            one, other = world.CreateDynamicBody(), world.CreateDynamicBody()
            KEPT.append((world, world.CreateRevoluteJoint(bodyA=one, bodyB=other, anchor=(0, 0))))
            world.DestroyBody(one)
        def test_victim():
            for world, joint in KEPT:
                world.DestroyJoint(joint)
        """,
    "emulator raced, then collected": """
        pyboy = pytest.importorskip("pyboy")
        from pytest_rlstability.kits.pyboy.rom import build_rom
        def test_culprit(tmp_path):
            (tmp_path / "game.gb").write_bytes(build_rom())
            emulator = pyboy.PyBoy(str(tmp_path / "game.gb"), window="null")
            stop = time.monotonic() + 1.0
            def tick():
                while time.monotonic() < stop:
                    emulator.tick(1, True)
            threads = [threading.Thread(target=tick) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join(5)
            KEPT.append(emulator)
        def test_victim():
            KEPT.clear()
            gc.collect()
        """,
}
OPTIONS = {
    "memory kept": ["--rl-memory=300MiB"],
    "thread that keeps the interpreter": ["--rl-stall-after=3s"],
    "emulator raced, then collected": ["--rl-stall-after=3s"],
}


def source(case: str) -> str:
    """The test file of *case*."""
    culprit, victim = textwrap.dedent(CASES[case]).split("def test_victim", 1)
    return f"{INNOCENTS_BEFORE}\n{culprit}\n{INNOCENTS_BETWEEN}\ndef test_victim{victim}\n{INNOCENTS_AFTER}"
