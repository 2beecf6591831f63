"""docs/architecture.md says what the code says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import generate  # noqa: E402

TEXT = generate.PAGE.read_text(encoding="utf-8")


def test_the_generated_tables_are_current():
    assert generate.generated(TEXT) == TEXT, "run: python docs/generate.py"


@pytest.mark.parametrize("name", sorted(generate.TABLES))
def test_a_stale_table_is_noticed(name):
    stale = TEXT.replace(generate.TABLES[name](), "| old |")
    assert stale != TEXT
    assert generate.generated(stale) == TEXT


def test_every_file_that_the_page_names_exists():
    names = re.findall(r"`((?:tests|session|parent|child|config|model|verdicts)/[\w/]+\.py)`", TEXT)
    assert len(names) > 10
    places = [ROOT / name if name.startswith("tests/") else generate.PACKAGE / name for name in names]
    assert [str(place) for place in places if not place.exists()] == []
