"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "units",
        "isolation.board",
        "evidence.stacks",
        "evidence.native",
        "verdicts.crash",
        "reports.page_text",
        "reports.page_file",
        "verdicts.sequential",
        "reports.history",
        "reports.baseline",
        "reports.github",
        "baselines.compare",
        "signals.registry",
        "isolation.repeater",
        "steps.runner",
        "doctor.advice",
        "doctor.facts",
        "doctor.report",
        "doctor.checks.libraries",
    ],
)
def test_docstring_examples(name):
    result = doctest.testmod(import_module(f"pytest_rlstability.{name}"))
    assert result.failed == 0
    assert result.attempted > 0
