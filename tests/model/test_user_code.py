"""Whose code a file is, by its path."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from pathlib import Path

import _pytest.python
import pluggy
import pytest

import pytest_rlstability
from pytest_rlstability.child.locks import tracked
from pytest_rlstability.model.stack_dump import Frame
from pytest_rlstability.model.user_code import Origin, here, origin, package_path, users_frame, users_frames

USERS = [
    "/game/env.py",
    "/home/me/lib/env.py",
    "/home/me/lib/python/env.py",
    "/home/me/lib64/env.py",
    "/home/me/python3.11/env.py",
    "/home/me/site-packages-demo/env.py",
    "/home/me/threading.py",
    "/home/me/pytest/test_env.py",
    "/home/me/pluggy/test_env.py",
    "/home/me/pytest_rlstability/test_env.py",
    "/home/me/pytest-rlstability/tests/test_env.py",
    "/home/me/editable/src/mylib/env.py",
    "/usr/src/app/env.py",
    "/usr/lib/game/env.py",
    "env.py",
    r"C:\work\lib\env.py",
    r"C:\Lib\env.py",
    r"C:\Users\me\python-projects\game\lib\env.py",
    r"C:\Users\me\threading.py",
    "D:/game/env.py",
    r"\\server\share\env.py",
]

OTHERS = {
    Origin.LIBRARY: [
        "/venv/lib/python3.12/site-packages/torch/__init__.py",
        "/home/me/.local/lib/python3.11/site-packages/gymnasium/core.py",
        "/usr/lib/python3/dist-packages/numpy/__init__.py",
        "/venv/lib64/python3.13t/site-packages/six.py",
        r"C:\venv\Lib\site-packages\torch\__init__.py",
        r"C:\Python312\lib\SITE-PACKAGES\torch\__init__.py",
    ],
    Origin.STANDARD_LIBRARY: [
        os.__file__,
        threading.__file__,
        os.path.join(sysconfig.get_path("stdlib"), "concurrent", "futures", "thread.py"),
        "/usr/lib/python3.9/threading.py",
        "/usr/lib64/python3.12/queue.py",
        "/opt/pypy/lib/pypy3.10/queue.py",
        "/opt/python/lib/python3.13t/queue.py",
        "<frozen runpy>",
        "<frozen importlib._bootstrap>",
        r"C:\Python312\Lib\threading.py",
        r"C:\Program Files\Python39-32\Lib\threading.py",
        r"C:\Users\me\AppData\Local\Programs\Python\Python311\Lib\queue.py",
        r"C:\hostedtoolcache\windows\Python\3.11.9\x64\Lib\threading.py",
        r"C:\Users\me\miniconda3\envs\rl\Lib\threading.py",
        r"C:\embedded\python312.zip\threading.py",
    ],
    Origin.PYTEST: [
        _pytest.python.__file__,
        pluggy.__file__,
        "/venv/lib/python3.12/site-packages/_pytest/python.py",
        "/venv/lib/python3.12/site-packages/xdist/remote.py",
        "/venv/lib/python3.12/site-packages/pytest_timeout.py",
        "/venv/bin/pytest",
        r"C:\venv\Lib\site-packages\pluggy\_callers.py",
        r"C:\venv\Scripts\pytest.exe\__main__.py",
    ],
    Origin.OURS: [
        pytest_rlstability.__file__,
        tracked.__file__,
        "/venv/lib/python3.12/site-packages/pytest_rlstability/plugin.py",
        r"C:\venv\Lib\site-packages\pytest_rlstability\child\runner.py",
    ],
    Origin.GENERATED: ["<string>", "<stdin>", "<attrs generated init env.Env>"],
}


@pytest.mark.parametrize("path", USERS)
def test_the_users(path: str) -> None:
    assert origin(path) is Origin.USER
    assert package_path(path) == ""


@pytest.mark.parametrize(("whose", "path"), [(whose, path) for whose, paths in OTHERS.items() for path in paths])
def test_not_the_users(whose: Origin, path: str) -> None:
    assert origin(path) is whose


def test_this_file_is_the_users_in_a_checkout() -> None:
    assert origin(__file__) is Origin.USER


def test_a_project_beside_and_around_a_virtual_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    assert origin(str(tmp_path / "environment" / "train.py")) is Origin.USER
    assert origin(str(tmp_path / "env" / "src" / "train.py")) is Origin.USER
    assert origin(str(tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "train.py")) is Origin.LIBRARY


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_link_in_site_packages_is_an_editable_install(tmp_path: Path) -> None:
    packages, project = tmp_path / "site-packages", tmp_path / "project"
    (project / "mine").mkdir(parents=True)
    (project / "mine" / "env.py").touch()
    packages.mkdir()
    (packages / "mine").symlink_to(project / "mine")
    (packages / "theirs").mkdir()
    (packages / "theirs" / "env.py").symlink_to(project / "mine" / "env.py")  # as uv may install a library
    assert origin(str(packages / "mine" / "env.py")) is Origin.USER
    assert origin(str(packages / "theirs" / "env.py")) is Origin.LIBRARY


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_links_to_the_standard_library_are_followed(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(sysconfig.get_path("stdlib"))
    assert origin(str(tmp_path / "python" / "queue.py")) is Origin.STANDARD_LIBRARY


def test_where_in_this_package() -> None:
    assert package_path(tracked.__file__) == "child/locks/tracked.py"
    assert package_path(r"C:\venv\Lib\site-packages\pytest_rlstability\child\runner.py") == "child/runner.py"


@pytest.mark.parametrize("part", ["child/runner.py", "parent/loop.py", "session/engine.py", "steps/worker.py"])
def test_a_frame_of_what_runs_tests(part: str) -> None:
    package = os.path.dirname(pytest_rlstability.__file__)
    assert Frame(os.path.join(package, *part.split("/")), 1, "f").is_machinery
    assert not Frame(os.path.join(package, "kits", "pyboy", "client.py"), 1, "f").is_machinery
    assert Path(package, part).exists(), "the list in stack_dump names a part that was moved"


def test_the_standard_library_is_passed_through() -> None:
    found: list[str] = []

    def work() -> None:
        found.extend(frame.f_code.co_name for frame in users_frames(sys._getframe(), depth=9))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["work"]


def test_lines_up_to_where_pytest_called_in() -> None:
    assert [function for _, _, function in here().lines] == ["test_lines_up_to_where_pytest_called_in"]
    frame = users_frame(sys._getframe(), bindings=(os.path.basename(__file__),))
    assert frame is not None
    assert origin(frame.f_code.co_filename) is Origin.PYTEST
