"""The same numbers after every sowing, in each library, however it was used in between."""

from __future__ import annotations

import random

import pytest

from pytest_rlstability.isolation.seeds import Seeds


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
        seeds.sow(seed)
        drawn.append(draw())
    assert drawn[0] == drawn[1] == drawn[3]
    assert drawn[2] == drawn[4] != drawn[0]


def test_torch_notes_a_seed_for_sleeping_devices_once() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_initialized():
        pytest.skip("a GPU is in use")
    seeds = Seeds(5)
    noted = len(torch.cuda._queued_calls)
    for _ in range(10):
        seeds.sow(5)
    assert len(torch.cuda._queued_calls) == noted
    seeds.sow(6)
    assert len(torch.cuda._queued_calls) > noted
