"""Dead and stuck workers of real vector envs are named; healthy, slow and merely unhappy ones are left alone."""

from __future__ import annotations

import functools
import gc
import os
import signal
import time
import weakref
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from pytest_rlstability.kits.vec_env.plugin import GuardVecEnv
from pytest_rlstability.model.verdict import VerdictFailure

pytest.importorskip("stable_baselines3")
gymnasium = pytest.importorskip("gymnasium")

import vec_env_troubles as troubles  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize  # noqa: E402
from vec_env_troubles import TroubledEnv  # noqa: E402

BuildEnv = Callable[..., Any]
LIMIT = "1s"  # short for the stuck, long enough for a healthy worker on a busy machine


def sb3(start_method: str, **how: int) -> Any:
    return SubprocVecEnv([functools.partial(TroubledEnv, **how)] * 2, start_method)


def gym(start_method: str, **how: int) -> Any:
    return gymnasium.vector.AsyncVectorEnv([functools.partial(TroubledEnv, **how)] * 2, context=start_method)


FORKED: list[BuildEnv] = [functools.partial(sb3, "fork"), functools.partial(gym, "fork")]
ALL: list[BuildEnv] = [
    *FORKED,
    functools.partial(sb3, "forkserver"),
    functools.partial(sb3, "spawn"),
    functools.partial(gym, "forkserver"),
    functools.partial(gym, "spawn"),
]


def name_of(build: BuildEnv) -> str:
    assert isinstance(build, functools.partial)
    return f"{build.func.__name__}-{build.args[0]}"


forked = pytest.mark.parametrize("build", FORKED, ids=name_of)
every_start_method = pytest.mark.parametrize("build", ALL, ids=name_of)


def pids_of(venv: Any) -> list[int]:
    return [process.pid for process in venv.processes]


