"""The page of a report: template, style, scripts, charts and data in one file that needs no network."""

from __future__ import annotations

import contextlib
import html
import importlib.util
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from pytest_rlstability import __version__
from pytest_rlstability.reports.page_data import STATUSES, Json, page_data
from pytest_rlstability.reports.reading import RunRecord

INSTALL_LINE = "pip install 'pytest-rlstability[report]'"
_SLOT = re.compile(r"\{\{([\w.]+)\}\}")
_NAMES = {
    "CRASH": ("crash", "crashes"),
    "STALL": ("stall", "stalls"),
    "LEAK": ("leak", "leaks"),
    "FLAKY": ("flaky test", "flaky tests"),
    "FAILED": ("other failure", "other failures"),
    "UNFINISHED": ("unfinished test", "unfinished tests"),
}


def has_charts() -> bool:
    """Whether the library that draws the charts is installed."""
    return importlib.util.find_spec("plotly") is not None


def write_page(path: Path, runs: Sequence[RunRecord], baseline: Sequence[RunRecord] = ()) -> None:
    """Write the page of *runs* to *path*, compared with *baseline* if there is one; an ``OSError`` leaves what was
    there untouched."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            for part in _parts(page_data(runs, baseline)):
                file.write(part)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def _parts(data: Json) -> Iterator[str]:
    """The page from its first to its last character."""
    from plotly.offline import get_plotlyjs

    folder = files("pytest_rlstability.reports") / "page"
    filled = {
        "title": lambda: html.escape(title(data)),
        "version": lambda: html.escape(__version__),
        "made": lambda: time.strftime("%Y-%m-%d %H:%M"),
        "data": lambda: script_json(data),
        "plotly": lambda: script_text(get_plotlyjs()),
    }
    for number, part in enumerate(_SLOT.split((folder / "page.html").read_text(encoding="utf-8"))):
        if number % 2 == 0:
            yield part
        elif part in filled:
            yield filled[part]()
        else:
            yield (folder / part).read_text(encoding="utf-8")


def title(data: Json) -> str:
    """What there is to say in one line: ``1 crash and 2 leaks in 214 tests``."""
    counts = {status: sum(test["status"] == status for test in data["tests"]) for status in STATUSES}
    found = [f"{counts[status]:,} {names[counts[status] != 1]}" for status, names in _NAMES.items() if counts[status]]
    total = len(data["tests"])
    tests = "1 test" if total == 1 else f"{total:,} tests"
    if not found:
        return f"No trouble in {tests}"
    said = found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
    return f"{said} in {tests}"


def script_json(value: object) -> str:
    """*value* as JSON that no text in it can break out of a script element.

    >>> script_json("</script>")
    '"\\\\u003c/script>"'
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def script_text(code: str) -> str:
    """A library's code, in which ``</script`` can only be part of a string."""
    return re.sub(r"<(?=/script|!--|script)", r"\\x3c", code, flags=re.IGNORECASE)
