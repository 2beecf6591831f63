"""A diagnosis in words, as a table and as JSON: pure functions of what was found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from pytest_rlstability.diagnose.conditions import STAGE
from pytest_rlstability.diagnose.diagnosis import Diagnosis
from pytest_rlstability.model.messages import Json
from pytest_rlstability.model.units import counted, format_duration
from pytest_rlstability.model.verdict import Verdict, Word, plain_values
from pytest_rlstability.verdicts.factors import Effect, Finding, rate_bound

_MOST_NAMED = 3
_WORST_FIRST = (Effect.GOES_AWAY, Effect.LESS_OFTEN, Effect.MORE_OFTEN, Effect.NOT_DECIDED, Effect.NO_DIFFERENCE)


def telling(diagnosis: Diagnosis) -> list[Finding]:
    """The findings that name a factor, the one that removes the failure first. That it does not die in a stage which it
    does not reach tells nothing."""
    found = [one for one in diagnosis.findings if one.effect in _WORST_FIRST[:3] and not one.factor.startswith(STAGE)]
    return sorted(found, key=lambda one: (_WORST_FIRST.index(one.effect), one.counts.rate))


def damaging_stage(diagnosis: Diagnosis) -> str:
    """The first stage after which it dies even if nothing follows; empty if it dies in its last stage, or that is not
    known."""
    cuts = [one for one in diagnosis.findings if one.factor.startswith(STAGE)]
    stages = diagnosis.example.stages if diagnosis.example else ()
    for index, one in enumerate(cuts):
        earlier_pass = all(cut.effect is Effect.GOES_AWAY for cut in cuts[:index])
        if (
            one.effect is Effect.NO_DIFFERENCE
            and one.counts.died
            and earlier_pass
            and one.factor[len(STAGE) :] != repr(stages[-1])
        ):
            return one.factor.removeprefix(STAGE)
    return ""


def sentences(diagnosis: Diagnosis) -> list[str]:
    """What was found, in at most three sentences."""
    if diagnosis.trouble:
        return [f"Nothing could be found out: {diagnosis.trouble}"]
    return [text for text in (_comes_back(diagnosis), _changes(diagnosis), _culprit(diagnosis)) if text]


def _comes_back(diagnosis: Diagnosis) -> str:
    plain, example = diagnosis.plain, diagnosis.example
    if example is None:
        if not plain.runs:
            return "Nothing is known yet: no run has ended."
        bound = f"{100 * rate_bound(plain):.0f} %"
        runs = counted(plain.runs, "run")
        return f"It passed in all {runs}: with 95 % confidence it fails in less than {bound} of them."
    how = "dies" if example.word == Word.CRASH else "fails"
    headline = f" ({example.verdict.title})" if example.verdict else ""
    often = f"every time, {plain}" if plain.died == plain.runs else f"in {plain} runs"
    kinds = len(diagnosis.signatures)
    several = f", in {kinds} different ways" if kinds > 1 else ""
    return f"It {how} {often}{several}{headline}."


def _changes(diagnosis: Diagnosis) -> str:
    if diagnosis.example is None:
        return ""
    stage = damaging_stage(diagnosis)
    also = f" It is enough to run up to the end of stage {stage}." if stage else ""
    found = telling(diagnosis)
    if found:
        parts = [f"{one.effect} with {one.factor!r} ({one.counts}, p = {one.p:.2g})" for one in found[:_MOST_NAMED]]
        return f"It {'; it '.join(parts)}.{also}"
    tried = [one for one in diagnosis.findings if one.effect is Effect.NO_DIFFERENCE]
    return f"None of {counted(len(tried), 'changed condition')} makes a difference.{also}" if tried else also.strip()


def _culprit(diagnosis: Diagnosis) -> str:
    culprit, site = diagnosis.checked.culprit, diagnosis.checked.site
    if culprit is not None:
        line = culprit.python_lines[0] if culprit.python_lines else ""
        where = f", called from {line}" if line and culprit.place not in line else ""
        return f"{culprit.function} ({culprit.place}) {culprit.deed}{where}: found by {culprit.tool}."
    if site:
        return (
            f"No culprit found: {site} uses an address that leads nowhere, and nobody was seen to damage memory before."
        )
    if diagnosis.checkers:
        return "No damage to memory was seen either." if diagnosis.example is None else "No culprit found."
    place, words = _place(diagnosis), _own_words(diagnosis)
    return f"{words[:1].upper()}{words[1:]}{' at ' if words and place else ''}{place}." if words or place else ""


def _place(diagnosis: Diagnosis) -> str:
    """The line that the verdict names, if the process did not die. That of a CRASH is often a victim's."""
    example = diagnosis.example
    if example is None or example.died or example.verdict is None or example.verdict.location is None:
        return ""
    return str(example.verdict.location)


