"""The generated tables of the docs say what the code says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

pytest.importorskip("prometheus_client")  # for the table of metrics

import generate  # noqa: E402

TEXTS = {name: (generate.DOCS / name).read_text(encoding="utf-8") for name in generate.PAGES}
TEXT = TEXTS["architecture.md"]


@pytest.mark.parametrize("page", generate.PAGES)
def test_the_generated_tables_are_current(page):
    assert generate.generated(page, TEXTS[page]) == TEXTS[page], "run: python docs/generate.py"


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, names in generate.PAGES.items() for name in names])
def test_a_stale_table_is_noticed(page, name):
    stale = TEXTS[page].replace(generate.PAGES[page][name](), "| old |")
    assert stale != TEXTS[page]
    assert generate.generated(page, stale) == TEXTS[page]


def test_every_file_that_the_page_names_exists():
    names = re.findall(r"`((?:tests|session|parent|child|config|model|verdicts)/[\w/]+\.py)`", TEXT)
    assert len(names) > 10
    places = [ROOT / name if name.startswith("tests/") else generate.PACKAGE / name for name in names]
    assert [str(place) for place in places if not place.exists()] == []
