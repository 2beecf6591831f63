"""The five field stories as a newcomer sees them: each fault caught for its own reason, each fixed version green."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

for _module in ("pyboy", "Box2D", "stable_baselines3", "requests", "plotly"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed", allow_module_level=True)

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
STORIES = ("pyboy_capture", "model_roundtrip", "http_env", "model_creation_stages", "box2d_walker")


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    specification = importlib.util.spec_from_file_location("demo", DEMO)
    assert specification is not None
    assert specification.loader is not None
    module = sys.modules["demo"] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
def test_every_fault_is_caught_and_every_fixed_version_passes(story: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, str(DEMO), story]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Every fault was caught" in ran.stdout
    assert (tmp_path / "rlstability-demo.html").stat().st_size > 1_000_000, "the page holds the charts' library"


def test_all_stories_are_tested(demo: ModuleType) -> None:
    assert tuple(story.folder for story in demo.STORIES) == STORIES


@pytest.mark.parametrize(
    ("faulty", "fixed", "good"),
    [
        (("failure", "CRASH: SIGSEGV in call"), ("passed", ""), True),
        (("failure", "AssertionError: something else"), ("passed", ""), False),
        (("passed", ""), ("passed", ""), False),
        (("failure", "CRASH: SIGSEGV in call"), ("failure", "CRASH: SIGSEGV in call"), False),
        (("failure", "CRASH: SIGSEGV in call"), ("skipped", "no library"), False),
    ],
)
def test_what_is_not_as_promised_is_told(
    demo: ModuleType, faulty: tuple[str, str], fixed: tuple[str, str], good: bool
) -> None:
    story = demo.Story("folder", "what happened", {"test_it": "CRASH: SIGSEGV"})
    results = [demo.Result("test_it", True, *faulty), demo.Result("test_it", False, *fixed)]
    assert demo.tell(story, results) is good


def test_a_fault_that_did_not_run_is_told(demo: ModuleType) -> None:
    story = demo.Story("folder", "what happened", {"test_it": "CRASH: SIGSEGV"})
    assert demo.tell(story, [demo.Result("test_other", False, "passed", "")]) is False
