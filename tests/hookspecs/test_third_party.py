"""A package of somebody else's, installed beside this one, adds one of each thing that can be added."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome, RunPytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the zygote backend and /proc")

ROOT = Path(__file__).parents[2]

FILES = {
    "acme_sim/__init__.py": """
        frames = []
        cache = []
        started_early = []
    """,
    "acme_sim/early.py": """
        import sys

        import acme_sim


        def start():
            acme_sim.started_early.append("test_it" in sys.modules)
    """,
    "acme_sim/doctor.py": """
        def run(rl_stage, frames):
            import acme_sim

            with rl_stage("simulate"):
                acme_sim.frames += range(frames)


        def crash():
            import ctypes

            ctypes.string_at(0)
    """,
    "acme_sim/plugin.py": """
        import sys
        import time
        from pathlib import Path

        import pytest

        import acme_sim
        from pytest_rlstability.leaks.known_leaks import KnownLeak
        from pytest_rlstability.leaks.signals.protocol import Signal
        from pytest_rlstability.model.events import Finished
        from pytest_rlstability.model.run import Killed
        from pytest_rlstability.model.verdict import Verdict, Word
        from pytest_rlstability.reports.exposition import Family
        from pytest_rlstability.steps.doctor_step import DoctorStep


        class Frames(Signal):
            name = "acme_frames"
            title = "frames of the simulator"
            unit = "bytes"
            group = "memory"
            exact = True

            def read(self):
                return 100.0 * len(acme_sim.frames)


        def pytest_rlstability_signals():
            return [Frames]


        class Cache(KnownLeak):
            reason = "acme_sim caches what it has drawn"

            def heap_bytes(self):
                return (4096 + 48) * len(acme_sim.cache) + sys.getsizeof(acme_sim.cache)


        def pytest_rlstability_known_leaks():
            return [Cache()]


        class TooManyLaps:
            def __init__(self):
                self.due = time.monotonic()

            def check(self, process):
                self.due = time.monotonic() + 0.05
                laps = process.counters.laps
                return Killed("laps", f"{laps} laps, the limit is 5") if laps > 5 else None


        def pytest_rlstability_kill_conditions(item, context):
            return [TooManyLaps()] if "endless" in item.name and context.plan.isolate else None


        class Pids:
            def __init__(self, item):
                self.due = time.monotonic()
                self._path = item.config.rootpath / f"{item.name}.pid"

            def observe(self, process):
                self.due = time.monotonic() + 3600
                self._path.write_text(str(process.pid))


        def pytest_rlstability_observers(item):
            return [Pids(item)]


        def pytest_rlstability_judge(run):
            if run.ending.exit is not None and run.ending.exit.status == 42:
                return Verdict(Word.CRASH, "the simulator quit", facts={"class": "acme"})


        class FinishedTests:
            trouble = ""

            def __init__(self, path):
                self._path = path
                self._tests = []

            def handle(self, event):
                if isinstance(event, Finished):
                    self._tests.append(event.test.partition("::")[2])

            def close(self):
                self._path.write_text(" ".join(self._tests))

            def lines(self):
                return [f"acme saw {len(self._tests)} tests"]


        def pytest_addoption(parser):
            parser.getgroup("acme").addoption("--acme-report", metavar="PATH")


        def pytest_rlstability_reports(config):
            path = config.getoption("--acme-report")
            return None if path is None else [FinishedTests(Path(path))]


        def pytest_rlstability_metric(name):
            if name.startswith("acme "):
                return Family("rlstability_acme_objects", "Objects in the simulator.", {"kind": name[5:]})


        def pytest_rlstability_before_import(item):
            return "acme_sim.early:start" if "acme_world" in item.fixturenames else None


        def pytest_rlstability_doctor_steps():
            return [
                DoctorStep("acme works", "acme", "acme_sim.doctor:run", ("acme_sim",), {"frames": 3}),
                DoctorStep("acme crashes", "acme", "acme_sim.doctor:crash", ("acme_sim",)),
                DoctorStep("acme without its engine", "acme", "acme_sim.doctor:run", ("acme_engine",)),
            ]


        @pytest.fixture
        def acme_world():
            yield acme_sim
    """,
    "acme_sim-1.0.dist-info/METADATA": """
        Metadata-Version: 2.1
        Name: acme-sim
        Version: 1.0
        Requires-Dist: pytest-rlstability[box2d]>=0.1; python_version > "3.8"
    """,
    "acme_sim-1.0.dist-info/entry_points.txt": """
        [pytest11]
        acme = acme_sim.plugin
    """,
}

TESTS = """
    import os
    import sys

    import pytest


    @pytest.mark.rl_no_leak(signals=["acme_frames"])
    def test_signal(rl_laps, acme_world):
        for lap in rl_laps:
            acme_world.frames.append(lap)


    @pytest.mark.rl_no_leak(signals=["malloc"])
    def test_known_leak(rl_laps, acme_world):
        for lap in rl_laps:
            acme_world.cache.append(bytes(4096))


    def test_endless(rl_laps, rl_heartbeat):
        import time
        for lap in rl_laps:
            time.sleep(0.1)


    def test_judge():
        os._exit(42)


    def test_metric(rl_laps, rl_probe):
        rl_probe("acme bodies", lambda: 7)
        for lap in rl_laps:
            pass


    def test_early(acme_world):
        assert acme_world.started_early == ([False] if os.environ["BACKEND"] == "spawn" else [])
