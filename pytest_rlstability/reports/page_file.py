"""The page of a report: template, style, scripts, charts and data in one file that needs no network."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from pytest_rlstability import __version__
from pytest_rlstability.model.messages import Json
from pytest_rlstability.model.units import counted
from pytest_rlstability.reports.files import replacing
from pytest_rlstability.reports.log_reader import RunRecord
from pytest_rlstability.reports.page_data import STATUSES, UNDECIDED, page_data

INSTALL_LINE = "pip install 'pytest-rlstability[report]'"
_SLOT = re.compile(r"\{\{([\w.]+)\}\}")


def has_charts() -> bool:
    """Whether the library that draws the charts is installed."""
    return importlib.util.find_spec("plotly") is not None


def write_page(path: Path, runs: Sequence[RunRecord]) -> None:
    """Write the page of *runs*. Raises ``OSError``."""
    from plotly.offline import get_plotlyjs

    folder, data = files("pytest_rlstability.reports") / "page", page_data(runs)
    known = {
        "title": html.escape(title(data)),
        "version": html.escape(__version__),
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "data": script_json(data),
        "plotly": script_text(get_plotlyjs()),
    }

    def fill(slot: re.Match[str]) -> str:
        """A known text, or a file of the page."""
        return known[slot[1]] if slot[1] in known else (folder / slot[1]).read_text(encoding="utf-8")

    with replacing(path) as file:
        file.write(_SLOT.sub(fill, (folder / "page.html").read_text(encoding="utf-8")))


def title(data: Json) -> str:
    """The run in one line: ``1 crash and 2 leaks in 214 tests``."""
    counts = Counter(test["status"] for test in data["tests"])
    bad = [status for status in STATUSES if status.bad and counts[status.name]]
    found = [counted(counts[status.name], status.one, status.many) for status in bad]
    tests = counted(len(data["tests"]), "test")
    if not found:
        undecided = f", {counts[UNDECIDED.name]:,} undecided" if counts[UNDECIDED.name] else ""
        return f"No trouble in {tests}{undecided}"
    troubles = found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
    return f"{troubles} in {tests}"


def script_json(value: object) -> str:
    """*value* as JSON for a script element, which no text in it can close.

    >>> script_json("</script>")
    '"\\\\u003c/script>"'
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def script_text(code: str) -> str:
    """A library's code, in which ``</script`` can only be part of a string."""
    return re.sub(r"<(?=/script|!--|script)", r"\\x3c", code, flags=re.IGNORECASE)
