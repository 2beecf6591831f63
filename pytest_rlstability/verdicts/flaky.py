"""FLAKY: many runs of one test. Whether it passes as often as promised, and in which ways it fails."""

from __future__ import annotations

import ntpath  # splits paths of every system
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pytest_rlstability.config.markers import Flaky
from pytest_rlstability.model.messages import Json
from pytest_rlstability.model.run import Run
from pytest_rlstability.model.stack_dump import parse_dump
from pytest_rlstability.model.verdict import Fact, Location, Section, Verdict, Word
from pytest_rlstability.verdicts.crash import PHASE_WORDS
from pytest_rlstability.verdicts.sequential import Decision, SequentialTest, interval

TrialOutcome = Literal["passed", "failed", "aside"]

_SHOWN_EXAMPLES = 4
_SHOWN_SEEDS = 5


@dataclass(frozen=True)
class Trial:
    """One run of the test. ``aside``: it skipped or called ``pytest.xfail()``, and does not count."""

    number: int
    run: Run
    outcome: TrialOutcome
    verdict: Verdict | None = None
    label: str = ""
    signature: str = ""
    location: Location | None = None
    expected: bool = False
    """Whether it failed in the way that the test's ``xfail`` marker names."""


@dataclass
class Trials:
    """The runs of a test so far, and whether they keep its promise.

    ``trials.add(run, judge(run))`` until ``trials.answer`` is no longer ``open``.
    """

    promise: Flaky
    expected_to_fail: bool = False
    """Whether the test is marked ``xfail``: its failed runs are then reported as expected failures."""
    trials: list[Trial] = field(default_factory=list)
    runs: int = 0
    passes: int = 0

    def add(self, run: Run, verdict: Verdict | None) -> Trial:
        trial = read_trial(len(self.trials) + 1, run, verdict, expected_to_fail=self.expected_to_fail)
        self.trials.append(trial)
        if trial.outcome != "aside":
            self.runs += 1
            self.passes += trial.outcome == "passed"
        return trial

    @cached_property
    def test(self) -> SequentialTest:
        return SequentialTest(self.promise.pass_rate, self.promise.confidence, self.promise.max_runs)

    @property
    def stands_aside(self) -> bool:
        """Whether the first run does not count: the test is then reported as that run."""
        return bool(self.trials) and self.trials[0].outcome == "aside"

    @property
    def answer(self) -> Decision:
        answer = self.test.decide(self.runs, self.passes) if self.runs else "open"
        return "undecided" if answer == "open" and len(self.trials) >= self.promise.max_runs else answer

    @property
    def wanted(self) -> int:
        """How many runs to have started by now: as many as would keep the promise if all of them passed."""
        more = 1
        while self.test.decide(self.runs + more, self.passes + more) == "open":
            more += 1
        return min(len(self.trials) + more, self.promise.max_runs)

    @property
    def interval(self) -> tuple[float, float]:
        return interval(self.runs, self.passes, self.promise.confidence)

    def groups(self) -> list[list[Trial]]:
        """The failed runs by signature: the most frequent first, then the one seen first."""
        groups: dict[str, list[Trial]] = {}
        for trial in self.trials:
            if trial.outcome == "failed":
                groups.setdefault(trial.signature, []).append(trial)
        return sorted(groups.values(), key=lambda group: -len(group))

    @property
    def failed_as_expected(self) -> bool:
        """Whether every failed run failed in the way that the ``xfail`` marker names."""
        return all(trial.expected for trial in self.trials if trial.outcome == "failed")

    def facts(self) -> dict[str, Fact]:
        """The counts for JUnit and the event log, whatever the answer is."""
        low, high = self.interval
        return {
            "runs": self.runs,
            "passes": self.passes,
            "pass_rate": round(self.passes / self.runs, 4),
            "interval_low": round(low, 4),
            "interval_high": round(high, 4),
            "limit": self.promise.pass_rate,
        }

    def kept_text(self) -> str:
        """``20 of 20 runs passed, promised 0.95``. Few runs keep a promise, and leave a wide interval."""
        return f"{self.passes} of {self.runs} runs passed, promised {self.promise.pass_rate:g}"

    def count_text(self) -> str:
        """``17 of 20 runs passed (0.66 to 0.96)``"""
        low, high = self.interval
        return f"{self.passes} of {self.runs} runs passed ({low:.2g} to {high:.2g})"


def read_trial(number: int, run: Run, verdict: Verdict | None, *, expected_to_fail: bool = False) -> Trial:
    """The trial that *run* makes. *verdict* is what was judged of it from outside, if anything."""
    if verdict is not None:
        return _judged(number, run, verdict)
    for report in run.seen.reports:
        own = report.get("$report_type", "TestReport") == "TestReport"
        if own and report["outcome"] == "skipped" and not (expected_to_fail and _failed_as_expected(report)):
            return Trial(number, run, "aside")
    for report in run.seen.reports:
        if (report["outcome"] == "failed" and not _passed_unexpectedly(report)) or _failed_as_expected(report):
            raised = report.get("rl_stability", {}).get("verdict")
            if raised is not None:
                return _judged(number, run, Verdict.from_dict(raised))
            place = _last_place(report["longrepr"])
            label = _raised_label(report, place)
            return Trial(number, run, "failed", None, label, label, place, expected=_failed_as_expected(report))
    return Trial(number, run, "passed")


