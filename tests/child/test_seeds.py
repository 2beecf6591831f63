"""The same numbers after every sowing, in each library, however it was used in between."""

from __future__ import annotations

import random

import pytest

from pytest_rlstability.child.seeds import Seeds


@pytest.mark.parametrize("library", ["random", "numpy", "torch"])
def test_a_test_draws_what_the_first_one_drew(library: str) -> None:
    if library != "random":
        pytest.importorskip(library)
    draw = {
        "random": random.random,
        "numpy": lambda: __import__("numpy").random.rand(),
        "torch": lambda: __import__("torch").rand(1).item(),
    }[library]
    seeds = Seeds(3)
    drawn = []
    for seed in (3, 3, 4, 3, 4):
        seeds.apply(seed)
        drawn.append(draw())
    assert drawn[0] == drawn[1] == drawn[3]
    assert drawn[2] == drawn[4] != drawn[0]


def test_sleeping_devices_are_told_of_each_seed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_initialized():
        pytest.skip("a GPU is in use")
    told: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", told.append)
    seeds = Seeds(5)
    for seed in (5, 5, 5, 6, 6):
        seeds.apply(seed)
    assert told == [5, 6]