"""


def install(target: Path, files: dict[str, str]) -> None:
    """What ``pip install --target`` leaves, without pip and a network."""
    for name, text in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    (target / "acme_sim-1.0.dist-info" / "RECORD").write_text("".join(f"{name},,\n" for name in files))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    target = tmp_path / "site"
    install(target, FILES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(target), str(ROOT)]))
    return target


@pytest.fixture(params=["zygote", "spawn"])
def outcome(
    request: pytest.FixtureRequest, installed: Path, run_pytest: RunPytest, monkeypatch: pytest.MonkeyPatch
) -> Outcome:
    monkeypatch.setenv("BACKEND", request.param)
    return run_pytest(
        TESTS,
        f"--rl-backend={request.param}",
        "--rl-native=off",
        "--rl-prometheus=metrics.prom",
        "--rl-html=page.html",
        "--acme-report=acme.txt",
    )


def test_all_of_it_works_in_a_run(outcome: Outcome, run_pytest: RunPytest) -> None:
    assert outcome.tests == {
        "test_signal": "failed",
        "test_known_leak": "passed",
        "test_endless": "failed",
        "test_judge": "failed",
        "test_metric": "passed",
        "test_early": "passed",
    }, outcome.text
    assert outcome.messages["test_signal"].startswith("LEAK: frames of the simulator grow by 100 B per lap")
    assert outcome.messages["test_endless"].startswith("CRASH: killed for laps (6 laps, the limit is 5) in call")
    assert outcome.properties["test_endless"]["rl_stability.class"] == "watchdog"
    assert outcome.messages["test_judge"] == "CRASH: the simulator quit"
    assert outcome.properties["test_judge"]["rl_stability.class"] == "acme"
    assert (run_pytest.path / "acme.txt").read_text().split() == list(outcome.tests)
    assert "rl-stability: acme saw 6 tests" in outcome.text
    assert int((run_pytest.path / "test_endless.pid").read_text()) > 0
    metrics = (run_pytest.path / "metrics.prom").read_text()
    assert 'rlstability_acme_objects{kind="bodies",test="test_it.py::test_metric"} 7.0' in metrics
    assert 'rlstability_memory_bytes{signal="acme_frames",test="test_it.py::test_signal"}' in metrics
    signals: Any = outcome.events[0]["signals"]
    assert signals["acme_frames"]["title"] == "frames of the simulator"
    assert "frames of the simulator" in (run_pytest.path / "page.html").read_text()


@pytest.mark.parametrize("group", ["test", "module"])
def test_a_plugin_that_raises_is_an_error_of_that_test_only(
    installed: Path, run_pytest: RunPytest, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    broken = FILES["acme_sim/plugin.py"].replace(
        "return [TooManyLaps()] if", 'assert item.name != "test_metric", "a broken watchdog"\n            return [] if'
    )
    install(installed, {**FILES, "acme_sim/plugin.py": broken})
    monkeypatch.setenv("BACKEND", "zygote")
    outcome = run_pytest(TESTS, "-k", "metric or early", "--rl-backend=zygote", f"--rl-group={group}")
    assert "a broken watchdog" in outcome.details["test_metric"]
    assert (outcome.tests["test_metric"], outcome.code) == ("error", pytest.ExitCode.TESTS_FAILED), outcome.text
    assert outcome.tests["test_early"] == "passed"


def test_a_name_that_is_nobodys_is_a_usage_error_with_its_line(installed: Path, run_pytest: RunPytest) -> None:
    outcome = run_pytest(TESTS.replace("acme_frames", "acme_sprites"))
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    assert "test_it.py:8: test_signal: rl_no_leak: 'acme_sprites' is not a signal; there are memory," in outcome.text
    assert "acme_frames" in outcome.text


def test_a_name_that_two_signals_have_is_a_usage_error(installed: Path, run_pytest: RunPytest) -> None:
    install(installed, {**FILES, "acme_sim/plugin.py": FILES["acme_sim/plugin.py"].replace("acme_frames", "fds")})
    outcome = run_pytest(TESTS.replace("acme_frames", "fds"))
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    assert "two signals are called 'fds': pytest_rlstability." in outcome.text
    assert "and acme_sim.plugin.Frames" in outcome.text


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "pytest_rlstability", "doctor", "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return result.returncode, json.loads(result.stdout)


def test_its_steps_are_the_doctors(installed: Path) -> None:
    code, found = doctor("--only", "acme")
    steps = {step["name"]: step for step in found["steps"]}
    assert {name: step["state"] for name, step in steps.items()} == {
        "acme works": "ok",
        "acme crashes": "crash",
        "acme without its engine": "not installed",
    }
    assert steps["acme works"]["stages"][0]["name"] == "simulate"
    assert steps["acme crashes"]["signal"] == "SIGSEGV"
    assert code == 1
    assert "acme_sim" in found["facts"]["modules"]


@pytest.mark.parametrize(
    ("start", "state", "headline"),
    [("import ctypes; ctypes.string_at(0)", "crash", "SIGSEGV"), ("import acme_engine", "error", "ModuleNotFound")],
)
def test_a_plugin_that_cannot_be_loaded_is_a_failed_step(
    installed: Path, start: str, state: str, headline: str
) -> None:
    (installed / "acme_sim" / "plugin.py").write_text(start)
    code, found = doctor("--only", "shared-memory")
    steps = {step["name"]: step for step in found["steps"]}
    assert (steps["plugin acme_sim.plugin"]["state"], code) == (state, 1)
    assert headline in steps["plugin acme_sim.plugin"]["headline"]
    assert steps["shared memory"]["state"] == "ok"