def assert_gone(pids: list[int]) -> None:
    assert [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []


def verdict_of(act: Callable[[], object]) -> Any:
    with pytest.raises(VerdictFailure) as caught:
        act()
    return caught.value.verdict


@every_start_method
def test_a_crashed_worker_is_named_with_its_stack(
    build: BuildEnv, vec_env_guard: GuardVecEnv, capfd: pytest.CaptureFixture[str]
) -> None:
    venv = vec_env_guard(build())
    pids = pids_of(venv)
    venv.reset()
    for _ in range(20):
        observations = venv.step([troubles.FINE, troubles.FINE])[0]
        assert (observations == 7).all()
    verdict = verdict_of(lambda: venv.step([troubles.FINE, troubles.SEGFAULT]))
    assert verdict.title == f"CRASH: vector env worker 1 (pid {pids[1]}) died of SIGSEGV in step()"
    assert verdict.facts == {"worker": 1, "worker_pid": pids[1], "signal": "SIGSEGV"}
    assert "in null_read" in verdict.text()
    assert verdict.location.function == "null_read"
    venv.close()
    assert_gone(pids)


def test_an_env_that_failed_keeps_saying_why(vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(sb3("fork"))
    venv.reset()
    verdict = verdict_of(lambda: venv.step([troubles.FINE, troubles.EXIT]))
    assert verdict_of(lambda: venv.step([troubles.FINE, troubles.FINE])) == verdict
    assert verdict_of(venv.reset) == verdict


@pytest.mark.parametrize("action, doing", [(troubles.SPIN, "spinning"), (troubles.SLEEP, "blocked")])
@forked
def test_a_stuck_worker_is_named_with_its_stack(
    build: BuildEnv, action: int, doing: str, vec_env_guard: GuardVecEnv
) -> None:
    venv = vec_env_guard(build(), after=LIMIT)
    pids = pids_of(venv)
    venv.reset()
    verdict = verdict_of(lambda: venv.step([action, troubles.FINE]))
    assert (
        verdict.title == f"STALL: vector env worker 0 (pid {pids[0]}) did not answer step() within 1 s: it is {doing}"
    )
    assert verdict.facts == {"worker": 0, "worker_pid": pids[0], "class": doing}
    assert troubles.ACTIONS[action].__name__ in verdict.text()
    assert verdict.location.function == troubles.ACTIONS[action].__name__
    venv.close()
    assert_gone(pids)


def test_a_stuck_spawned_worker_shows_its_stack(vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(gym("spawn"), after=LIMIT)
    venv.reset()
    verdict = verdict_of(lambda: venv.step([troubles.SLEEP, troubles.FINE]))
    assert "sleep_long" in verdict.text()


@forked
def test_a_stopped_worker_is_stuck(build: BuildEnv, vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(build(), after=LIMIT)
    pids = pids_of(venv)
    venv.reset()
    os.kill(pids[1], signal.SIGSTOP)
    verdict = verdict_of(lambda: venv.step([troubles.FINE, troubles.FINE]))
    assert verdict.title.endswith("did not answer step() within 1 s: it is stopped")
    assert (verdict.facts["worker"], verdict.facts["class"]) == (1, "blocked")
    assert_gone(pids)


@forked
def test_every_silent_worker_is_shown(build: BuildEnv, vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(build(), after=LIMIT)
    pids = pids_of(venv)
    venv.reset()
    text = verdict_of(lambda: venv.step([troubles.SLEEP, troubles.SPIN])).text()
    assert f"Silent as well: worker 1 (pid {pids[1]})." in text
    assert "in sleep_long" in text
    assert "in spin" in text


@forked
def test_an_exit_is_a_crash(build: BuildEnv, vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(build())
    venv.reset()
    verdict = verdict_of(lambda: venv.step([troubles.FINE, troubles.EXIT]))
    assert verdict.title.endswith("exited with status 3 in step()")
    assert verdict.facts["exit_code"] == 3


@forked
def test_a_killed_worker_is_a_crash_that_points_outside(build: BuildEnv, vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(build())
    venv.reset()
    verdict = verdict_of(lambda: venv.step([troubles.KILLED, troubles.FINE]))
    assert "worker 0" in verdict.title
    assert verdict.title.endswith("died of SIGKILL in step()")
    assert "SIGKILL comes from outside the worker" in verdict.text()


@pytest.mark.parametrize("build, trouble", [(FORKED[0], troubles.SEGFAULT), (FORKED[1], troubles.SLEEP)])
def test_reset_ends_too(build: BuildEnv, trouble: int, vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(build(at_reset=trouble), after=LIMIT)
    verdict = verdict_of(venv.reset)
    assert verdict.word == ("CRASH" if trouble == troubles.SEGFAULT else "STALL")
    assert " reset()" in verdict.title


@pytest.mark.parametrize("trouble", [troubles.SEGFAULT, troubles.SLEEP])
@forked
def test_close_ends_too(build: BuildEnv, trouble: int, vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(build(at_close=trouble), after=LIMIT)
    pids = pids_of(venv)
    venv.reset()
    verdict = verdict_of(venv.close)
    assert verdict.word == ("CRASH" if trouble == troubles.SEGFAULT else "STALL")
    assert " close()" in verdict.title
    assert_gone(pids)


@forked
def test_a_worker_that_died_between_calls_is_found_by_close(build: BuildEnv, vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(build())
    venv.reset()
    os.kill(pids_of(venv)[0], signal.SIGKILL)
    while psutil.Process(pids_of(venv)[0]).status() != "zombie":
        time.sleep(0.01)
    verdict = verdict_of(venv.close)
    assert "worker 0" in verdict.title
    assert "SIGKILL" in verdict.title


@forked
def test_what_a_worker_started_ends_with_it(build: BuildEnv, vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(build(), after=LIMIT)
    venv.reset()
    verdict = verdict_of(lambda: venv.step([troubles.OFFSPRING, troubles.FINE]))
    assert "start_offspring_and_sleep" in verdict.text()
    mark = f"of {os.getpid()}"
    alive = [process for process in psutil.process_iter(["cmdline"]) if mark in " ".join(process.info["cmdline"] or [])]
    assert alive == []


# Innocents


@forked
def test_a_healthy_env_works_as_before(build: BuildEnv, vec_env_guard: GuardVecEnv) -> None:
    venv = build()
    assert vec_env_guard(venv) is venv
    pids = pids_of(venv)
    venv.reset()
    for _ in range(20):
        observations = venv.step([troubles.FINE, troubles.FINE])[0]
    assert (observations == 7).all()
    assert venv.get_attr("at_close")[1] == troubles.FINE
    venv.close()
    venv.close()
    assert_gone(pids)


@forked
def test_a_slow_worker_under_the_limit_is_not_stuck(build: BuildEnv, vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(build(), after="20s")
    venv.reset()
    venv.step([troubles.SLOW, troubles.FINE])
    venv.close()


def test_an_exception_in_a_gymnasium_worker_stays_itself(vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(gym("fork"))
    venv.reset()
    with pytest.raises(ValueError, match="bad action"):
        venv.step([troubles.FINE, troubles.RAISE])


@pytest.mark.parametrize(
    ("trouble", "why"),
    [(troubles.UNPICKLABLE, "what went wrong is on stderr"), (troubles.ONE_WAY, r"TypeError: .*missing 1 required")],
    ids=["not pickled", "not unpickled"],
)
def test_an_exception_that_does_not_pickle_ends_the_step(vec_env_guard: GuardVecEnv, trouble: int, why: str) -> None:
    venv = vec_env_guard(gym("fork"), after="60s")
    venv.reset()
    text = rf"worker 1 \(pid \d+\) raised in step\(\) an exception that does not pickle.*{why}"
    with pytest.raises(RuntimeError, match=text):
        venv.step([troubles.FINE, trouble])
    venv.close()


def test_an_exception_in_an_sb3_worker_stays_an_eof_error_that_says_which(
    vec_env_guard: GuardVecEnv, capfd: pytest.CaptureFixture[str]
) -> None:
    venv = vec_env_guard(sb3("fork"))
    venv.reset()
    with pytest.raises(
        EOFError, match=r"(?s)worker 1 \(pid \d+\) raised in step\(\): ValueError: bad action.*in complain"
    ):
        venv.step([troubles.FINE, troubles.RAISE])
    venv.close()


def test_wrapped_envs_are_guarded_below_their_wrappers(vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(VecNormalize(VecMonitor(sb3("fork")), norm_obs=False))
    venv.reset()
    verdict = verdict_of(lambda: venv.step([troubles.EXIT, troubles.FINE]))
    assert verdict.title.endswith("exited with status 3 in step()")
    venv.close()


def test_a_terminated_gymnasium_env_is_closed_on_purpose(vec_env_guard: GuardVecEnv) -> None:
    venv = vec_env_guard(gym("fork"))
    venv.reset()
    venv.close(terminate=True)


@forked
def test_nothing_of_a_closed_env_is_kept(build: BuildEnv, vec_env_guard: GuardVecEnv) -> None:
    build().close()  # what the library itself keeps from its first env on
    gc.collect()  # what earlier tests left in cycles must not be freed, with its descriptors, during this one
    before = psutil.Process().num_fds()
    venv = vec_env_guard(build())
    venv.reset()
    close = venv.close
    close()
    close()
    closed = weakref.ref(venv)
    del venv
    assert closed() is None
    assert psutil.Process().num_fds() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", ['SubprocVecEnv([make], start_method="fork")', 'AsyncVectorEnv([make], context="fork")'], ids=["sb3", "gym"]
)
def test_an_env_a_lap_is_no_leak(run_pytest: Any, env: str) -> None:
    source = """
        import gymnasium
        import pytest
        from gymnasium.vector import AsyncVectorEnv
        from stable_baselines3.common.vec_env import SubprocVecEnv

        def make():
            return gymnasium.make("CartPole-v1")

        @pytest.mark.rl_no_leak
        def test_laps(vec_env_guard, rl_laps):
            for _ in rl_laps:
                venv = vec_env_guard(ENV)
                venv.reset()
                venv.close()
        """
    outcome = run_pytest(source.replace("ENV", env))
    assert outcome.tests == {"test_laps": "passed"}, outcome.details
    assert "undecided" not in outcome.text


def test_an_env_without_workers_is_refused_by_name(vec_env_guard: GuardVecEnv) -> None:
    with pytest.raises(TypeError, match="not DummyVecEnv"):
        vec_env_guard(DummyVecEnv([TroubledEnv]))


def test_a_limit_must_be_a_duration(vec_env_guard: GuardVecEnv) -> None:
    with pytest.raises(ValueError, match="a duration such as"):
        vec_env_guard(None, after="soon")
    with pytest.raises(ValueError, match="more than 0"):
        vec_env_guard(None, after=0)
