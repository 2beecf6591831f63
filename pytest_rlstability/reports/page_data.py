"""What the page of a report shows, as JSON values: pure functions of the runs that were read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from statistics import median
from typing import Any

from pytest_rlstability.reports.course import LAP_TIME, Course
from pytest_rlstability.reports.page_text import readable
from pytest_rlstability.reports.reading import Attempt, RunRecord, TestRecord
from pytest_rlstability.signals.registry import SIGNALS
from pytest_rlstability.soak.state import SoakState
from pytest_rlstability.units import format_duration

Json = dict[str, Any]

STATUSES = ("CRASH", "STALL", "LEAK", "FLAKY", "FAILED", "UNFINISHED", "xfailed", "skipped", "passed")
"""How a test can have ended, worst first."""
_BAD = frozenset(STATUSES[:6])
_ALL_TEXT = 24_000_000
_MOST_TEXT, _LEAST_TEXT = 60_000, 2_000
_ALL_POINTS = 1_200_000
_LEAST_ROWS, _BASELINE_ROWS = 32, 256
_WORTH_TELLING, _CHANGES = math.log(1.1), 12
_MADE_HERE = {
    LAP_TIME: ("lap time", "seconds"),
    "run_seconds": ("run time", "seconds"),
    "run_passed": ("run passed", "count"),
    "peak_memory": ("peak memory", "bytes"),
}


def page_data(runs: Sequence[RunRecord], baseline: Sequence[RunRecord] = ()) -> Json:
    """Everything on the page: runs, tests worst first, and what became of them since *baseline*."""
    tests = [(number, test) for number, run in enumerate(runs) for test in run.tests.values()]
    origins = list(dict.fromkeys((test.host, test.worker) for _, test in tests))
    builder = _Builder(runs, origins, _text_per_test([test for _, test in tests]))
    _thin([test for _, test in tests])
    before = {test.nodeid: test for run in baseline for test in run.tests.values()}
    shown = [builder.test(number, test, before.get(test.nodeid)) for number, test in tests]
    shown.sort(key=lambda test: STATUSES.index(test["status"]))
    names = {name for test in shown for name in [*test.get("course", {}).get("columns", ()), *_still_names(test)]}
    return {
        "statuses": STATUSES,
        "runs": [_run(run) for run in runs],
        "origins": [{"host": host, "worker": worker} for host, worker in origins],
        "signals": {name: _described(name) for name in sorted(names)},
        "tests": shown,
        "baseline": _comparison(shown, baseline, before) if baseline else None,
    }


class _Builder:
    """Makes the page's picture of one test after the other."""

    def __init__(self, runs: Sequence[RunRecord], origins: Sequence[tuple[str, str]], text: int) -> None:
        self._runs = runs
        self._origins = {origin: number for number, origin in enumerate(origins)}
        self._text = text

    def test(self, number: int, test: TestRecord, before: TestRecord | None) -> Json:
        attempt, status = test.last, status_of(test.last)
        shown: Json = {
            "id": readable(test.nodeid, 2_000),
            "run": number,
            "origin": self._origins[test.host, test.worker],
            "status": status,
            "duration": _number(attempt.finished.get("duration")),
            "laps": _number(attempt.finished.get("laps")) or (attempt.course.laps[-1] if attempt.course.laps else 0),
            "peak": _peak(attempt),
        }
        if headline := self._headline(attempt, status, self._runs[number]):
            shown["headline"] = headline
        if detail := self._detail(test):
            shown["detail"] = detail
        if attempt.course.samples:
            shown["course"] = _course(attempt)
        if before is not None:
            shown["before"] = _before(before, attempt)
        return shown

    def _headline(self, attempt: Attempt, status: str, run: RunRecord) -> str:
        finished = attempt.finished
        if verdict := _mapping(finished, "verdict"):
            return readable(verdict.get("headline", ""), 1_000)
        if status == "UNFINISHED":
            after = f" {format_duration(run.last_time - attempt.begun)} after it began" if attempt.begun else ""
            lap = f"; it was last heard of at lap {attempt.course.laps[-1]:.0f}" if attempt.course.laps else ""
            return f"did not finish: the log ends{after}{lap}"
        if status == "FAILED":
            return readable(_reason(str(finished.get("report", ""))), 1_000)
        return readable(finished.get("reason") or "", 1_000)

    def _detail(self, test: TestRecord) -> Json:
        """What is shown when a test is opened; only what there is."""
        attempt, finished = test.last, test.last.finished
        verdict, facts = _mapping(finished, "verdict"), _mapping(_mapping(finished, "verdict"), "facts")
        detail: Json = {
            "facts": {readable(key, 100): readable(value, 500) for key, value in facts.items()},
            "sections": [self._section(pair) for pair in [*_pairs(verdict.get("sections")), *_soak(finished)]],
            "report": "" if verdict else readable(finished.get("report", ""), self._text),
            "output": [self._section(pair) for pair in _mapping(finished, "output").items()],
            "stages": [readable(stage, 500) for stage in finished.get("stages") or ()],
            "reproduce": readable(finished.get("reproduce") or "", 4_000),
            "leftovers": [readable(left, 500) for left in finished.get("leftovers") or ()],
            "earlier": [_earlier(earlier) for earlier in test.attempts[:-1]],
        }
        if detail["sections"] or detail["report"] or status_of(attempt) in _BAD:
            detail["backend"] = finished.get("backend") or attempt.started.get("backend")
            detail["seed"] = finished.get("seed", attempt.started.get("seed"))
            detail["pid"] = attempt.started.get("pid")
            detail["phases"] = {str(name): _number(value) for name, value in _mapping(finished, "phases").items()}
        return {key: value for key, value in detail.items() if value}

    def _section(self, pair: Sequence[object]) -> list[str]:
        title, text = pair
        return [readable(title, 500), readable(text, self._text)]


