"""Real saves of the installed libraries: none is refused, and none is said to hold code that it does not hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")

import real_saves
import torch

from pytest_rlstability.kits.models.archive import RefusedError, rewrite
from pytest_rlstability.kits.models.audit import audit
from pytest_rlstability.kits.models.contents import read_contents
from pytest_rlstability.kits.models.judge import Trust

SAVES = Path(__file__).parents[2] / "data" / "models"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", real_saves.QUICK)
def test_real_save_holds_no_code(name: str, tmp_path: Path) -> None:
    path = real_saves.write(name, tmp_path)
    assert audit(path).word == "no code found"
    rewrite(path, again := tmp_path / "again.zip")
    assert [part.where for part in read_contents(again).parts] == [part.where for part in read_contents(path).parts]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in real_saves.ALL if name not in real_saves.QUICK])
def test_every_real_save_holds_no_code(name: str, tmp_path: Path) -> None:
    assert audit(real_saves.write(name, tmp_path)).word == "no code found"


# Written with Python 3.11, numpy 1.26 to 2.3 and Gymnasium 0.28 to 1.2. Schedules became classes in SB3 2.7.
OLDER: dict[str, set[str]] = {
    "sb3_2.0.0_PPO_on_dict.zip": {"clip_range", "lr_schedule"},
    "sb3_2.0.0_buffer_HER.pkl": set(),
    "sb3_2.0.0_statistics_dict.pkl": set(),
    "sb3_2.2.1_ARS.zip": {"delta_std_schedule", "lr_schedule"},
    "sb3_2.4.0_DQN_on_box.zip": {"exploration_schedule", "lr_schedule"},
    "sb3_2.7.1_MaskablePPO_on_box.zip": set(),
    "sb3_2.8.0_TRPO_on_box.zip": set(),
}


@pytest.mark.parametrize("name", OLDER)
def test_save_of_an_older_version_holds_code_only_in_its_schedules(name: str) -> None:
    assert set(audit(SAVES / name).code) == OLDER[name]


@pytest.mark.filterwarnings("ignore")
def test_what_is_saved_beside_a_model_holds_no_code(tmp_path: Path) -> None:
    words = {path.name: audit(path).word for path in real_saves.write_others(tmp_path)}
    assert set(words.values()) == {"no code found"}
    assert len(words) == 7


def _linear(initial: float) -> Callable[[float], float]:
    return lambda progress: progress * initial


CALLED: dict[str, tuple[str, dict[str, Any]]] = {
    "closure": ("learning_rate", {"learning_rate": _linear(1e-3)}),
    "clip range": ("clip_range", {"clip_range": lambda progress: 0.2}),
    "partial": ("policy_kwargs", {"policy_kwargs": {"activation_fn": functools.partial(torch.nn.LeakyReLU, 0.1)}}),
}


@pytest.mark.parametrize("name", CALLED)
def test_code_is_found_in_the_entry_that_holds_it(name: str, tmp_path: Path) -> None:
    entry, settings = CALLED[name]
    box, choice = real_saves.OBSERVATIONS["box"], real_saves.ACTIONS["choice"]
    real_saves.make("PPO", box, choice, n_steps=16, **settings).save(path := tmp_path / "model.zip")
    result = audit(path)
    assert result.word == "code found"
    assert entry in result.code
    assert set(result.code) <= {entry, "lr_schedule"}


class Extractor(torch.nn.Flatten):
    """A class of the user's own module."""

    features_dim = 3

    def __init__(self, observation_space: Any) -> None:
        super().__init__()


def test_own_class_needs_trust(tmp_path: Path) -> None:
    box, choice = real_saves.OBSERVATIONS["box"], real_saves.ACTIONS["choice"]
    kwargs = {"features_extractor_class": Extractor}
    real_saves.make("PPO", box, choice, n_steps=16, policy_kwargs=kwargs).save(path := tmp_path / "model.zip")
    with pytest.raises(RefusedError, match=r"'policy_kwargs' .* names test_model_innocents\.Extractor.*--trust"):
        audit(path)
    assert audit(path, trust=Trust(("test_model_innocents",))).word == "no code found"