def _own_words(diagnosis: Diagnosis) -> str:
    """What the verdict says right below its headline, of one that did not die."""
    example = diagnosis.example
    if example is None or example.died or example.verdict is None:
        return ""
    first = next((text for title, text in example.verdict.sections if not title), "").strip().splitlines()
    return first[0].strip().rstrip(".:") if first and not first[0].strip().startswith("at ") else "it happens"


def next_steps(diagnosis: Diagnosis) -> list[str]:
    """What to try, most telling first."""
    advice = {condition.name: condition.advice for condition in diagnosis.tried}
    steps = []
    if (culprit := diagnosis.checked.culprit) is not None:
        lines = f", called from {culprit.python_lines[0]}" if culprit.python_lines else ""
        steps.append(f"look at {culprit.function} ({culprit.place}){lines}")
    elif diagnosis.checked.site:
        steps.append(f"look at what {diagnosis.checked.site} is given: it is gone, was never set, or was overwritten")
    elif place := _place(diagnosis):
        steps.append(f"look at {place}; what was measured is in the report of the test itself")
    removed = [one for one in telling(diagnosis) if one.effect is not Effect.MORE_OFTEN]
    steps += [advice[one.factor] for one in removed[:_MOST_NAMED] if advice.get(one.factor)]
    if diagnosis.out_of_time:
        steps.append("give more time with --for: the experiments were not finished")
    if diagnosis.example is None and diagnosis.plain.runs:
        steps.append("run it under the load, the seed and the tests before it that it failed with")
    return list(dict.fromkeys(steps))


def text_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The report, conclusions first."""
    yield f"{diagnosis.subject}: diagnosed in {format_duration(diagnosis.seconds)}" + (
        " (interrupted: this is what is known)" if diagnosis.interrupted else ""
    )
    yield ""
    yield from sentences(diagnosis)
    if steps := next_steps(diagnosis):
        yield ""
        yield "Try next:"
        yield from (f"  - {step}" for step in steps)
    yield from _sections(diagnosis)


def _sections(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.findings:
        yield ""
        yield from table(diagnosis)
    if diagnosis.checkers:
        yield ""
        yield "Checkers:"
        yield from (f"  {line}" for line in diagnosis.checkers)
    if (culprit := diagnosis.checked.culprit) is not None:
        yield ""
        yield f"What {culprit.tool} showed:"
        yield from (f"  {line}" for line in culprit.details.splitlines())
        if culprit.python_lines:
            yield "  Python lines at that moment"
            yield from (f"    {line}" for line in culprit.python_lines)


def table(diagnosis: Diagnosis) -> Iterator[str]:
    """Each condition with what it does, most telling first."""
    texts = {condition.name: condition.text for condition in diagnosis.tried}
    ordered = sorted(diagnosis.findings, key=lambda one: (_WORST_FIRST.index(one.effect), one.p))
    width = max(len("condition"), *(len(one.factor) for one in ordered))
    yield f"{'condition':<{width}}  died      p        effect         what is changed"
    yield f"{'(as it is)':<{width}}  {diagnosis.plain!s:<8}"
    for one in ordered:
        others = f" ({one.counts.others} failed otherwise)" if one.counts.others else ""
        yield (
            f"{one.factor:<{width}}  {one.counts!s:<8}  {one.p:<7.2g}  {one.effect:<13}  "
            f"{texts.get(one.factor, '')}{others}"
        )


def as_json(diagnosis: Diagnosis) -> Json:
    """Everything, for machines."""
    example = diagnosis.example
    found = telling(diagnosis)
    return {
        "schema": 1,
        "subject": diagnosis.subject,
        "seconds": round(diagnosis.seconds, 3),
        "interrupted": diagnosis.interrupted,
        "out_of_time": diagnosis.out_of_time,
        "trouble": diagnosis.trouble,
        "verdict": sentences(diagnosis),
        "next": next_steps(diagnosis),
        "plain": {**asdict(diagnosis.plain), "rate": diagnosis.plain.rate, "rate_bound": rate_bound(diagnosis.plain)},
        "word": "" if example is None else example.word,
        "example": None if example is None or example.verdict is None else example.verdict.to_dict(),
        "signatures": dict(diagnosis.signatures),
        "factor": found[0].factor if found else None,
        "stage": damaging_stage(diagnosis) or None,
        "factors": [
            {"factor": one.factor, **asdict(one.counts), "p": one.p, "effect": str(one.effect)}
            for one in diagnosis.findings
        ],
        "culprit": None if diagnosis.checked.culprit is None else plain_values(diagnosis.checked.culprit),
        "crash_site": diagnosis.checked.site or None,
        "checkers": diagnosis.checkers,
    }


def with_diagnosis(verdict: Verdict, diagnosis: Diagnosis) -> Verdict:
    """*verdict* with the diagnosis as a section, for reports."""
    from dataclasses import replace

    return replace(verdict, sections=(*verdict.sections, ("Diagnosis", "\n".join(text_lines(diagnosis)))))
