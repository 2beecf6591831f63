"""The data of the page, as JSON values: pure functions of the runs that were read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from pytest_rlstability.leaks.signals.registry import SignalFacts, signal_facts
from pytest_rlstability.model.events import Finished, Judged, Outcome, Session, Started
from pytest_rlstability.model.messages import Json
from pytest_rlstability.model.paths import without_root
from pytest_rlstability.model.series import LAP_TIME
from pytest_rlstability.model.units import format_duration
from pytest_rlstability.model.verdict import PLAIN_FAILURE, Section, Word
from pytest_rlstability.reports.log_reader import Attempt, RunRecord, TestRecord
from pytest_rlstability.reports.page_text import error_line, readable
from pytest_rlstability.verdicts.leak import LeakState

_SHOWN_STATES = (LeakState.LEAK, LeakState.UNDECIDED)
_ALL_TEXT = 24_000_000
_MOST_TEXT, _LEAST_TEXT = 60_000, 2_000
_ALL_POINTS = 1_200_000
_LEAST_ROWS = 32
_MADE_HERE = {
    LAP_TIME: ("lap time", "seconds"),
    "run_seconds": ("run time", "seconds"),
    "run_passed": ("run passed", "count"),
    "peak_memory": ("peak memory", "bytes"),
}
_CAUSES_FIRST = ("", "Diagnosis", "who holds it", "Wait-for cycle")
"""Sections of a verdict that say why, in this order; the others follow in theirs."""
_EVIDENCE = ("signals over", "objects that stayed", "to allow it", "Threads", "Native", "Memory", "Process", "Left in")
"""How the titles of sections begin that are shown folded, below the charts."""
_FLAT = 0.02
_STEADY = 0.25
"""A signal is flat whose level changes by no more than this share of it after the warm-up; lap times scatter more."""


@dataclass(frozen=True, eq=False)
class Status:
    """One way in which a test can end. *one* and *many* are its nouns, *label* is what a row of the list shows, and
    *tone* the name of its colour in ``page.css``. The name stands for an empty label or tone."""

    name: str
    one: str
    many: str
    bad: bool = False
    label: str = ""
    tone: str = ""


FAILED = Status(PLAIN_FAILURE, "other failure", "other failures", bad=True)
UNFINISHED = Status("UNFINISHED", "unfinished test", "unfinished tests", bad=True, label="NO END")
UNDECIDED = Status("undecided", "undecided", "undecided", label="UNDECIDED")
XFAILED = Status("xfailed", "failed as expected", "failed as expected", tone="skipped")
SKIPPED = Status("skipped", "skipped", "skipped")
PASSED = Status("passed", "passed", "passed")
_VERDICTS = {word: Status(word.value, word.one, word.many, bad=True) for word in Word}
STATUSES = (*_VERDICTS.values(), FAILED, UNFINISHED, UNDECIDED, XFAILED, SKIPPED, PASSED)
"""Worst first."""


def status_of(attempt: Attempt) -> Status:
    end = attempt.end
    match end.outcome:
        case Outcome.FAILED:
            return _VERDICTS[end.verdict.word] if end.verdict else FAILED
        case Outcome.SKIPPED:
            return XFAILED if end.verdict or end.xfailed else SKIPPED
        case Outcome.PASSED:
            return UNDECIDED if end.undecided else PASSED
        case Outcome.INTERRUPTED:
            return UNFINISHED


def page_data(runs: Sequence[RunRecord]) -> Json:
    """Everything on the page: the runs, and their tests, worst first."""
    tests = [(number, test) for number, run in enumerate(runs) for test in run.tests.values()]
    tests.sort(key=lambda pair: STATUSES.index(status_of(pair[1].last)))
    origins = list(dict.fromkeys((test.host, test.worker) for _, test in tests))
    ambiguous = Counter(test.nodeid for _, test in tests)
    most_text = _text_per_test([test for _, test in tests])
    _thin([test for _, test in tests])
    shown = [
        {
            **_test(test, runs[number], most_text),
            "run": number,
            "origin": origins.index((test.host, test.worker)),
            # The address of the test in this page.
            **({"at": f"run {number + 1} {test.worker}"} if ambiguous[test.nodeid] > 1 else {}),
        }
        for number, test in tests
    ]
    courses = [test["course"] for test in shown if "course" in test]
    names = {name for course in courses for name in (*course["columns"], *course["still"])}
    described = {name: facts for run in runs if run.session for name, facts in run.session.signals.items()}
    signals = signal_facts(described)
    return {
        "statuses": [
            {**asdict(status), "label": status.label or status.name, "tone": status.tone or status.name.lower()}
            for status in STATUSES
        ],
        "runs": [_run(run) for run in runs],
        "origins": [{"host": host, "worker": worker} for host, worker in origins],
        "signals": {name: _described(name, signals.get(name)) for name in sorted(names)},
        "tests": shown,
    }


def _test(test: TestRecord, run: RunRecord, most_text: int) -> Json:
    attempt, status, root = test.last, status_of(test.last), run.session.root if run.session else ""
    optional = {
        "headline": without_root(headline(attempt, run), root),
        "where": without_root(_where(attempt.end), root),
        "detail": _detail(test, most_text, root),
        "soak": _soak(attempt.end),
        "course": _course(attempt) if attempt.course.samples else None,
    }
    return {
        "id": readable(test.nodeid, 2_000),
        "status": status.name,
        "duration": _duration(attempt),
        "laps": attempt.end.laps or (attempt.course.laps[-1] if len(attempt.course) else 0),
        "peak": _peak(attempt),
        **{name: value for name, value in optional.items() if value},
    }


def headline(attempt: Attempt, run: RunRecord) -> str:
    """One line on how it ended; empty if there is nothing to say."""
    if attempt.finished is None:
        started = attempt.started_at
        after = f" {format_duration(run.last_time - started)} after it began" if started else ""
        lap = f"; its last sample is from lap {attempt.course.laps[-1]:.0f}" if len(attempt.course) else ""
        return f"did not finish: the log ends{after}{lap}"
    if attempt.finished.verdict or status_of(attempt).bad:
        return _failure_line(attempt.finished)
    return readable(attempt.finished.undecided or attempt.finished.reason, 1_000)


def _failure_line(end: Finished) -> str:
    return readable(end.verdict.headline if end.verdict else end.message or error_line(end.report), 1_000)


def _where(end: Finished) -> str:
    """The line to look at first."""
    location = end.verdict.location if end.verdict else end.location
    return readable(location, 500) if location else ""


def _detail(test: TestRecord, most_text: int, root: str) -> Json:
    """What a test shows when it is opened, without what is empty."""

    def titled(texts: Iterable[tuple[str, str]]) -> list[list[str]]:
        return [[readable(title, 500), without_root(readable(text, most_text), root)] for title, text in texts]

    end, started = test.last.end, test.last.started or Started()
    verdict = end.verdict
    causes, evidence = _sorted_sections(end)
    output = [one for one in end.output.items() if one[0] != "rl-stability"]  # that is on the page anyway
    detail: Json = {
        "facts": {readable(k, 100): readable(v, 500) for k, v in verdict.facts.items()} if verdict else {},
        "causes": titled(causes),
        "evidence": titled(evidence),
        "report": "" if verdict else readable(end.report, most_text),
        "output": titled(output),
        "stages": [readable(stage, 500) for stage in end.stages],
        "reproduce": readable(end.reproduce or "", 4_000),
        "leftovers": [readable(left, 500) for left in end.leftovers],
        "earlier": [_earlier(earlier) for earlier in test.attempts[:-1]],
    }
    if causes or detail["report"] or status_of(test.last).bad:
        detail["backend"] = end.backend or started.backend
        detail["seed"] = started.seed if end.seed is None else end.seed
        detail["pid"] = started.pid
        detail["phases"] = {name: _short(seconds) for name, seconds in end.phases.items()}
    return {key: value for key, value in detail.items() if value}


def _sorted_sections(end: Finished) -> tuple[list[Section], list[Section]]:
    """The sections of the verdict: those that say why it failed, and those that support it."""
    verdict = end.verdict
    told = "" if verdict is None else f"{verdict.headline} at {verdict.location}"  # the row of the test has both
    sections = [one for one in (verdict.sections if verdict else ()) if one[0] != "soak" and one[1] not in told]
    causes = [section for section in sections if not section[0].startswith(_EVIDENCE)]
    order = {title: rank for rank, title in enumerate(_CAUSES_FIRST)}
    causes.sort(key=lambda section: order.get(section[0], len(order)))
    return causes, [section for section in sections if section[0].startswith(_EVIDENCE)]


def _soak(end: Finished) -> Json | None:
    """A soak in rows of two cells, and how much of its time is done."""
    state = end.soak
    if state is None:
        return None
    whole, *rest = state.lines()
    rows = [["time and laps", whole], *(["laps" if line.startswith("laps") else "memory", line] for line in rest)]
    return {
        "done": _short(min(1.0, state.seconds / state.duration)) if state.duration else 1,
        "rows": [["verdict", state.so_far().replace(" so far", "", 1)], *rows],
    }


def _earlier(attempt: Attempt) -> Json:
    return {"status": status_of(attempt).name, "headline": _failure_line(attempt.end), "duration": _duration(attempt)}


def _run(run: RunRecord) -> Json:
    session = run.session or Session()
    return {
        "source": readable(run.source, 500),
        "host": readable(run.host, 200),
        "platform": readable(session.platform, 500),
        "versions": [readable(one, 200).rpartition(" ")[::2] for one in session.versions.split(", ") if one],
        "seed": session.seed,
        "arguments": [readable(argument, 500) for argument in session.arguments],
        "began": round(run.first_time, 3),
        "ended": round(run.last_time, 3),
        "damaged": run.damaged,
        "headless": run.session is None,
        "tests": len(run.tests),
        "places": sorted({readable(f"{test.host} {test.worker}", 200) for test in run.tests.values()}),
        "unfinished": sum(status_of(test.last) is UNFINISHED for test in run.tests.values()),
    }


# charts


def _course(attempt: Attempt) -> Json:
    """The samples as columns; a signal that never moved is a single number."""
    course = attempt.course
    columns, still = {}, {}
    for name in course.names:
        if name == LAP_TIME and "run_seconds" in course.names:
            continue
        values = course.column(name)
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
        "flat": _flat(attempt, columns),
        "warmup": _short(attempt.warmup),
        "main": attempt.end.verdict.facts.get("signal") if attempt.end.verdict else None,
        "judged": [_judged(entry, attempt) for entry in _judgements(attempt) if entry.signal in columns],
    }


def _flat(attempt: Attempt, columns: Iterable[str]) -> list[str]:
    """The signals that stayed on their level after the warm-up, and that no judgement or limit is about; none if there
    would be nothing left to draw."""
    wanted = {one.signal for one in attempt.judged if one.state in _SHOWN_STATES or one.most is not None}
    wanted |= {one.signal for one in _judgements(attempt) if not attempt.judged}
    clean = {one.signal for one in attempt.judged if one.state == LeakState.CLEAN}
    flat = [name for name in columns if name not in wanted and (name in clean or _is_level(attempt, name))]
    return flat if len(flat) < len(list(columns)) else [name for name in flat if name not in ("rss", LAP_TIME)]


def _is_level(attempt: Attempt, name: str) -> bool:
    laps, values = attempt.course.laps, attempt.course.column(name)
    known = [value for lap, value in zip(laps, values, strict=True) if value == value and lap >= attempt.warmup]
    if len(known) < 3:
        return True
    third = len(known) // 3
    before, after = median(known[:third]), median(known[-third:])
    share = _STEADY if name in (LAP_TIME, "run_seconds") else _FLAT
    return abs(after - before) <= share * max(abs(before), abs(after))


def _judgements(attempt: Attempt) -> Sequence[Judged]:
    """The judgements of a leak check; without one, what the verdict says about its signal."""
    if attempt.judged:
        return attempt.judged
    facts = attempt.end.verdict.facts if attempt.end.verdict else {}
    if not isinstance(signal := facts.get("signal"), str):
        return ()
    slope, limit = _short(facts.get("per_lap")), _short(facts.get("limit"))
    if slope is None:
        return (Judged(signal, LeakState.LEAK, most=limit),)
    return (Judged(signal, LeakState.LEAK, slope=slope, slope_limit=limit),)


def _judged(entry: Judged, attempt: Attempt) -> Json:
    """One judgement with its fitted line: ``start`` is the line's value where measuring began."""
    course = attempt.course
    laps, values = course.laps, course.column(entry.signal)
    first = next((row for row, lap in enumerate(laps) if lap >= attempt.warmup), 0)
    clock = [second / 60 for second in course.seconds] if entry.per == "minute" else laps
    fitted = [
        values[row] - entry.slope * (clock[row] - clock[first])
        for row in range(first, len(values))
        if values[row] == values[row]
    ]
    return {
        "signal": entry.signal,
        "state": entry.state,
        "leaks": entry.state == LeakState.LEAK,
        "reason": readable(entry.reason, 200),
        "slope": _short(entry.slope),
        "per": entry.per,
        "slope_limit": _short(entry.slope_limit),
        "most": _short(entry.most),
        "row": first,
        "start": _short(median(fitted)) if fitted else None,
        "begin": _short(fitted[0]) if fitted else None,
    }


