"""What a diagnosis says, from made-up findings."""

from __future__ import annotations

from pytest_rlstability.diagnose.checkers import Checked, Culprit
from pytest_rlstability.diagnose.diagnosis import Diagnosis
from pytest_rlstability.diagnose.report import as_json, next_steps, sentences
from pytest_rlstability.diagnose.trials import Trial
from pytest_rlstability.model.verdict import Location, Verdict, Word
from pytest_rlstability.verdicts.factors import Counts

PLACE = Location("/game/walker.py", 12, "grow")
LEAK = Verdict(Word.LEAK, "box2d: food grew by 3 per lap", (("", "at /game/walker.py:12 in grow"),), location=PLACE)
SAVED = Verdict(Word.CRASH, "saved model on Python 3.12: SIGSEGV", (("", "it died while calling learning_rate"),),
                {"class": "saved model"}, Location("/game/test_model.py", 23, "test_it"))  # fmt: skip
SIGNAL = Verdict(Word.CRASH, "SIGSEGV in call", facts={"class": "signal"}, location=PLACE)


def diagnosis(verdict: Verdict, checked: Checked | None = None, checkers: tuple[str, ...] = ()) -> Diagnosis:
    example = Trial(str(verdict.word), 1.0, verdict)
    found = Diagnosis("test_it", Counts(8, 8), example, checkers=[*checkers])
    found.checked = checked or Checked()
    return found


def test_a_failure_that_is_not_a_crash_points_at_the_line_of_its_verdict() -> None:
    assert sentences(diagnosis(LEAK))[-1] == "It happens at /game/walker.py:12 in grow."


def test_a_crash_of_another_process_is_told_in_the_words_of_its_verdict() -> None:
    said = sentences(diagnosis(SAVED))[-1]
    assert said == "It died while calling learning_rate at /game/test_model.py:23 in test_it."


def test_the_line_of_a_crash_is_not_accused() -> None:
    assert sentences(diagnosis(SIGNAL, checkers=("valgrind memcheck: no error",)))[-1] == "No culprit found."


def test_the_place_of_a_wild_address_is_told_and_is_not_a_culprit() -> None:
    found = diagnosis(SIGNAL, Checked(site="heal (actor.c:8)"), ("valgrind memcheck: 1 errors",))
    assert sentences(found)[-1].startswith("No culprit found: heal (actor.c:8) uses an address that leads nowhere")
    assert next_steps(found)[0].startswith("look at what heal (actor.c:8) is given")
    data = as_json(found)
    assert (data["culprit"], data["crash_site"]) == (None, "heal (actor.c:8)")


def test_one_that_passes_may_still_be_told_its_culprit() -> None:
    found = Diagnosis("test_it", Counts(0, 24))
    found.checked = Checked(Culprit("push", "list.c:3", "writes to memory that is not its own", "memcheck", ""))
    assert len(sentences(found)) == 2
    assert sentences(found)[-1] == "push (list.c:3) writes to memory that is not its own: found by memcheck."
