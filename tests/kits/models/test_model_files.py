"""Real files: the remedy that the audit names works, and a bundle is verified, refused or failed as it should be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

import numpy
from stable_baselines3 import DQN, PPO

from pytest_rlstability.kits.models.audit import audit

MODELS = Path(__file__).parents[2] / "data" / "models"


def linear_schedule(initial_value: float, min_value: float) -> Callable[[float], float]:
    """What the user of the saved files had in his script."""
    return lambda progress: max(min_value, progress * initial_value)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("w312sb26_ppo_lr", PPO),
        ("w313sb26_ppo_lr", PPO),
        ("w312sb26_ppo_default", PPO),
        ("w312sb26_dqn_default", DQN),
    ],
)
def test_named_custom_objects_make_the_file_load_and_learn(name: str, algorithm: Any) -> None:
    path = MODELS / f"{name}.zip"
    remedy = audit(path).custom_objects
    custom_objects = eval(f"dict({remedy})", {"linear_schedule": linear_schedule})["custom_objects"]
    model = algorithm.load(path, env=_cart_pole(), device="cpu", custom_objects=custom_objects)
    model.learn(64)
    if algorithm is PPO:
        assert model.clip_range(0.5) == pytest.approx(0.2)
        expected = linear_schedule(1e-5, 1e-6)(0.5) if name.endswith("lr") else 3e-4
        assert model.lr_schedule(0.5) == pytest.approx(expected)


def _cart_pole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


def rlstability(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_rlstability", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real DQN of SB3 2.6 and Python 3.12, packed here."""
    path = tmp_path_factory.mktemp("bundle") / "dqn.bundle"
    packed = rlstability("pack", MODELS / "w312sb26_dqn_default.zip", path)
    assert packed.returncode == 0, packed.stderr
    assert "packed w312sb26_dqn_default.zip (DQN)" in packed.stdout
    return path


@pytest.mark.slow
def test_bundle_is_verified(bundle: Path) -> None:
    verified = rlstability("verify", bundle)
    assert verified.returncode == 0, verified.stdout
    assert verified.stdout.startswith("ok: this machine: the same\ncompared bit for bit\n")


def _repack(bundle: Path, out: Path, change: Callable[[dict[str, Any], Path], None]) -> None:
    """Unpack *bundle*, let *change* alter its description or files, and pack it again with true digests."""
    import hashlib

    directory = out.with_suffix(".d")
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(directory)
    description = json.loads((directory / "bundle.json").read_text())
    change(description, directory)
    for name in description["sha256"]:
        description["sha256"][name] = hashlib.sha256((directory / name).read_bytes()).hexdigest()
    (directory / "bundle.json").write_text(json.dumps(description))
    with zipfile.ZipFile(out, "w") as archive:
        for name in ["bundle.json", *description["sha256"]]:
            archive.write(directory / name, name)


@pytest.mark.slow
def test_other_predictions_fail(bundle: Path, tmp_path: Path) -> None:
    def change(description: dict[str, Any], directory: Path) -> None:
        with numpy.load(directory / "expected.npz") as stored:
            arrays = dict(stored)
        arrays["predict/scores/q_values"] += 0.25
        numpy.savez(directory / "expected.npz", **arrays)
        description["machine"]["capability"] = "another"

    out = tmp_path / "changed.bundle"
    _repack(bundle, out, change)
    verified = rlstability("verify", out)
    assert verified.returncode == 1
    assert verified.stdout.startswith("FAILED: this machine: predict/scores/q_values: 32 of 32 values differ")
    assert "compared within the tolerance\n  capability: packed on another" in verified.stdout


def test_hostile_model_in_a_bundle_is_never_loaded(bundle: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    def change(description: dict[str, Any], directory: Path) -> None:
        description["kind"] = "buffer"
        description["sha256"] = dict.fromkeys(("model.pkl", "observations.npz", "expected.npz"), "")
        (directory / "model.pkl").write_bytes(f"cos\nsystem\n(S'touch {trace}'\ntR.".encode())

    out = tmp_path / "hostile.bundle"
    _repack(bundle, out, change)
    verified = rlstability("verify", out)
    assert verified.returncode == 2
    assert "would run os.system" in verified.stderr
    assert not trace.exists()


def test_damaged_bundles_are_refused(bundle: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.bundle"
    cut.write_bytes(bundle.read_bytes()[:-500])
    swapped = tmp_path / "swapped.bundle"
    with zipfile.ZipFile(bundle) as source, zipfile.ZipFile(swapped, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content if name != "observations.npz" else b"something else")
    for path, reason in (
        (cut, "not a whole zip"),
        (swapped, "is not what was packed"),
        (MODELS / "w312sb26_dqn_default.zip", "is not a bundle"),
        (tmp_path / "none.bundle", "cannot read"),
    ):
        verified = rlstability("verify", path)
        assert verified.returncode == 2
        assert reason in verified.stderr


@pytest.mark.slow
def test_model_that_does_not_work_here_is_not_packed(tmp_path: Path) -> None:
    if sys.version_info[:2] == (3, 12):
        pytest.skip("the file was written by this Python")
    model, out = MODELS / "w312sb26_ppo_default.zip", tmp_path / "out"
    refused = rlstability("pack", model, out)
    assert refused.returncode == 2
    assert refused.stderr.startswith("refused: code found: clip_range holds lambda get_schedule_fn")
    packed = rlstability("pack", model, out, "--i-trust-this-file")
    assert packed.returncode == 1
    assert packed.stderr.startswith("the model does not work on this machine: ")
    assert 'custom_objects={"clip_range": 0.2' in packed.stderr
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "model.zip"
    shutil.copy(__file__, text)
    packed = rlstability("pack", text, tmp_path / "out")
    assert packed.returncode == 2
    assert packed.stderr.startswith("refused: ")