def _thin(tests: Sequence[TestRecord]) -> None:
    """Keep a page of very many sampled tests small: what passed is drawn more coarsely."""
    lines = sum(len(attempt.course.names) for test in tests for attempt in test.attempts)
    rows = max(_LEAST_ROWS, _ALL_POINTS // max(lines, 1))
    for test in tests:
        if not status_of(test.last).bad:
            test.last.course.shrink(rows)


def _described(name: str, signal: SignalFacts | None) -> Json:
    """A signal's title and unit. The title of a user's own counter is its name."""
    if signal is not None:
        return {"title": readable(signal.title, 200), "unit": signal.unit}
    title, unit = _MADE_HERE.get(name, (readable(name, 200), "count"))
    return {"title": title, "unit": unit}


# numbers and texts of any log


def _text_per_test(tests: Sequence[TestRecord]) -> int:
    """How long a text may be, so that the page of a run in which everything fails can still be opened."""
    failed = sum(status_of(test.last).bad for test in tests)
    return min(_MOST_TEXT, max(_LEAST_TEXT, _ALL_TEXT // max(4 * failed, 1)))


def _duration(attempt: Attempt) -> float | None:
    return _short(attempt.finished.duration) if attempt.finished else None


def _peak(attempt: Attempt) -> float | None:
    if attempt.end.peak_memory:
        return _short(attempt.end.peak_memory)
    resident = [value for value in attempt.course.column("rss") if value == value]
    return max(resident) if resident else None


def _short(value: object) -> float | None:
    """*value* in as few characters as a chart needs; None for what is not a finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.7g}")
