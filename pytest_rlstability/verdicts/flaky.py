"""Many runs of one test in, one verdict out: whether it passes as often as promised, and how it fails when it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pytest_rlstability.events import Fact, Section, Verdict
from pytest_rlstability.evidence.stacks import parse_dump
from pytest_rlstability.facts import Record, Run
from pytest_rlstability.markers import Flaky
from pytest_rlstability.verdicts.crash import PHASE_WORDS
from pytest_rlstability.verdicts.sequential import Decision, SequentialTest, interval

TrialOutcome = Literal["passed", "failed", "aside"]

_SHOWN_EXAMPLES = 4
_SHOWN_SEEDS = 5


@dataclass(frozen=True)
class Trial:
    """One run of the test. ``aside``: it skipped or expected to fail, which says nothing about its pass rate."""

    number: int
    run: Run
    outcome: TrialOutcome
    verdict: Verdict | None = None
    label: str = ""
    signature: str = ""
    expected: bool = False
    """Whether it failed in the way that the test's ``xfail`` marker names."""


@dataclass
class Trials:
    """The runs of a test so far, and what they say about its promise.

    ``trials.add(run, judge(run))`` until ``trials.answer`` is no longer ``open``.
    """

    promise: Flaky
    expected_to_fail: bool = False
    """Whether the test is marked ``xfail``: its runs then say "expected" where they would have said "failed"."""
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
        """Whether the test does not want to be run here at all: its first run skipped."""
        return bool(self.trials) and self.trials[0].outcome == "aside"

    @property
    def answer(self) -> Decision:
        answer = self.test.decide(self.runs, self.passes) if self.runs else "open"
        return "undecided" if answer == "open" and len(self.trials) >= self.promise.max_runs else answer

    @property
    def wanted(self) -> int:
        """How many runs are worth starting by now: those that, all passing, would keep the promise."""
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
        """What machines want to know of the runs, whatever came of them."""
        low, high = self.interval
        return {
            "runs": self.runs,
            "passes": self.passes,
            "pass_rate": round(self.passes / self.runs, 4),
            "interval_low": round(low, 4),
            "interval_high": round(high, 4),
            "limit": self.promise.pass_rate,
        }

    def count_text(self) -> str:
        """``17 of 20 runs passed (0.66 to 0.96)``"""
        low, high = self.interval
        return f"{self.passes} of {self.runs} runs passed ({low:.2g} to {high:.2g})"


def read_trial(number: int, run: Run, verdict: Verdict | None, *, expected_to_fail: bool = False) -> Trial:
    """What one run says. *verdict* is what was judged of it from outside, if anything."""
    if verdict is not None:
        return Trial(number, run, "failed", verdict, _label(run, verdict), _signature(run, verdict))
    own = [report for report in run.reports if report.get("$report_type", "TestReport") == "TestReport"]
    for report in own:
        if report["outcome"] == "skipped" and not (expected_to_fail and _failed_as_expected(report)):
            return Trial(number, run, "aside")
    for report in run.reports:
        if (report["outcome"] == "failed" and not _passed_unexpectedly(report)) or _failed_as_expected(report):
            raised = report.get("rl_stability", {}).get("verdict")
            if raised is not None:
                verdict = Verdict.from_dict(raised)
                return Trial(number, run, "failed", verdict, _label(run, verdict), _signature(run, verdict))
            label = _raised_label(report)
            return Trial(number, run, "failed", None, label, label, expected=_failed_as_expected(report))
    return Trial(number, run, "passed")


def flaky_verdict(trials: Trials, example: Callable[[Trial], str], command: Callable[[int], str]) -> Verdict:
    """FLAKY: how often it failed, in which ways, and one example of each in full.

    *example* gives the whole text of a failed run, *command* what to type to run one seed alone.
    """
    groups = trials.groups()
    promise = trials.promise
    counted = "; ".join(count_line(group) for group in groups[:2])
    more = f"; {len(groups) - 2} more kinds" if len(groups) > 2 else ""
    return Verdict(
        "FLAKY",
        f"{trials.passes} of {trials.runs} runs passed, promised {promise.pass_rate:g}: {counted}{more}",
        sections=(
            ("", _rate_text(trials)),
            ("Failures", "\n".join(_group_line(group) for group in groups)),
            ("Runs", "".join(_LETTERS[trial.outcome] for trial in trials.trials)),
            *_examples(groups, example, command),
        ),
        facts={**trials.facts(), "signature": groups[0][0].signature},
    )


