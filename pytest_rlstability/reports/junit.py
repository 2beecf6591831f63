"""The JUnit file of runs from their event logs: a pytest that was killed has not written its own."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring

from pytest_rlstability.child.verdict_report import junit_properties
from pytest_rlstability.model.events import Finished
from pytest_rlstability.reports.files import replacing
from pytest_rlstability.reports.log_reader import RunRecord, TestRecord
from pytest_rlstability.reports.page_data import PASSED, SKIPPED, UNDECIDED, UNFINISHED, XFAILED, headline, status_of
from pytest_rlstability.reports.page_text import readable

_REASON = re.compile("(Skipped|expected to fail): ")
"""What stands before a reason in the log."""
_NOT_IN_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")


def write_junit(path: Path, runs: Sequence[RunRecord]) -> None:
    """Write the file of *runs*, with the elements and attributes that pytest's own has. Raises ``OSError``."""
    root = Element("testsuites", name="pytest tests")
    for run in runs:
        _add_suite(root, run)
    with replacing(path) as file:
        file.write('<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode"))


def _add_suite(root: Element, run: RunRecord) -> None:
    suite = SubElement(root, "testsuite", name="pytest")
    counts = Counter(_add_case(suite, test, run) for test in run.tests.values())
    seconds = run.last_time - run.first_time
    began = datetime.fromtimestamp(run.first_time, UTC).isoformat()
    suite.attrib.update(
        errors=str(counts["error"]), failures=str(counts["failure"]), skipped=str(counts["skipped"]),
        tests=str(counts.total()), time=f"{seconds:.3f}", timestamp=began, hostname=_text(run.host),
    )  # fmt: skip


def _add_case(suite: Element, test: TestRecord, run: RunRecord) -> str:
    """Add a test to *suite*. Returns the name of the element that says how it ended; empty if it passed."""
    end, status = test.last.end, status_of(test.last)
    place, bracket, parameters = test.nodeid.partition("[")
    file, *names = place.split("::")
    *classes, name = [file.replace("/", ".").removesuffix(".py"), *names]
    attributes = {"classname": ".".join(classes), "name": f"{name}{bracket}{parameters}"}
    case = SubElement(suite, "testcase", {key: _text(value) for key, value in attributes.items()})
    case.set("time", f"{end.duration:.3f}")
    known = {"seed": end.seed, "backend": end.backend, "soak": end.soak and end.soak.to_dict()}
    if end.verdict:
        known["verdict"] = end.verdict.to_dict()
    if properties := junit_properties({key: value for key, value in known.items() if value not in (None, "")}):
        listed = SubElement(case, "properties")
        for key, value in properties:
            SubElement(listed, "property", name=_text(key), value=_text(value))
    if status in (PASSED, UNDECIDED):
        return ""
    if status in (SKIPPED, XFAILED):
        kind = "pytest.xfail" if status is XFAILED else "pytest.skip"
        SubElement(case, "skipped", type=kind, message=_text(_REASON.sub("", end.reason)))
        return "skipped"
    tag = "error" if status is UNFINISHED else "failure"
    message = end.verdict.title if end.verdict else headline(test.last, run)
    SubElement(case, tag, message=_text(message)).text = _text(_report(end) or message)
    return tag


def _report(end: Finished) -> str:
    return end.report or (end.verdict.text() if end.verdict else "")


def _text(value: object) -> str:
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", readable(value, sys.maxsize))
