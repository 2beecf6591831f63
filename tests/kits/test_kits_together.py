"""Fixtures of different kits in one test."""

from __future__ import annotations

import pytest
from conftest import RunPytest

pytest.importorskip("pyboy")


@pytest.mark.parametrize("backend", ["zygote", "spawn"])
def test_tracked_locks_keep_a_guarded_emulator_safe(run_pytest: RunPytest, backend: str) -> None:
    """Both kits track locks: the guard sees that a lock is held, and the lock is reported, in either order."""
    outcome = run_pytest(
        """
        import threading

        def use_from_two_threads(boy, locks):
            frame_lock, frames = threading.Lock(), threading.Condition()
            def work():
                for _ in range(5):
                    with frame_lock:
                        boy.tick()
                with frames:
                    frames.notify_all()
            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert {"frame_lock", "frames"} <= {report.name for report in locks.report()}

        def test_locks_first(rl_locks, pyboy_guard):
            use_from_two_threads(pyboy_guard(), rl_locks)

        def test_guard_first(pyboy_guard, rl_locks):
            use_from_two_threads(pyboy_guard(), rl_locks)

        def test_nothing_is_left():
            assert "Tracked" not in repr(threading.Lock) + repr(threading.RLock)
            assert threading.Condition.__module__ == "threading"
        """,
        f"--rl-backend={backend}",
        "--rl-group=module",
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text
