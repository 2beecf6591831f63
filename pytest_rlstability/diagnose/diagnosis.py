"""The course of a diagnosis: does it come back, what changes it, who does the damage."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

from pytest_rlstability.diagnose.checkers import Checked, Checkers
from pytest_rlstability.diagnose.conditions import conditions
from pytest_rlstability.diagnose.trials import FAILED, PASSED, UNKNOWN, Condition, Subject, Trial, run_trial
from pytest_rlstability.osinfo.helper_process import HelperProcess
from pytest_rlstability.verdicts.factors import (
    Counts,
    Finding,
    judge_factor,
    knows_rate,
    next_factor,
)

_LONGER = 4.0
"""How many times as long as the longest plain run a changed one may take."""
_SHORTEST_LIMIT = 20.0
_FACTOR_SHARE = 0.6
"""The part of the time that plain and changed runs may take; the rest is for the memory checkers."""
_PLAIN_SHARE = 0.35


@dataclass
class Diagnosis:
    """What is known so far. It is complete at any time: Ctrl-C shows it as it is."""

    subject: str
    plain: Counts = field(default_factory=Counts)
    example: Trial | None = None
    """The first run that died."""
    signatures: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    tried: list[Condition] = field(default_factory=list)
    checked: Checked = field(default_factory=Checked)
    """Who does the damage, if that was found."""
    checkers: list[str] = field(default_factory=list)
    """A line for each checker: what it said, or why it was not run."""
    trouble: str = ""
    """Why nothing could be found out."""
    seconds: float = 0.0
    interrupted: bool = False
    out_of_time: bool = False


class Diagnoser:
    """``diagnose()`` runs the experiments and returns what they showed; *say* gets a line of progress at a time."""

    def __init__(
        self,
        subject: Subject,
        *,
        is_test: bool,
        seeded: bool,
        budget: float,
        say: Callable[[str], None],
        pythons: Sequence[str] = (),
        factors: Sequence[str] | None = None,
        at_once: int = 0,
    ) -> None:
        self._subject = subject
        self._is_test, self._seeded, self._pythons = is_test, seeded, pythons
        self._factors = factors
        self._budget = budget
        self._say = say
        self._at_once = at_once or max(1, min(4, os.cpu_count() or 1))
        self._began = time.monotonic()
        self._longest = 0.0
        self._processes: list[HelperProcess] = []
        self.result = Diagnosis(subject.name)

    def diagnose(self) -> Diagnosis:
        try:
            self._does_it_come_back()
            if self.result.example is not None:
                self._what_changes_it()
            self._who_does_the_damage()
        except KeyboardInterrupt:
            self.result.interrupted = True
        self.result.seconds = time.monotonic() - self._began
        return self.result

    def _left(self, share: float = 1.0) -> float:
        return self._began + share * self._budget - time.monotonic()

    # does it come back?

    def _does_it_come_back(self) -> None:
        result, limit = self.result, self._left()
        first = run_trial(self._subject, Condition(native=True), limit)
        self._note_plain(first)
        if first.word == UNKNOWN:
            over = self._left() <= 0
            reason = "one run takes longer than the time given: give more with --for" if over else first.output
            result.trouble, result.out_of_time = reason.strip() or "it could not be run", over
            return

        def wanted() -> Condition | None:
            enough = knows_rate(self.result.plain) or (
                self._left(_PLAIN_SHARE) <= self._longest and self.result.plain.runs
            )
            return None if enough or self._left() <= self._longest else Condition(native=self.result.example is None)

        self._run(wanted, lambda condition, trial: self._note_plain(trial))
        if not knows_rate(result.plain) and result.example is None:
            result.out_of_time = True

    def _note_plain(self, trial: Trial) -> None:
        result = self.result
        self._longest = max(self._longest, trial.seconds)
        if trial.word == UNKNOWN:
            return
        if result.example is None and trial.word != PASSED:
            # what failed before in another way is not what is diagnosed
            result.example = trial
        elif trial.verdict is not None and result.example is not None and result.example.verdict is None:
            result.example, result.plain = trial, Counts(0, 0, result.plain.runs)
        result.plain = result.plain.add(self._died(trial))
        if trial.word not in (PASSED, FAILED) and not trial.native_stack:  # it changes the signature, and few have one
            result.signatures[trial.signature] += 1
        self._say(f"as it is: {result.plain} died")

    def _died(self, trial: Trial) -> bool | None:
        """Whether a run ended as the one that is diagnosed; None if it failed in another way."""
        if trial.word == PASSED:
            return False
        example = self.result.example
        return True if example is not None and trial.word == example.word else None

    # what changes it?

    def _what_changes_it(self) -> None:
        result = self.result
        stages = result.example.stages if result.example else ()
        used = result.example.used if result.example else frozenset()
        known = conditions(is_test=self._is_test, seeded=self._seeded, stages=stages, pythons=self._pythons, used=used)
        result.tried = [one for one in known if self._factors is None or one.name in self._factors]
        by_name = {condition.name: condition for condition in result.tried}
        counts: dict[str, Counts] = {}
        running: Counter[str] = Counter()

        def wanted() -> Condition | None:
            if self._left(_FACTOR_SHARE) <= 0:
                result.out_of_time = True
                return None
            expected = {name: Counts(one.died, one.runs, one.others) for name, one in counts.items()}
            for name, number in running.items():  # as if those under way ended like the plain ones
                for _ in range(number):
                    expected[name] = expected.get(name, Counts()).add(result.plain.rate > 0.5)
            chosen = next_factor(result.plain, expected, list(by_name))
            if chosen is None:
                return None
            running[chosen] += 1
            return by_name[chosen]

        def note(condition: Condition, trial: Trial) -> None:
            running[condition.name] -= 1
            before = counts.get(condition.name, Counts())
            counts[condition.name] = before.add(None if trial.word == UNKNOWN else self._died(trial))
            self._judge(counts, len(by_name))
            self._say(f"{condition.name}: {counts[condition.name]} died")

        self._run(wanted, note)

    def _judge(self, counts: dict[str, Counts], factors: int) -> None:
        self.result.findings = [judge_factor(name, self.result.plain, one, factors) for name, one in counts.items()]

    # who does the damage?

    def _who_does_the_damage(self) -> None:
        result = self.result
        example = result.example
        if result.trouble:
            return
        plain = Trial(PASSED, 0.0) if example is None else example
        checkers = Checkers(self._subject, plain, self._left, self._say, result.checkers)
        if example is None:
            result.checked = checkers.check_passing()
        elif example.died:
            result.checked = checkers.check()
        elif example.verdict is None:  # a build with a sanitizer exits with a status of its own
            result.checked = Checked(checkers.sanitizer())

    # running

    def _run(self, wanted: Callable[[], Condition | None], note: Callable[[Condition, Trial], None]) -> None:
        """Run what is wanted, as many at once as there are processors, until nothing more is."""
        running: dict[Future[Trial], Condition] = {}
        with ThreadPoolExecutor(self._at_once) as pool, self._ending_all():
            while True:
                while len(running) < self._at_once and (condition := wanted()) is not None:
                    limit = min(self._left(), max(_SHORTEST_LIMIT, _LONGER * self._longest))
                    running[pool.submit(run_trial, self._subject, condition, limit, self._processes)] = condition
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    note(running.pop(done), done.result())

    @contextmanager
    def _ending_all(self) -> Iterator[None]:
        """After an exception, Ctrl-C mostly, end the runs under way: nobody waits for them."""
        try:
            yield
        except BaseException:
            for process in [*self._processes]:
                process.end()
            raise
