"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import pytest_rlstability

PACKAGE = Path(pytest_rlstability.__file__).parent
WITH_EXAMPLES = [
    path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text("utf-8")
]
NOT_RUN = ("kits/proxy/handle.py", "kits/vec_env/guard.py", "integrations/")
"""Examples that need something of the reader's own: a server, an environment, a model."""


@pytest.mark.parametrize("path", sorted(path for path in WITH_EXAMPLES if not path.startswith(NOT_RUN)))
def test_docstring_examples(path):
    result = doctest.testmod(import_module(f"pytest_rlstability.{path.removesuffix('.py').replace('/', '.')}"))
    assert result.failed == 0
    assert result.attempted > 0
