"""docs/doctor.md names every group and every known-bad combination."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_rlstability.doctor import advice
from pytest_rlstability.doctor.plugins import shipped_steps
from pytest_rlstability.doctor.step_list import groups_of

TEXT = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")


def test_groups() -> None:
    assert all(f"`{group}`" in TEXT for group in groups_of(shipped_steps()))


def test_advice() -> None:
    table = TEXT.partition("| name | when |")[2].partition("\n\n")[0]
    names = [name for row in table.splitlines() if row for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert sorted(names) == sorted(name for name, *_ in advice.KNOWN)
