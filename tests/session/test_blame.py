"""Who made a shared process die: found by runs that are made up here, and never an innocent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.model.verdict import Verdict, Word
from pytest_rlstability.session.blame import Blame, BlameSearch, OutOfTimeError

DEATH = Verdict(Word.CRASH, "SIGSEGV in call", facts={"class": "signal", "signal": "SIGSEGV"})
OTHER = Verdict(Word.CRASH, "SIGABRT in call", facts={"class": "signal", "signal": "SIGABRT"})


class Test(SimpleNamespace):
    __test__ = False
    __hash__ = object.__hash__


TESTS: dict[str, Any] = {name: Test(nodeid=name) for name in "abcdefghijklmnopqrstuvwxyz"}


class World:
    """Runs sequences of tests; *dies* says which of them kill their process. Each test takes a second."""

    def __init__(self, dies: Callable[[str], Verdict | None]) -> None:
        self._dies = dies
        self.now = 0.0
        self.runs: list[str] = []

    def run(self, items: Sequence[Any], seconds: float) -> Verdict | None:
        names = "".join(item.nodeid for item in items)
        self.runs.append(names)
        self.now += min(len(names), seconds)
        if len(names) > seconds:
            raise OutOfTimeError
        return self._dies(names)

    def find(self, earlier: str, victim: str | None, budget: float = 1000.0, traces: str = "") -> Blame:
        """*traces* are the tests that left something in the process."""
        search = BlameSearch(self.run, budget, clock=lambda: self.now)
        tests = {TESTS[name]: ["thread x"] if name in traces else [] for name in earlier}
        return search.find(tests, TESTS[victim] if victim else None, DEATH)


def in_order(first: str, then: str) -> Callable[[str], Verdict | None]:
    """A process dies in test *then* if *first* ran before it."""
    return lambda names: DEATH if first in names and then in names[names.index(first) :] else None


def named(blame: Blame) -> tuple[str | None, str]:
    culprit: Any = blame.culprit
    return culprit and culprit.nodeid, "".join(item.nodeid for item in blame.sequence)


def test_a_test_that_dies_alone_is_its_own_culprit():
    world = World(lambda names: DEATH if "v" in names else None)
    blame = world.find("abc", "v")
    assert named(blame) == ("v", "v")
    assert blame.text == "It fails the same way alone."
    assert world.runs == ["v"]


def test_one_that_dies_alone_in_another_way_says_so():
    blame = World(lambda names: OTHER if "v" in names else None).find("abc", "v")
    assert named(blame) == ("v", "v")
    assert "in another way: CRASH: SIGABRT in call" in blame.text


def test_one_that_does_not_end_alone_is_not_followed_further():
    world = World(lambda names: None)
    world.run = lambda items, seconds: (_ for _ in ()).throw(OutOfTimeError)  # type: ignore[method-assign]
    blame = world.find("abc", "v", budget=60)
    assert named(blame) == ("v", "v")
    assert blame.text == "Alone it did not end within 60 s either."


@pytest.mark.parametrize("culprit", "abcdefgh")
def test_the_one_earlier_test_that_does_the_damage_is_found(culprit):
    world = World(in_order(culprit, "v"))
    blame = world.find("abcdefgh", "v")
    assert named(blame) == (culprit, culprit + "v")
    assert f"It passes alone. {culprit} does the damage" in blame.text
    assert len(world.runs) <= 1 + 8 + 1 + 2 * 3 + 4


@pytest.mark.parametrize("culprit", "adh")
def test_one_whose_process_dies_at_its_own_exit_is_found_alone(culprit):
    world = World(lambda names: OTHER if culprit in names else None)
    blame = world.find("abcdefgh", "v")
    assert named(blame) == (culprit, culprit)
    assert "dies when it runs alone too" in blame.text


@pytest.mark.parametrize("culprit", "ach")
def test_a_death_at_exit_has_no_victim(culprit):
    blame = World(in_order(culprit, culprit)).find("abcdefgh", None)
    assert named(blame) == (culprit, culprit)
    assert "passes alone" not in blame.text


def test_nobody_is_named_when_it_does_not_happen_again():
    blame = World(lambda names: None).find("abcd", "v")
    assert named(blame) == (None, "")
    assert "It passes alone. No culprit found: the 4 tests that ran before" in blame.text


def test_nobody_is_named_when_two_tests_are_needed_together():
    world = World(lambda names: DEATH if {"b", "f", "v"} <= set(names) else None)
    blame = world.find("abcdefgh", "v")
    assert named(blame) == (None, "bfv")
    assert "No single culprit found: 2 of the tests that ran before" in blame.text
    assert "(b, f; found with" in blame.text


def test_with_little_time_more_tests_than_needed_are_told_but_none_is_missing():
    world = World(lambda names: DEATH if {"b", "f", "v"} <= set(names) else None)
    blame = world.find("abcdefghijklmnop", "v", budget=100)
    assert named(blame) == (None, "abefv")
    assert "No single culprit found: 4 of the tests" in blame.text
    assert world.now <= 100


def test_nobody_is_named_when_the_time_is_over():
    world = World(in_order("a", "v"))
    blame = world.find("abcdefghijklmnop", "v", budget=10)
    assert named(blame) == (None, "")
    assert "could not all be tried within rl_blame_budget, 10 s" in blame.text
    assert world.now <= 10


def test_a_stall_of_the_first_test_is_not_waited_for_again():
    world = World(lambda names: None)
    blame = BlameSearch(world.run, 60.0).find({}, TESTS["v"], Verdict(Word.STALL, "blocked"))
    assert named(blame) == ("v", "v")
    assert world.runs == []


def test_with_nothing_before_it_a_death_that_does_not_come_back_is_a_matter_of_luck():
    blame = World(lambda names: None).find("", "v")
    assert named(blame) == (None, "")
    assert "does not fail every time" in blame.text


def test_a_large_suite_is_searched_within_the_budget():
    """The suspects are run alone for half of the time; the halves then take few runs."""
    world = World(in_order("c", "v"))
    blame = world.find("abcdefghijklmnopqrstu", "v", budget=200)
    assert named(blame) == ("c", "cv")


@pytest.mark.parametrize("culprit", "ah")
def test_tests_that_left_something_are_tried_first(culprit):
    world = World(in_order(culprit, "v"))
    assert named(world.find("abcdefgh", "v", traces="ah")) == (culprit, culprit + "v")
    assert len(world.runs) <= 1 + 2 * 2 + 4


def test_a_victim_that_dies_by_chance_accuses_nobody():
    """It passes alone once, dies with a suspect, and dies alone when that is tried again."""
    accused = 0
    for seed in range(200):
        chance = random.Random(seed)
        world = World(lambda names, chance=chance: DEATH if "v" in names and chance.random() < 0.5 else None)
        accused += named(world.find("abcd", "v", traces="b"))[0] not in (None, "v")
    assert accused <= 10


def test_a_suspect_that_dies_alone_of_something_else_is_not_the_culprit():
    stall = Verdict(Word.STALL, "blocked at exit")
    world = World(lambda names: stall if "b" in names else None)
    assert named(world.find("abc", "v"))[0] is None


@pytest.mark.parametrize("culprit", "af")
def test_damage_that_kills_every_second_time_is_found(culprit):
    class Unsteady(World):
        def run(self, items, seconds):
            dies = super().run(items, seconds)
            return dies if len(self.runs) % 2 else None

    assert named(Unsteady(in_order(culprit, "v")).find("abcdef", "v"))[0] in (culprit, None)
