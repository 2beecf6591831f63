"""``rlstability fuzz`` on envs with a planted fault and on their innocent twins, in real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")
pytestmark = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="attempts are forked")

ENVS = Path(__file__).with_name("planted_envs.py")


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=directory, capture_output=True, text=True, timeout=120)


def fuzz(directory: Path, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "envs.py").write_text(ENVS.read_text())
    settings = ("--for=20s", "--seed=1", "--stall-after=2s", *options)
    return run(directory, "-m", "pytest_rlstability", "fuzz", f"envs:{name}", *settings)


def test_crash_becomes_a_short_test_that_crashes(tmp_path: Path) -> None:
    found = fuzz(tmp_path, "CrashOnPair")
    assert found.returncode == 1, found.stdout + found.stderr
    assert "CRASH: SIGSEGV in step()" in found.stdout
    assert "4 calls, shrunk from" in found.stdout
    assert "env.step(4)\n    env.step(2)\n" in (tmp_path / "test_found.py").read_text()
    assert run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_found.py").returncode == -11


def test_nothing_is_found_in_an_innocent_env(tmp_path: Path) -> None:
    found = fuzz(tmp_path, "Innocent", "--for=2s")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "nothing found" in found.stdout
    assert not (tmp_path / "test_found.py").exists()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("no_such_module:make", "cannot import no_such_module:make: ModuleNotFoundError"),
        ("envs:nothing", "cannot import envs:nothing: AttributeError"),
        ("envs:raises", "making an env raises"),
        ("crashes_at_import:make", "CRASH: SIGABRT while crashes_at_import:make was imported"),
    ],
)
def test_what_cannot_be_driven_is_said(target: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "envs.py").write_text(ENVS.read_text())
    (tmp_path / "crashes_at_import.py").write_text("import os\nos.abort()\n")
    found = run(tmp_path, "-m", "pytest_rlstability", "fuzz", target)
    assert found.returncode == 2
    assert words in found.stderr
