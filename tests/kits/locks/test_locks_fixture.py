"""``rl_locks``: who waits for whom in a hang, orders that can deadlock, and waits a test can put a limit on."""

from __future__ import annotations

import pytest

ENV = """
    import threading
    from threading import Lock

    early_lock = Lock()

    class Env:
        def __init__(self):
            self.frame_lock = threading.Lock()
            self.game_lock = threading.RLock()
            self.both = threading.Barrier(2)

        def capture(self):
            with self.frame_lock:
                self.both.wait()
                with self.game_lock:
                    pass

        def play(self):
            with self.game_lock:
                self.both.wait()
                with self.frame_lock:
                    pass

    def hang(env):
        threads = [
            threading.Thread(target=env.capture, name="capture-1"),
            threading.Thread(target=env.play, name="game"),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
"""

HANGS = """
    import queue, threading, time
    import env
    import pytest

    def test_abba(rl_locks):
        env.hang(env.Env())

    def test_abba_behind_a_busy_thread(rl_locks):
        def compute():
            while True:
                sum(range(1000))
                time.sleep(0.001)
        threading.Thread(target=compute, daemon=True).start()
        env.hang(env.Env())

    def test_join_while_holding(rl_locks):
        lock = threading.Lock()
        def work():
            with lock:
                pass
        thread = threading.Thread(target=work, name="worker")
        with lock:
            thread.start()
            thread.join()

    def test_queue(rl_locks):
        frames = queue.Queue()
        frames.get()

    @pytest.mark.rl_isolated(backend="spawn")
    def test_imported_before_the_fixture(rl_locks):
        with env.early_lock:
            env.early_lock.acquire()
"""

CYCLES = {
    "test_abba": [
        "Wait-for cycle:",
        "thread capture-1 holds frame_lock (env.py:14) and waits for game_lock (env.py:16), "
        "held by thread game (env.py:20)",
        "thread game holds game_lock (env.py:20) and waits for frame_lock (env.py:22), "
        "held by thread capture-1 (env.py:14)",
        "thread MainThread waits for the end of thread capture-1 (env.py:33)",
    ],
    "test_abba_behind_a_busy_thread": [
        "thread capture-1 holds frame_lock (env.py:14) and waits for game_lock (env.py:16)",
    ],
    "test_join_while_holding": [
        "Wait-for cycle:",
        "thread MainThread holds lock (test_it.py:23) and waits for the end of thread worker (test_it.py:25)",
        "thread worker waits for lock (test_it.py:20), held by thread MainThread (test_it.py:23)",
    ],
    "test_queue": ["Waits for locks:", "thread MainThread waits for queue frames for an item (test_it.py:29)"],
    "test_imported_before_the_fixture": ["waits for early_lock (test_it.py:34), which it holds itself (test_it.py:33)"],
}  # fmt: skip


@pytest.mark.slow
def test_a_hang_says_who_waits_for_whom(run_pytest):
    run_pytest.write("env.py", ENV)
    outcome = run_pytest(HANGS, "--rl-stall-after=100s", "--rl-native=off", "-n", "3")
    for name, lines in CYCLES.items():
        assert outcome.messages[name].startswith("STALL: deadlock, "), outcome.text
        missing = [line for line in lines if line not in outcome.details[name]]
        assert not missing, outcome.details[name]
        assert "locks/tracked.py" not in outcome.details[name], "our own frames are left out"