def status_of(attempt: Attempt) -> str:
    """How the attempt ended, in one of the words of ``STATUSES``."""
    finished = attempt.finished
    if not finished:
        return "UNFINISHED"
    verdict = _mapping(finished, "verdict")
    if finished.get("outcome") == "failed":
        word = verdict.get("word")
        return str(word) if word in STATUSES else "FAILED"
    if finished.get("outcome") == "skipped":
        return "xfailed" if verdict or finished.get("xfailed") else "skipped"
    return "passed"


def _reason(report: str) -> str:
    """The line of a failure's text that says most in a row of a table: pytest marks it with an E."""
    lines = [line for line in report.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E  ")]
    return marked[0] if marked else lines[-1].strip() if lines else ""


def _soak(finished: Mapping[str, Any]) -> list[Sequence[object]]:
    """What a soak has come to, as a section."""
    try:
        return [("Soak", "\n".join(SoakState.from_dict(finished["soak"]).lines()))] if finished.get("soak") else []
    except (AttributeError, TypeError, ValueError):
        return []  # another version's soak


def _earlier(attempt: Attempt) -> Json:
    finished = attempt.finished
    headline = _mapping(finished, "verdict").get("headline") or _reason(str(finished.get("report", "")))
    return {
        "status": status_of(attempt),
        "headline": readable(headline, 1_000),
        "duration": _number(attempt.finished.get("duration")),
    }


def _run(run: RunRecord) -> Json:
    session, statuses = run.session, Counter(status_of(test.last) for test in run.tests.values())
    return {
        "source": readable(run.source, 500),
        "host": readable(run.host, 200),
        "platform": readable(session.get("platform", ""), 500),
        "versions": readable(session.get("versions", ""), 1_000),
        "seed": session.get("seed"),
        "arguments": [readable(argument, 500) for argument in session.get("arguments") or ()],
        "began": round(run.first_time, 3),
        "ended": round(run.last_time, 3),
        "damaged": run.damaged,
        "headless": not session,
        "tests": len(run.tests),
        "places": sorted({readable(f"{test.host} {test.worker}", 200) for test in run.tests.values()}),
        "statuses": dict(statuses),
    }


# charts


def _course(attempt: Attempt, rows: int | None = None) -> Json:
    """The samples as columns; a signal that never moved is a single number."""
    course = attempt.course
    if rows is not None:
        course.thin(rows)
    columns, still = {}, {}
    for name, values in course.columns.items():
        if name == LAP_TIME and "run_seconds" in course.columns:
            continue
        known = [value for value in values if value == value]
        if known and min(known) == max(known):
            still[name] = _short(known[0])
        elif known:
            columns[name] = [_short(value) for value in values]
    return {
        "samples": course.samples,
        "lap": [_short(lap) for lap in course.laps],
        "seconds": [_short(second) for second in course.seconds],
        "columns": columns,
        "still": still,
        "warmup": _short(attempt.warmup),
        "judged": [_judged(entry, attempt) for entry in _judgements(attempt) if entry["signal"] in columns],
    }


def _judgements(attempt: Attempt) -> list[Json]:
    """What was said of each signal; a verdict says it of one, where no leak check did."""
    if attempt.judged:
        return attempt.judged
    facts = _mapping(_mapping(attempt.finished, "verdict"), "facts")
    if not isinstance(facts.get("signal"), str):
        return []
    slope = facts.get("per_lap")
    limit = "slope_limit" if slope is not None else "most"
    return [{"signal": facts["signal"], "state": "leak", "slope": slope, "per": "lap", limit: facts.get("limit")}]


def _judged(entry: Json, attempt: Attempt) -> Json:
    """One judgement with the line that goes with it: ``start`` is the line's value where measuring began."""
    slope, per = _number(entry.get("slope")) or 0.0, "minute" if entry.get("per") == "minute" else "lap"
    course = attempt.course
    first = next((row for row, lap in enumerate(course.laps) if lap >= attempt.warmup), 0)
    clock = [second / 60 for second in course.seconds] if per == "minute" else course.laps
    values = course.columns[entry["signal"]]
    fitted = [
        values[row] - slope * (clock[row] - clock[first])
        for row in range(first, len(values))
        if values[row] == values[row]
    ]
    return {
        "signal": entry["signal"],
        "state": str(entry.get("state", "")),
        "reason": readable(entry.get("reason") or "", 200),
        "slope": _short(slope),
        "per": per,
        "slope_limit": _number(entry.get("slope_limit")),
        "most": _number(entry.get("most")),
        "row": first,
        "start": _short(median(fitted)) if fitted else None,
        "begin": _short(fitted[0]) if fitted else None,
    }


def _thin(tests: Sequence[TestRecord]) -> None:
    """Keep a page of very many sampled tests small: what passed is drawn more coarsely."""
    lines = sum(len(attempt.course.columns) for test in tests for attempt in test.attempts)
    rows = max(_LEAST_ROWS, _ALL_POINTS // max(lines, 1))
    for test in tests:
        if status_of(test.last) not in _BAD:
            test.last.course.thin(rows)


def _still_names(test: Json) -> Sequence[str]:
    return list(test.get("course", {}).get("still", ()))


def _described(name: str) -> Json:
    """A signal's title and unit; a user's own counter is called what its author called it."""
    if name in SIGNALS:
        module, _, class_name = SIGNALS[name].partition(":")
        signal = getattr(import_module(f"pytest_rlstability.signals.{module}"), class_name)
        return {"title": signal.title, "unit": signal.unit}
    title, unit = _MADE_HERE.get(name, (readable(name, 200), "count"))
    return {"title": title, "unit": unit}


# the baseline


def _before(test: TestRecord, now: Attempt) -> Json:
    """The same test in the baseline."""
    attempt = test.last
    shown: Json = {
        "status": status_of(attempt),
        "duration": _number(attempt.finished.get("duration")),
        "peak": _peak(attempt),
        "lap_time": [_mean_lap_time(attempt.course), _mean_lap_time(now.course)],
    }
    if attempt.course.samples:
        shown["course"] = _course(attempt, _BASELINE_ROWS)
    return shown


def _comparison(shown: Sequence[Json], baseline: Sequence[RunRecord], before: Mapping[str, TestRecord]) -> Json:
    now = {test["id"] for test in shown}
    then = {readable(nodeid, 2_000) for nodeid in before}
    changed = [test for test in shown if "before" in test and _went(test)]
    return {
        "runs": [_run(run) for run in baseline],
        "worse": [test["id"] for test in changed if _went(test) == "worse"],
        "better": [test["id"] for test in changed if _went(test) == "better"],
        "new": sorted(now - then),
        "vanished": sorted(then - now),
        "changes": _largest_changes(shown),
    }


def _largest_changes(shown: Sequence[Json]) -> list[Json]:
    """Where peak memory, time per lap or duration moved most against the baseline, for better or worse."""
    changes: list[Json] = []
    for test in (test for test in shown if "before" in test):
        before = test["before"]
        lap_then, lap_now = before["lap_time"]
        for what, unit, now, then in (
            ("peak memory", "bytes", test["peak"], before["peak"]),
            ("time per lap", "seconds", lap_now, lap_then),
            ("duration", "seconds", _long(test["duration"]), _long(before["duration"])),
        ):
            if now and then and abs(math.log(now / then)) >= _WORTH_TELLING:
                changes.append({"id": test["id"], "what": what, "unit": unit, "now": now, "then": then})
    changes.sort(key=lambda change: -abs(math.log(change["now"] / change["then"])))
    return changes[:_CHANGES]


def _went(test: Json) -> str:
    """Whether the test fails now and did not, or did and no longer does."""
    now, then = test["status"] in _BAD, test["before"]["status"] in _BAD
    return "" if now == then else "worse" if now else "better"


def _long(seconds: float | None) -> float | None:
    """A duration that says something of the test, not of how busy the machine was."""
    return seconds if seconds and seconds >= 1.0 else None


def _mean_lap_time(course: Course) -> float | None:
    if len(course.laps) < 2 or course.laps[-1] <= course.laps[0]:
        return None
    return (course.seconds[-1] - course.seconds[0]) / (course.laps[-1] - course.laps[0])


# numbers and texts of any log


def _text_per_test(tests: Sequence[TestRecord]) -> int:
    """How long a text may be, so that a run in which everything fails is still a page one can open."""
    failed = sum(status_of(test.last) in _BAD for test in tests)
    return min(_MOST_TEXT, max(_LEAST_TEXT, _ALL_TEXT // max(4 * failed, 1)))


def _peak(attempt: Attempt) -> float | None:
    told = _number(attempt.finished.get("peak_memory"))
    if told:
        return told
    resident = [value for value in attempt.course.columns.get("rss", ()) if value == value]
    return max(resident) if resident else None


def _number(value: object) -> float | None:
    if isinstance(value, (int, float)) and math.isfinite(value):
        return _short(value)
    return None


def _short(value: float) -> float | None:
    """*value* in as few characters as a chart needs."""
    if not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.7g}")


def _mapping(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = holder.get(key)
    return found if isinstance(found, dict) else {}


def _pairs(value: object) -> list[list[object]]:
    return [pair for pair in value if isinstance(pair, list) and len(pair) == 2] if isinstance(value, list) else []
