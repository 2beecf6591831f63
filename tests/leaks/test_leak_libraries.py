"""The leak check on the libraries it is for: what they keep by design passes, what the user keeps does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_rlstability.leaks import outcome
from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.settings import LeakSettings

Lap = Callable[[], object]


def check(lap: Lap, *, budget: float = 20.0) -> LeakCheck:
    """The check that ``rl_no_leak`` makes of *lap*, in this process."""
    running = LeakCheck(LeakSettings(checking=True, budget=budget))
    try:
        for count in outcome.run(running):
            for _ in range(count):
                lap()
    finally:
        running.close()
    return running


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [0, 1])
def test_bodies_that_are_destroyed_pass_and_the_shapes_the_library_loses_are_told(shapes: int) -> None:
    box2d = pytest.importorskip("Box2D")
    world = box2d.b2World()

    def lap() -> None:
        body = world.CreateDynamicBody(position=(0, 1))
        for _ in range(shapes):
            body.CreatePolygonFixture(box=(1, 1), density=1)
        world.Step(1 / 60, 4, 2)
        world.DestroyBody(body)

    result = check(lap)
    assert (result.verdict is None) == (shapes == 0)
    assert result.verdict is None or "CreatePolygonFixture" in result.verdict.headline


def test_bodies_that_stay_fail_and_the_line_is_named() -> None:
    box2d = pytest.importorskip("Box2D")
    world = box2d.b2World()

    def lap() -> None:
        world.CreateStaticBody(position=(0, 1)).CreatePolygonFixture(box=(1, 1))

    result = check(lap)
    assert result.verdict is not None
    assert "world.CreateStaticBody" in result.verdict.headline


@pytest.mark.slow
def test_a_kept_graph_is_found_by_its_holder() -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    network, total_loss = torch.nn.Linear(8, 2), [torch.zeros(())]

    def lap() -> None:
        total_loss[0] = total_loss[0] + network(torch.ones(2, 8)).mean()

    try:
        result = check(lap)
    finally:
        torch.set_num_threads(threads)
    assert result.verdict is not None
    assert "total_loss" in result.verdict.headline


@pytest.mark.slow
def test_episodes_that_the_monitor_keeps_are_told_from_those_the_user_keeps() -> None:
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    gymnasium = pytest.importorskip("gymnasium")

    class OneStep(gymnasium.Env):  # type: ignore[misc, name-defined]
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: object = None, options: object = None) -> tuple[int, dict[str, object]]:
            return 0, {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
            return 0, 0.37 * action, True, False, {}

    env, returns = monitor.Monitor(OneStep()), []

    def episode() -> None:
        env.reset()
        env.step(1)

    def kept_episode() -> None:
        episode()
        returns.append(str(len(returns)))

    result = check(episode)
    assert result.verdict is None
    assert any("Monitor" in known.reason for known in result.known_leaks)
    result = check(kept_episode)
    assert result.verdict is not None
    assert "returns" in result.verdict.headline


@pytest.mark.slow
def test_frames_of_an_emulator_that_are_kept_fail_and_ticks_pass() -> None:
    pyboy = pytest.importorskip("pyboy")
    import tempfile

    from pytest_rlstability.kits.pyboy.rom import build_rom

    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/game.gb"
        with open(path, "wb") as file:
            file.write(build_rom())
        boy, frames = pyboy.PyBoy(path, window="null", sound_emulated=False, log_level="ERROR"), []
        result = check(lambda: boy.tick(1, True))
        assert result.verdict is None
        result = check(lambda: (boy.tick(1, True), frames.append(boy.screen.ndarray.copy())))
        boy.stop(save=False)
    assert result.verdict is not None
    assert "frames" in result.verdict.headline