def _judged(number: int, run: Run, verdict: Verdict) -> Trial:
    label = _label(run, verdict)
    signature = str(verdict.facts.get("signature") or label)
    return Trial(number, run, "failed", verdict, label, signature, verdict.location)


def flaky_verdict(trials: Trials, example: Callable[[Trial], str], command: Callable[[int], str]) -> Verdict:
    """How often it failed, in which ways, and one full example of each.

    *example* gives the whole text of a failed run, *command* what to type to run one seed alone.
    """
    groups, promise, (low, high) = trials.groups(), trials.promise, trials.interval
    rate = (
        f"pass rate {trials.passes / trials.runs:.2g}, between {low:.2g} and {high:.2g} "
        f"(each bound at {promise.confidence:g} confidence); promised: at least {promise.pass_rate:g}"
    )
    counted = "; ".join(count_line(group) for group in groups[:2])
    more = f"; {len(groups) - 2} more kinds" if len(groups) > 2 else ""
    return Verdict(
        Word.FLAKY,
        f"{trials.passes} of {trials.runs} runs passed, promised {promise.pass_rate:g}: {counted}{more}",
        sections=(
            ("", rate),
            ("Failures", "\n".join(_group_line(group) for group in groups)),
            ("Runs", "".join({"passed": ".", "failed": "F", "aside": "s"}[trial.outcome] for trial in trials.trials)),
            *_examples(groups, example, command),
        ),
        facts={**trials.facts(), "signature": groups[0][0].signature},
        location=groups[0][0].location,
    )


def count_line(group: list[Trial]) -> str:
    """``2 x SIGSEGV in tick``."""
    return f"{len(group)} \N{MULTIPLICATION SIGN} {group[0].label}"


def _group_line(group: list[Trial]) -> str:
    seeds = ", ".join(str(trial.run.spec.seed) for trial in group[:_SHOWN_SEEDS])
    more = f" and {len(group) - _SHOWN_SEEDS} more" if len(group) > _SHOWN_SEEDS else ""
    return f"{count_line(group)}  ({'seed' if len(group) == 1 else 'seeds'} {seeds}{more})"


def _examples(
    groups: list[list[Trial]], example: Callable[[Trial], str], command: Callable[[int], str]
) -> list[Section]:
    sections = []
    for first, *_ in groups[:_SHOWN_EXAMPLES]:
        text = f"{example(first).rstrip()}\n\nThis run alone: {command(first.run.spec.seed)}"
        sections.append((f"{first.label}, run {first.number}", text))
    if len(groups) > _SHOWN_EXAMPLES:
        sections.append(("Left out", f"examples of {len(groups) - _SHOWN_EXAMPLES} more kinds of failure"))
    return sections


def _label(run: Run, verdict: Verdict) -> str:
    """``SIGSEGV in tick``, ``STALL deadlock in wait_for``, ``LEAK of fds``: short, and the same from run to run."""
    facts = verdict.facts
    if verdict.word is Word.LEAK:
        return f"{verdict.word} of {facts['signal']}" if "signal" in facts else verdict.word
    cause = facts.get("signal", verdict.word)
    if verdict.word is Word.STALL:
        cause = f"{verdict.word} {facts.get('class', '')}".strip()
    if function := _function(run):
        return f"{cause} in {function}"
    phase = str(facts.get("phase", "call"))
    return f"{cause} {PHASE_WORDS.get(phase, phase)}"


def _function(run: Run) -> str:
    """The function that a dead process was in: that of the crashed thread, else of the main thread."""
    dump = parse_dump(run.ending.dump, run.ending.thread_names)
    thread = dump.crashed or next((thread for thread in dump.threads if thread.name == "MainThread"), None)
    return thread.own_frames[0].function if thread is not None and thread.own_frames else ""


def _failed_as_expected(report: Json) -> bool:
    expected = report.get("wasxfail")
    return report["outcome"] == "skipped" and expected is not None and not expected.startswith("[NOTRUN]")


def _passed_unexpectedly(report: Json) -> bool:
    return isinstance(report["longrepr"], str) and report["longrepr"].startswith("[XPASS(strict)]")


def _raised_label(report: Json, place: Location | None) -> str:
    """``AssertionError at test_env.py:12``."""
    name = report.get("rl_stability", {}).get("raised", "failure")
    label = f"{name} at {ntpath.basename(place.file)}:{place.line}" if place else name
    return label if report["when"] == "call" else f"{label} {PHASE_WORDS[report['when']]}"


def _last_place(longrepr: Any) -> Location | None:
    """Where the exception was raised: the last entry of the traceback, if its style has one."""
    if not isinstance(longrepr, dict):
        return None
    entries = longrepr["reprtraceback"]["reprentries"]
    place = (entries[-1]["data"].get("reprfileloc") if entries else None) or longrepr.get("reprcrash")
    return Location(place["path"], place["lineno"]) if place else None
