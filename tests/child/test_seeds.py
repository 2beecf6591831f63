"""A test draws the same numbers in every run with the same seed, in each library, and another test draws others."""

from __future__ import annotations

import random
import re
import shlex
import subprocess

import pytest

from pytest_rlstability.child.seeds import Seeds, seed_of

DRAWS = {
    "random": random.random,
    "numpy": lambda: __import__("numpy").random.rand(),
    "numpy without a seed": lambda: __import__("numpy").random.default_rng().random(),
    "torch": lambda: __import__("torch").rand(1).item(),
}


@pytest.mark.parametrize("library", DRAWS)
def test_the_same_seed_gives_the_same_numbers(library: str) -> None:
    if library != "random":
        pytest.importorskip(library.split()[0])
    seeds, drawn = Seeds(), []
    DRAWS[library]()
    for seed in (3, 3, 4, 3, 4):
        seeds.apply(seed)
        drawn.append(DRAWS[library]())
    assert drawn[0] == drawn[1] == drawn[3]
    assert drawn[2] == drawn[4] != drawn[0]


def test_each_test_and_each_run_has_a_seed_of_its_own() -> None:
    assert len({seed_of(run, test) for run in range(20) for test in "abcdefgh"}) == 160


GAME = """
    import random
    import pytest
    {outside}

    @pytest.mark.parametrize("number", range(3))
    def test_episode(number):
        {inside}
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset()
        steps = [observation.tolist(), env.action_space.sample(), random.random(), numpy.random.default_rng().random()]
        assert not steps, f"drew {{steps}}"
"""


@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("group", ["auto", "test"])
def test_unseeded_games_are_played_again(run_pytest, where, group):
    pytest.importorskip("gymnasium")
    imports = {"outside": "", "inside": "", where: "import gymnasium, numpy"}
    outcome = run_pytest(GAME.format(**imports), f"--rl-group={group}")
    drawn = re.findall(r"^E +AssertionError: drew (.*)$", outcome.text, re.MULTILINE)
    assert len(set(drawn)) == 3, outcome.text
    commands = re.findall(r"^Reproduce: (.*)$", outcome.text, re.MULTILINE)
    for command, numbers in zip(commands, drawn, strict=True):
        again = subprocess.run(shlex.split(command), cwd=run_pytest.path, capture_output=True, text=True, check=False)
        assert f"drew {numbers}" in again.stdout
