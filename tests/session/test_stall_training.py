"""Stalls that only real training libraries have."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

HANGS = """
    import multiprocessing, os, signal
    import pytest

    def test_fork_after_openmp():
        import torch
        torch.set_num_threads(2)
        matrix = torch.rand(900, 900)
        matrix @ matrix
        pid = os.fork()
        if pid == 0:
            matrix @ matrix
            os._exit(0)
        os.waitpid(pid, 0)

    def make_env():
        import gymnasium
        return gymnasium.make("CartPole-v1")

    @pytest.mark.rl_no_stall(after="4 s")
    def test_stopped_worker():
        from stable_baselines3.common.vec_env import SubprocVecEnv
        venv = SubprocVecEnv([make_env] * 2, start_method="fork")
        venv.reset()
        os.kill(venv.processes[1].pid, signal.SIGSTOP)
        venv.step([0, 0])

    @pytest.mark.rl_no_stall(after="4 s")
    def test_slow_worker():
        from stable_baselines3.common.vec_env import SubprocVecEnv
        venv = SubprocVecEnv([make_env] * 2, start_method="fork")
        venv.reset()
        for _ in range(2000):
            venv.step([0, 1])
        venv.close()
"""


@pytest.mark.slow
def test_training_that_hangs(run_pytest):
    outcome = run_pytest(HANGS)
    report = outcome.details["test_fork_after_openmp"]
    assert outcome.messages["test_fork_after_openmp"].startswith("STALL: deadlock, "), outcome.text
    assert "was forked after this process had used a native thread pool (OpenMP)" in report
    assert "torch.set_num_threads(1)" in report
    assert "Worker stacks:" in report
    assert outcome.messages["test_stopped_worker"].startswith("STALL: blocked, no progress for "), outcome.text
    report = outcome.details["test_stopped_worker"]
    assert "(forked from the test), which is stopped by a signal" in report, report
    assert outcome.tests["test_slow_worker"] == "passed", outcome.text
