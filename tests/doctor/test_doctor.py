"""``rlstability doctor`` on machines that are broken in known ways: packages that stand in for the real ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.doctor.facts import gather_facts
from pytest_rlstability.doctor.plugins import shipped_steps
from pytest_rlstability.doctor.report import facts_lines
from pytest_rlstability.doctor.step_list import MODULES, needed_by

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc")

NEEDED = needed_by(shipped_steps())
ROOT = Path(__file__).parents[2]


@dataclass
class Doctor:
    """Runs the doctor in *home* with the libraries it looks for replaced by empty packages of the same names."""

    home: Path
    temporary: Path

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.home / "packages"), str(ROOT)])
        return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(self.temporary)}

    def package(self, name: str, source: str = "__version__ = '1.0'\n") -> None:
        directory = self.home / "packages" / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "__init__.py").write_text(source)

    def start(self, *arguments: str, **streams: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pytest_rlstability", "doctor", *arguments]
        return subprocess.Popen(command, cwd=self.home, env=self.environment, text=True, **streams)

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text, _ = process.communicate(timeout=120)
        return process.returncode, text

    def run_json(self, *arguments: str) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]]]:
        code, text = self.run("--json", *arguments)
        found = json.loads(text)
        return code, found, {step["name"]: step for step in found["steps"]}


@pytest.fixture
def doctor(tmp_path: Path) -> Iterator[Doctor]:
    # A short path of its own, so that what is left behind can be seen.
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as temporary:
        doctor = Doctor(tmp_path, Path(temporary))
        for name in {*MODULES, *NEEDED}:
            # What happens to be installed here must not meet the empty packages it builds on.
            if name in NEEDED or find_spec(name) is not None:
                doctor.package(name)
        yield doctor
        assert list(Path(temporary).iterdir()) == [], "files were left behind"


def test_torch_that_segfaults_at_import(doctor: Doctor) -> None:
    doctor.package("torch", "import ctypes\n\n\ndef initialise():\n    ctypes.string_at(0)\n\n\ninitialise()\n")
    code, text = doctor.run("--only", "imports", "policies", "shared-memory")
    assert code == 1
    assert re.search(r"crash +import torch +SIGSEGV in packages/torch/__init__.py:5 in initialise", text)
    assert re.search(r"ok +import numpy 1.0", text)
    assert re.search(r"- +import stable_baselines3: not run, import torch fails", text)
    assert re.search(r"- +create PPO: not run, import torch fails", text)
    assert re.search(r"ok +shared memory", text)
    assert "native stack:" in text
    assert "1 of " in text.splitlines()[-1]
    assert "import torch (crash: SIGSEGV)" in text.splitlines()[-1]


@pytest.mark.slow
def test_hang_exit_kill_exception_and_noise_at_import(doctor: Doctor) -> None:
    doctor.package("torch", "import time\ntime.sleep(600)\n")
    doctor.package("numpy", "import os\nos._exit(0)\n")
    doctor.package("cv2", "import os\nos.kill(os.getpid(), 9)\n")
    doctor.package("pygame", "raise ImportError('libSDL2.so: cannot open shared object file')\n")
    doctor.package("PIL", "import os\nos.write(1, bytes(range(256)) * 40_000)\nos.close(1)\nos.close(2)\n")
    code, found, steps = doctor.run_json("--only", "imports", "--step-limit=6s")
    assert (code, found["ok"], found["schema"]) == (1, False, 1)
    assert (steps["import torch"]["state"], steps["import torch"]["where"]) == (
        "hang", "packages/torch/__init__.py:2 in <module>",
    )  # fmt: skip
    assert (steps["import numpy"]["state"], steps["import numpy"]["headline"]) == (
        "crash", "exit code 0 before the end",
    )  # fmt: skip
    assert (steps["import cv2"]["state"], steps["import cv2"]["signal"]) == ("crash", "SIGKILL")
    assert steps["import pygame"]["state"] == "error"
    assert steps["import pygame"]["headline"] == "ImportError: libSDL2.so: cannot open shared object file"
    assert steps["import PIL"]["state"] == "ok"


def test_healthy_imports_in_both_orders(doctor: Doctor) -> None:
    code, found, steps = doctor.run_json("--only", "imports", "import-order")
    assert (code, found["ok"]) == (0, True)
    assert {step["state"] for step in found["steps"]} == {"ok"}
    assert set(found["facts"]["modules"]) >= set(NEEDED)
    assert steps["torch first, then the others"]["stages"][0]["name"] == "import torch"
    assert steps["the others first, then torch"]["stages"][-1]["name"] == "import torch"


def test_libraries_that_clash_in_one_order_are_named(doctor: Doctor) -> None:
    doctor.package("Box2D", "import os, sys\nif 'torch' in sys.modules:\n    os.abort()\n")
    code, _, steps = doctor.run_json("--only", "imports", "import-order")
    assert code == 1
    assert steps["import Box2D"]["state"] == "ok"
    assert steps["the others first, then torch"]["state"] == "ok"
    assert steps["torch first, then the others"]["signal"] == "SIGABRT"
    assert steps["import torch, then Box2D"]["signal"] == "SIGABRT"
    assert steps["import numpy, then Box2D"]["state"] == "ok"


def test_stages_of_the_user(doctor: Doctor) -> None:
    (doctor.home / "stages.py").write_text(
        "import ctypes, sys\n"
        "def data():\n    return object()\n"
        "def environment():\n    sys.exit(0)\n"
        "def model():\n    ctypes.string_at(0)\n"
        "def load():\n    raise FileNotFoundError('model.zip')\n"
        "def all_at_once(rl_stage):\n"
        "    with rl_stage('read data'):\n        data()\n"
        "    with rl_stage('create model'):\n        model()\n"
        "def in_turn():\n    yield 'one'\n    yield 'two'\n    load()\n"
    )
    code, text = doctor.run(
        "--run", "stages:data", "stages:environment", "--run", "stages:model", "stages:load", "stages:all_at_once",
        "stages:in_turn",
    )  # fmt: skip
    assert code == 1
    table = text.partition("your stages\n")[2].partition("\nfailures")[0]
    patterns = [
        r"works +stages:data ", r"works +stages:environment ",
        r"dies here +stages:model +SIGSEGV in stages.py:7 in model",
        r"raises here +stages:load +FileNotFoundError: model.zip in stages.py:9 in load",
        r"dies here +stages:all_at_once +SIGSEGV", r"works +read data", r"dies here +create model",
        r"raises here +stages:in_turn", r"works +one", r"raises here +two",
    ]  # fmt: skip
    lines = table.strip().splitlines()
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.search(pattern, line), (pattern, line)


def test_stages_that_work(doctor: Doctor) -> None:
    (doctor.home / "stages.py").write_text("class Setup:\n    @staticmethod\n    def run():\n        print('x')\n")
    code, found, steps = doctor.run_json("--run", "stages:Setup.run")
    assert (code, found["ok"], steps["stages:Setup.run"]["state"]) == (0, True, "ok")


def test_stage_that_does_not_exist_is_an_error_that_says_so(doctor: Doctor) -> None:
    code, text = doctor.run("--run", "nowhere:data")
    assert code == 1
    assert "ModuleNotFoundError: No module named 'nowhere'" in text


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--run", "stages"], "'stages' is not MODULE:CALLABLE"),
        (["--run", "stages.py:data"], "without .py"),
        (["--only", "everything"], "invalid choice: 'everything'"),
        (["--step-limit", "soon"], "'soon' is not a duration"),
        (["--step-limit", "0"], "'0' is not a duration"),
    ],
)
def test_wrong_arguments(doctor: Doctor, arguments: list[str], complaint: str) -> None:
    code, text = doctor.run(*arguments)
    assert code == 2
    assert complaint in text


def test_python_that_cannot_start_is_reported(doctor: Doctor) -> None:
    # The doctor's own process is spared, as by a crash that only some processes meet.
    (doctor.home / "packages" / "sitecustomize.py").write_text(
        "import os, sys\nif 'RLSTABILITY_STEP' in os.environ:\n    os.abort()\n"
    )
    code, found, steps = doctor.run_json("--only", "imports")
    assert code == 1
    assert steps["start Python"]["signal"] == "SIGABRT"
    assert steps["import torch"]["signal"] == "SIGABRT"
    assert found["facts"]["python"]["version"]


def test_reader_that_leaves_early(doctor: Doctor) -> None:
    process = doctor.start("--run", "os:getpid", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr.read() == ""
    process.stderr.close()


def test_closed_output(doctor: Doctor) -> None:
    command = f'"{sys.executable}" -m pytest_rlstability doctor --run os:getpid >&- 2>&-'
    assert subprocess.run(["sh", "-c", command], cwd=doctor.home, env=doctor.environment, timeout=60).returncode == 0


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_ended_half_way_it_takes_its_step_along(doctor: Doctor, number: int, code: int) -> None:
    pid_file = doctor.home / "pid"
    (doctor.home / "stages.py").write_text(
        "import os, time\ndef wait():\n"
        f"    open({str(pid_file)!r} + '.part', 'w').write(str(os.getpid()))\n"
        f"    os.rename({str(pid_file)!r} + '.part', {str(pid_file)!r})\n    time.sleep(600)\n"
    )
    process = doctor.start("--run", "stages:wait", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not pid_file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(30) == code
    assert not Path(f"/proc/{pid_file.read_text()}").exists()


def test_a_link_with_the_name_of_another_version_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    link = tmp_path / "python3.8"
    link.symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(link))
    text = "\n".join(facts_lines({**gather_facts(), "distributions": {}}))
    assert f"{link} -> {os.path.realpath(link)}" in text
