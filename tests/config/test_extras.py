"""The extras can be installed on every Python that is supported, and a fixture says which library has no wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pytest_rlstability.config.extras import LAST_WHEELS

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSIONS = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one]
EXTRAS = [Requirement(text) for extra in PROJECT["optional-dependencies"].values() for text in extra]


def test_the_supported_pythons() -> None:
    assert VERSIONS == ["3.11", "3.12", "3.13", "3.14", "3.15"]
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"


@pytest.mark.parametrize("module", LAST_WHEELS)
def test_a_library_is_left_out_after_its_last_wheel(module: str) -> None:
    (needed,) = (one for one in EXTRAS if one.name == module.lower())
    assert needed.marker is not None
    taken = [version for version in VERSIONS if needed.marker.evaluate({"python_version": version})]
    assert taken == [version for version in VERSIONS if int(version[2:]) <= LAST_WHEELS[module][1]]


def test_a_fixture_says_that_there_is_no_wheel(run_pytest) -> None:
    run_pytest.write(
        "conftest.py",
        """
        import importlib.util
        from pytest_rlstability.kits.box2d import plugin
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "Box2D" else find(name, *rest)
        plugin.not_installed = lambda *names, said=plugin.not_installed: said(*names, (3, 15))
        """,
    )
    outcome = run_pytest("def test_it(box2d_world): pass\n", "-rs")
    assert outcome.tests == {"test_it": "skipped"}
    assert "Box2D is not installed: there is no wheel of it for Python 3.15, the last one is for 3.13" in outcome.text
