"""docs/doctor.md names every group and every known-bad combination."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_rlstability.doctor import advice
from pytest_rlstability.doctor.probes import GROUPS

TEXT = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")


def test_groups() -> None:
    assert all(f"`{group}`" in TEXT for group in GROUPS)


def test_advice() -> None:
    source = Path(advice.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r'Advice\(\s*"([\w-]+)"', source))
    table = TEXT.partition("| name | when |")[2].partition("\n\n")[0]
    assert {
        name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[1] if row else "")
    } == names
    assert len(names) == len(advice.KNOWN)