_LETTERS: Mapping[TrialOutcome, str] = {"passed": ".", "failed": "F", "aside": "s"}


def count_line(group: list[Trial]) -> str:
    """How often, and what: ``2 x SIGSEGV in tick``."""
    return f"{len(group)} \N{MULTIPLICATION SIGN} {group[0].label}"


def _rate_text(trials: Trials) -> str:
    low, high = trials.interval
    promise = trials.promise
    return (
        f"pass rate {trials.passes / trials.runs:.2g}, between {low:.2g} and {high:.2g} "
        f"(each bound at {promise.confidence:g} confidence); promised: at least {promise.pass_rate:g}"
    )


def _group_line(group: list[Trial]) -> str:
    seeds = ", ".join(str(trial.run.seed) for trial in group[:_SHOWN_SEEDS])
    more = f" and {len(group) - _SHOWN_SEEDS} more" if len(group) > _SHOWN_SEEDS else ""
    return f"{count_line(group)}  ({'seed' if len(group) == 1 else 'seeds'} {seeds}{more})"


def _examples(
    groups: list[list[Trial]], example: Callable[[Trial], str], command: Callable[[int], str]
) -> list[Section]:
    sections = []
    for group in groups[:_SHOWN_EXAMPLES]:
        first = group[0]
        text = f"{example(first).rstrip()}\n\nThis run alone: {command(first.run.seed)}"
        sections.append((f"{first.label}, run {first.number}", text))
    if len(groups) > _SHOWN_EXAMPLES:
        sections.append(("Left out", f"examples of {len(groups) - _SHOWN_EXAMPLES} more kinds of failure"))
    return sections


def _label(run: Run, verdict: Verdict) -> str:
    """``SIGSEGV in tick``, ``STALL deadlock in wait_for``, ``LEAK of fds``: short, and the same from run to run."""
    facts = verdict.facts
    if verdict.word == "LEAK":
        return f"LEAK of {facts['signal']}" if "signal" in facts else "LEAK"
    cause = f"STALL {facts.get('class', '')}".strip() if verdict.word == "STALL" else str(facts.get("signal", "CRASH"))
    function = _function(run)
    phase = str(facts.get("phase", "call"))
    return f"{cause} in {function}" if function else f"{cause} {PHASE_WORDS.get(phase, phase)}"


def _function(run: Run) -> str:
    """The function that a dead process was in: the crashed thread's, else the main one's."""
    dump = parse_dump(run.dump, run.threads)
    main = next((thread for thread in dump.threads if thread.name == "MainThread"), None)
    thread = dump.crashed or main
    return thread.own_frames[0].function if thread is not None and thread.own_frames else ""


def _signature(run: Run, verdict: Verdict) -> str:
    return str(verdict.facts.get("signature") or _label(run, verdict))


def _failed_as_expected(report: Record) -> bool:
    expected = report.get("wasxfail")
    return report["outcome"] == "skipped" and expected is not None and not expected.startswith("[NOTRUN]")


def _passed_unexpectedly(report: Record) -> bool:
    return isinstance(report["longrepr"], str) and report["longrepr"].startswith("[XPASS(strict)]")


def _raised_label(report: Record) -> str:
    """``AssertionError at test_env.py:12``."""
    place = _last_place(report["longrepr"])
    name = report.get("rl_stability", {}).get("raised", "failure")
    label = f"{name} at {_file_name(place)}:{place['lineno']}" if place else name
    return label if report["when"] == "call" else f"{label} {PHASE_WORDS[report['when']]}"


def _last_place(longrepr: Any) -> Mapping[str, Any]:
    """Where the exception was raised: the last entry of the traceback, in the styles that have one."""
    if not isinstance(longrepr, dict):
        return {}
    entries = longrepr["reprtraceback"]["reprentries"]
    place = entries[-1]["data"].get("reprfileloc") if entries else None
    return place or longrepr.get("reprcrash") or {}


def _file_name(place: Mapping[str, Any]) -> str:
    return str(place["path"]).replace("\\", "/").rpartition("/")[2]
