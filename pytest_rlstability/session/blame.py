"""Finds the test that does the damage after a process that several tests shared has died.

The test in flight may be innocent: an earlier one may have damaged the heap, left a thread running or an alarm armed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from pytest_rlstability.model.units import format_duration
from pytest_rlstability.model.verdict import Verdict, Word, is_out_of_memory

RunInOrder = Callable[[Sequence[pytest.Item], float], Verdict | None]
"""Runs tests one after another in one fresh process, the exit checks included. Gives the verdict on what went wrong
with the process, None when nothing did. Raises ``OutOfTimeError`` after so many seconds."""

_CHANCES = 2
_CONFIRMATIONS = 4
"""How often a victim must pass alone before another test is blamed."""
_NAMED = 5
"""How many tests that do damage only together are named in a text; the command names all."""


class OutOfTimeError(Exception):
    """A run took longer than it may."""


@dataclass(frozen=True)
class Blame:
    """What was found. *sequence* are the tests that, run in this order in one process, make it die again."""

    text: str
    culprit: pytest.Item | None = None
    sequence: tuple[pytest.Item, ...] = ()
    interrupted: bool = False
    """Whether Ctrl-C ended the search."""


class BlameSearch:
    """``find`` the culprit of one death within *budget* seconds, by running the suspects again. Before each run, *say*
    is given its number and the seconds that the search has taken."""

    def __init__(
        self,
        run: RunInOrder,
        budget: float,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[int, float], None] = lambda tried, seconds: None,
    ) -> None:
        self._run = run
        self._budget = budget
        self._clock = clock
        self._say = say
        self._tried = 0

    def find(self, earlier: Mapping[pytest.Item, Sequence[str]], victim: pytest.Item | None, verdict: Verdict) -> Blame:
        """Blame *victim*, or one of the tests that ran *earlier* in the process; without a victim it died at exit.

        The tests that left something in the process (see ``child.process_state``) are tried first.
        """
        self._deadline, self._tried = self._clock() + self._budget, 0
        if victim is not None:
            if verdict.word is Word.STALL and not earlier:  # to wait for it once more would show nothing new
                return Blame("It was the first test in its process.", victim, (victim,))
            try:
                again = self._try([victim])
            except OutOfTimeError:
                return Blame(f"Alone it did not end within {format_duration(self._budget)} either.", victim, (victim,))
            if again is not None and is_same(again, verdict):
                return Blame("It fails the same way alone.", victim, (victim,))
            if again is not None:
                return Blame(f"Alone it fails in another way: {again.title}", victim, (victim,))
            if not earlier:
                return Blame("It passes when it runs again: it does not fail every time.")
        tail = [] if victim is None else [victim]
        try:
            found = self._search(earlier, tail, verdict)
            if found is not None and not self._is_confirmed(tail):
                return Blame("Alone it passes and dies by turns: it does not fail every time.", victim, (*tail,))
        except OutOfTimeError:
            found = None
        if found is None:
            return Blame(self._not_found(tail, len(earlier)))
        culprit = found[0]
        after = "" if victim is None else "It passes alone. "
        if len(found) > len(tail) + 1:
            return Blame(f"{after}{self._several(found[: len(found) - len(tail)])}", None, tuple(found))
        return Blame(f"{after}{culprit.nodeid} does the damage: {self._how(found)}.", culprit, tuple(found))

    def _search(
        self, earlier: Mapping[pytest.Item, Sequence[str]], tail: list[pytest.Item], verdict: Verdict
    ) -> list[pytest.Item] | None:
        newest = [*reversed([*earlier])]
        with_traces = [suspect for suspect in newest if earlier[suspect]]
        others = [suspect for suspect in newest if not earlier[suspect]]
        until = self._deadline - self._budget / 2
        for suspect in (*with_traces, *others):
            if self._clock() >= until:
                break
            if self._dies([suspect], verdict):
                return [suspect]
            if tail and earlier[suspect] and self._dies([suspect, *tail], verdict):
                return [suspect, *tail]
        return self._halve([*earlier], tail, verdict)

    def _halve(
        self, suspects: list[pytest.Item], tail: list[pytest.Item], verdict: Verdict
    ) -> list[pytest.Item] | None:
        """The suspects that make the process die with *tail* after them: one where one is enough. None when it does not
        happen again. Not every damage kills every time: each sequence has several chances."""
        if not any(self._dies([*suspects, *tail], verdict) for _ in range(_CHANCES)):
            return None
        while len(suspects) > 1:
            middle = len(suspects) // 2
            halves = (suspects[middle:], suspects[:middle]) * _CHANCES
            dying = next((half for half in halves if self._dies([*half, *tail], verdict)), None)
            if dying is None:
                return [*self._without_bystanders(suspects, tail, verdict), *tail]
            suspects = dying
        return [*suspects, *tail]

    def _without_bystanders(
        self, suspects: list[pytest.Item], tail: list[pytest.Item], verdict: Verdict
    ) -> list[pytest.Item]:
        """Those of *suspects* that cannot be left out, as far as the time allows: neither half of them is enough."""
        size = max(1, len(suspects) // 4)
        until = (self._clock() + self._deadline) / 2
        while size > 0:
            for start in reversed(range(0, len(suspects), size)):
                fewer = suspects[:start] + suspects[start + size :]
                if fewer and self._clock() < until and self._dies([*fewer, *tail], verdict):
                    suspects = fewer
            size //= 2
        return suspects

    def _is_confirmed(self, tail: list[pytest.Item]) -> bool:
        """Whether the victim passes alone again and again: else it may have died with the suspect by chance."""
        return not tail or all(self._try(tail) is None for _ in range(_CONFIRMATIONS))

    def _dies(self, items: list[pytest.Item], verdict: Verdict) -> bool:
        again = self._try(items)
        return again is not None and again.word == verdict.word

    def _try(self, items: list[pytest.Item]) -> Verdict | None:
        left = self._deadline - self._clock()
        if left <= 0:
            raise OutOfTimeError
        self._tried += 1
        self._say(self._tried, self._budget - left)
        return self._run(items, left)

    def _how(self, found: list[pytest.Item]) -> str:
        tries = f"found with {self._tried} run{'' if self._tried == 1 else 's'} in fresh processes"
        if len(found) == 1:
            return f"its process dies when it runs alone too ({tries})"
        return f"with it before this test in the same process, the process dies again ({tries})"

    def _several(self, needed: list[pytest.Item]) -> str:
        names = ", ".join(item.nodeid for item in needed[:_NAMED]) + (", ..." if len(needed) > _NAMED else "")
        return (
            f"No single culprit found: {len(needed)} of the tests that ran before in the same process make it die "
            f"again together ({names}; found with {self._tried} runs in fresh processes)."
        )

    def _not_found(self, tail: list[pytest.Item], suspects: int) -> str:
        """Say honestly that nothing was found, and why."""
        earlier = "the test" if suspects == 1 else f"the {suspects} tests"
        who = "It passes alone. " if tail else ""
        why = "did not make a process die again"
        if self._clock() >= self._deadline:
            why = f"could not all be tried within rl_blame_budget, {format_duration(self._budget)}"
        return f"{who}No culprit found: {earlier} that ran before in the same process {why} ({self._tried} runs)."


def is_same(one: Verdict, other: Verdict) -> bool:
    """Whether two deaths are of the same kind: the same word, class and signal."""
    if is_out_of_memory(one) and is_out_of_memory(other):
        return True  # whether the cap or the watchdog was first is chance
    return one.word == other.word and all(one.facts.get(name) == other.facts.get(name) for name in ("class", "signal"))