ORDERS = """
    import threading
    import pytest

    def take(*locks):
        for lock in locks:
            lock.acquire()
        for lock in reversed(locks):
            lock.release()

    def test_inversion(rl_locks):
        frame_lock, game_lock = threading.Lock(), threading.Lock()
        first = threading.Thread(target=take, args=(frame_lock, game_lock), name="capture-1")
        first.start()
        first.join()
        with game_lock:
            with frame_lock:
                pass

    def test_strict(rl_locks):
        rl_locks.strict()
        a, b, c = threading.Lock(), threading.RLock(), threading.Lock()
        take(a, b)
        take(b, c)
        take(c, a)

    def test_gate_around_one_order_only(rl_locks):
        rl_locks.strict()
        a, b, gate = threading.RLock(), threading.Lock(), threading.Lock()
        with a:
            with b:
                with a:
                    pass
        for _ in range(100):
            take(a, b)
        with gate:
            take(b, a)

    def test_gated(rl_locks):
        rl_locks.strict()
        a, b, gate = threading.Lock(), threading.Lock(), threading.Lock()
        take(gate, a, b)
        take(gate, b, a)

    def test_tried(rl_locks):
        rl_locks.strict()
        a, b = threading.Lock(), threading.Lock()
        take(a, b)
        with b:
            assert a.acquire(blocking=False)
            a.release()
            assert a.acquire(timeout=1)
            a.release()

    def test_released_in_between(rl_locks):
        rl_locks.strict()
        a, b = threading.Lock(), threading.Lock()
        a.acquire()
        b.acquire()
        a.release()
        b.release()
        with b:
            pass
        with a:
            pass

    def test_put_back():
        assert threading.Lock is type(threading.Lock()) or "built-in" in repr(threading.Lock)
        assert threading.Condition.__module__ == "threading"
        assert threading.Thread.join.__module__ == "threading"
"""


def check_orders(outcome):
    assert {name for name, word in outcome.tests.items() if word != "passed"} == {
        "test_strict",
        "test_gate_around_one_order_only",
    }, outcome.text
    assert "LockOrderWarning: lock order inversion" in outcome.text
    assert "thread MainThread takes game_lock (test_it.py:16), then frame_lock (test_it.py:17)" in outcome.text
    assert "thread capture-1 takes frame_lock (test_it.py:7), then game_lock (test_it.py:7)" in outcome.text
    strict = outcome.messages["test_strict"]
    assert all(part in strict for part in ("takes a (", "then b (", "then c (", "then a (")), strict


def test_orders_that_can_deadlock(run_pytest):
    check_orders(run_pytest(ORDERS, "--rl-native=off"))


def test_orders_in_pytests_own_process(run_pytest):
    check_orders(run_pytest(ORDERS, on=False))


WAITS = """
    import threading, time
    import pytest

    def hold(lock, ready, seconds):
        with lock:
            ready.set()
            time.sleep(seconds)

    @pytest.fixture
    def contended(rl_locks):
        frame_lock, ready = threading.Lock(), threading.Event()
        threading.Thread(target=hold, args=(frame_lock, ready, 0.5), name="game").start()
        ready.wait()
        with frame_lock:
            pass
        return rl_locks

    def test_over_the_limit(contended):
        contended.assert_max_wait("frame_lock", "5 ms")

    def test_within_the_limit(contended):
        contended.assert_max_wait("frame_lock", "1 min")
        report = contended.report("frame_lock")[0]
        assert report.contended == 1
        assert 0.3 < report.p50 <= report.p99 <= report.longest
        assert "held by thread game" in report.worst

    def test_nobody_waited(rl_locks):
        quiet_lock = threading.Lock()
        with quiet_lock:
            pass
        rl_locks.assert_max_wait("quiet_lock", "0 s")

    def test_waits_still(rl_locks):
        taken_lock, ready = threading.Lock(), threading.Event()
        taken_lock.acquire()
        def wait():
            ready.set()
            with taken_lock:
                pass
        threading.Thread(target=wait, daemon=True).start()
        ready.wait()
        time.sleep(0.5)
        try:
            rl_locks.assert_max_wait("taken_lock", "100 ms")
        finally:
            taken_lock.release()

    def test_misspelt(rl_locks):
        known_lock = threading.Lock()
        rl_locks.assert_max_wait("unknown_lock", "5 ms")
"""


def test_limits_on_waiting(run_pytest):
    outcome = run_pytest(WAITS)
    assert outcome.tests == {
        "test_over_the_limit": "failed", "test_within_the_limit": "passed", "test_nobody_waited": "passed",
        "test_waits_still": "failed", "test_misspelt": "failed",
    }, outcome.text  # fmt: skip
    assert (
        "over the limit of 5 ms: frame_lock (Lock, test_it.py:12): 1 waits" in outcome.messages["test_over_the_limit"]
    )
    assert "held by thread game" in outcome.messages["test_over_the_limit"]
    assert "still waiting" in outcome.messages["test_waits_still"]
    assert "no lock named 'unknown_lock' was made" in outcome.messages["test_misspelt"]
    assert "known_lock" in outcome.messages["test_misspelt"]
