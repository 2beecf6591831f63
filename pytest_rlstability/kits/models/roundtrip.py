"""Save a model, load it under every target's conditions, and report what is no longer the same."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_rlstability.kits.models import worker
from pytest_rlstability.kits.models.archive import as_text
from pytest_rlstability.kits.models.audit import Audit, audit
from pytest_rlstability.kits.models.judge import EVERYTHING
from pytest_rlstability.kits.models.targets import Target, lend, variations
from pytest_rlstability.model.verdict import Fact, Section, Verdict, Word
from pytest_rlstability.steps import Outcome, Step, run_steps

SUFFIX = {"sb3": ".zip", "vec_normalize": ".pkl", "buffer": ".pkl", "module": ".pt", "state_dict": ".pt"}
ARRAYS = "arrays.npz"
_DRAWN = 16
_TIMEOUT = 180.0
_MAX_LINES = 8
# How far predictions may be apart where the processor's instructions or the number of threads differ.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5


@dataclass(frozen=True)
class Trip:
    """How the model fared on one target: how the process ended, and what was not the same."""

    target: Target
    outcome: Outcome
    differences: tuple[str, ...] = ()
    note: str = ""
    learned: Mapping[str, Any] | None = None

    @property
    def passed(self) -> bool:
        return self.outcome.ending == "ok" and not self.differences

    @property
    def stage(self) -> str:
        """What was under way when the process ended: it says so before each part."""
        lines = self.outcome.stdout.strip().splitlines()
        return lines[-1] if lines else "starting"

    def line(self) -> str:
        if self.outcome.ending != "ok":
            return f"{self.target.name}: {self.outcome.headline()} while {self.stage}"
        if self.differences:
            return f"{self.target.name}: {self.differences[0]}"
        return f"{self.target.name}: the same" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class RoundTrip:
    """The result of a round trip: ``audit`` of the file, and one `Trip` per target."""

    audit: Audit
    trips: tuple[Trip, ...]
    portable: bool = True

    @property
    def carries_code(self) -> bool:
        """Whether an entry holds code although the model was to be portable."""
        return self.portable and bool(self.audit.code_entries)

    @property
    def passed(self) -> bool:
        return not self.carries_code and all(trip.passed for trip in self.trips)

    def verdict(self) -> Verdict | None:
        """Why it failed; None if it passed. The crash (or else the stall) of the first target that had one comes
        first."""
        ended = [trip for ending in ("crash", "hang") for trip in self.trips if trip.outcome.ending == ending]
        if ended:
            return self._death(ended[0])
        if self.passed:
            return None
        kind = "code in the file" if self.carries_code else "saved model"
        sections: list[Section] = [
            *([("targets", as_text(*(trip.line() for trip in self.trips)))] if self.trips else []),
            *((trip.target.name, details) for trip in self.trips if (details := _details(trip))),
            ("audit of the file", self.audit.text()),
        ]
        return Verdict(Word.MODEL, as_text(self._headline()).strip(), tuple(sections), {"class": kind})

    def _death(self, trip: Trip) -> Verdict:
        word = Word.CRASH if trip.outcome.ending == "crash" else Word.STALL
        facts: dict[str, Fact] = {"target": trip.target.name, "stage": trip.stage, "class": "saved model"}
        if trip.outcome.signal:
            facts["signal"] = trip.outcome.signal
        sections: list[Section] = [
            ("", f"the saved model was loaded in a fresh process; it died while {trip.stage}"),
            ("targets", "\n".join(one.line() for one in self.trips)),
            (f"Python stack on {trip.target.name}", trip.outcome.stack or "none was written"),
        ]
        if trip.outcome.stderr.strip():
            sections.append(("last errors printed", trip.outcome.stderr[-2000:]))
        sections.append(("audit of the file", self.audit.text()))
        return Verdict(word, f"saved model on {trip.target.name}: {trip.outcome.headline()}", tuple(sections), facts)

    def text(self) -> str:
        """The whole report of a failure; empty if it passed."""
        verdict = self.verdict()
        return "" if verdict is None else verdict.text()

    def _headline(self) -> str:
        if self.carries_code:
            entries = ", ".join(f"{finding.entry} ({finding.what})" for finding in self.audit.code_entries)
            remedy = f"load(..., {self.audit.custom_objects})" if self.audit.custom_objects else "move it to a module"
            return f"the file holds code that only this Python can run: {entries}; avoid it with {remedy}"
        return next(trip.line() for trip in self.trips if not trip.passed)


def _details(trip: Trip) -> str:
    """What there is to say about *trip* beyond its line."""
    if trip.outcome.ending == "raised":
        return as_text(*trip.outcome.stack.splitlines())
    return as_text(*trip.differences) if len(trip.differences) > 1 else ""


@dataclass(frozen=True)
class Saved:
    """A saved model, and what it was when it was saved; *draw* observations are drawn from it if none are there."""

    kind: str
    algorithm: str
    path: Path
    observations: Path
    statistics: str = ""
    arrays: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    draw: int = 0


def round_trip(
    model: Any,
    observations: Any,
    directory: Path,
    *,
    portable: bool = True,
    pythons: Sequence[Target] = (),
    targets: Sequence[Target] | None = None,
    on_end: Callable[[Outcome], None] | None = None,
) -> RoundTrip:
    """Save *model* into *directory*, audit the file, load it on every target, and compare."""
    saved = _save(model, observations, directory)
    minors = [sys.version_info[:2], *(python.minor for python in pythons if python.minor)]
    audited = audit(saved.path, minors, EVERYTHING)
    here: Sequence[Target] = ()  # the targets on this Python share its bytecode, so they cannot tell what code does
    if not (portable and audited.code_entries):
        here = variations(*_machine()) if targets is None else targets
    return RoundTrip(audited, tuple(_travel([*here, *pythons], saved, on_end)), portable)


def _travel(targets: Sequence[Target], saved: Saved, on_end: Callable[[Outcome], None] | None) -> Iterator[Trip]:
    """Load the file on each of *targets*; what the first exact one learned the others must learn too."""
    directories = [Path(tempfile.mkdtemp(prefix="target-", dir=saved.path.parent)) for _ in targets]
    steps = [step_for(target, saved, where) for target, where in zip(targets, directories, strict=True)]
    learned = None
    for target, outcome, directory in zip(targets, run_steps(steps, on_end=on_end), directories, strict=True):
        if outcome.ending != "ok":
            trip = Trip(target, outcome)
        elif outcome.result is None or "values" in outcome.result:
            trip = _judge_values(target, outcome, saved)
        else:
            trip = judge_model(target, outcome, read_arrays(directory / ARRAYS), saved, learned)
        if target.exact and learned is None:
            learned = trip.learned
        yield trip


def _save(model: Any, observations: Any, directory: Path) -> Saved:
    kind = worker.kind_of(model)
    path = directory / f"model{SUFFIX[kind]}"
    worker.save(model, str(path))
    if observations is None and kind == "sb3":
        observations = worker.draw_observations(model.observation_space, _DRAWN)
    elif isinstance(observations, (list, tuple)) and observations:
        observations = worker.stacked(observations)
    normalisation = model.get_vec_normalize_env() if kind == "sb3" else None
    statistics = str(directory / "vec_normalize.pkl") if normalisation is not None else ""
    if statistics:
        worker.save(normalisation, statistics)
    arrays, facts = worker.snapshot(model, observations, normalisation)
    if not arrays:
        raise TypeError(f"there is no array or tensor in this {type(model).__name__} that could be compared")
    stored = directory / "observations.npz"
    worker.write_observations(observations, str(stored))
    algorithm = f"{type(model).__module__}:{type(model).__qualname__}" if kind == "sb3" else ""
    return Saved(kind, algorithm, path, stored, statistics, arrays, facts)


def _machine() -> tuple[int, bool]:
    """Threads that torch uses in this process, and whether it sees a GPU."""
    torch = sys.modules.get("torch")
    return (torch.get_num_threads(), torch.cuda.is_available()) if torch is not None else (1, False)


def step_for(target: Target, saved: Saved, directory: Path) -> Step:
    """The step that loads *saved* on *target*, and leaves what it found in *directory*."""
    environment = dict(target.environment)
    if target.elsewhere:
        environment |= {"HOME": str(directory), "USERPROFILE": str(directory), "TMPDIR": str(directory)}
    return Step(
        target.name,
        call=f"{worker.__file__}:{'check_elsewhere' if target.minor else 'check'}",
        arguments={
            "path": str(saved.path),
            "kind": saved.kind,
            "algorithm": saved.algorithm,
            "observations": str(saved.observations),
            "arrays": str(directory / ARRAYS),
            "statistics": saved.statistics,
            "draw": saved.draw,
        },
        python=target.python,
        timeout=_TIMEOUT,
        environment=environment,
        directory=str(directory) if target.elsewhere else None,
        search_path=lend(saved.path.parent / "lent") if target.minor else tuple(map(os.path.realpath, sys.path)),
    )


def read_arrays(path: Path) -> dict[str, Any]:
    import numpy

    with numpy.load(path, allow_pickle=False) as stored:
        return dict(stored)


def judge_model(
    target: Target, outcome: Outcome, arrays: Mapping[str, Any], saved: Saved, learned: Mapping[str, Any] | None = None
) -> Trip:
    """Compare what came back with what was saved, and with what another target *learned* from the same file."""
    facts = outcome.result
    found = [f"{name} could not be loaded; SB3 put its own default in its place" for name in facts["substituted"]]
    found += fact_differences(saved.facts, facts)
    learned_here = {name: array for name, array in arrays.items() if name.startswith("learned/")}
    kept = {name: array for name, array in arrays.items() if name not in learned_here}
    found += differences(saved.arrays, kept, exact=target.exact)
    found += not_finite(learned_here)
    if learned is not None and target.exact:
        found += [f"after learning one rollout, {line}" for line in differences(learned, learned_here, exact=True)]
    return Trip(target, outcome, tuple(found), learned=learned_here)


def _judge_values(target: Target, outcome: Outcome, saved: Saved) -> Trip:
    if outcome.result is None:
        return Trip(target, outcome, note="audited only: torch and Stable-Baselines3 are not installed there")
    result = outcome.result
    errors = result["errors"].items()
    found = [f"{name} cannot be loaded: {error}" for name, error in errors if name not in worker.REBUILT]
    for name, values in result["values"].items():
        expected = [float(value) for value in saved.arrays.get(f"schedule/{name}", [])]
        if values != expected:
            found.append(f"schedule {name} gave {values} where {expected} was saved")
    note = f"values only: no torch there; {len(result['values'])} schedules called"
    if result["skipped"]:
        missing = sorted({module.partition(".")[0] for module in result["skipped"].values()})
        note += f", {len(result['skipped'])} values left out for want of {', '.join(missing)}"
    return Trip(target, outcome, tuple(found), note)


def differences(expected: Mapping[str, Any], found: Mapping[str, Any], *, exact: bool) -> list[str]:
    """What is not the same in *found*, one line per array, worst kinds first.

    Everything stored must be the same bit for bit. What is computed (``predict/...``) must be too when *exact*, and
    within the stated tolerance otherwise.
    """
    lines: list[str] = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            lines.append(f"{name} is {'missing' if name in expected else 'new'} after loading")
        else:
            tolerant = not exact and name.startswith("predict/")
            lines += _compare(name, expected[name], found[name], tolerant)
    if len(lines) > _MAX_LINES:
        lines = [*lines[:_MAX_LINES], f"and {len(lines) - _MAX_LINES} more differences"]
    return lines


def fact_differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """What plain facts (class, spaces, settings) changed on the way."""
    for name in ("class", "observation_space", "action_space"):
        if name in expected and expected[name] != found.get(name):
            yield f"{name} was {expected[name]}, is {found.get(name)}"
    for group in ("settings", "normalisation"):
        before, after = expected.get(group, {}), found.get(group, {})
        for name in before.keys() & after.keys():
            if before[name] != after[name] and not (before[name] != before[name] and after[name] != after[name]):
                yield f"{name} was {before[name]!r}, is {after[name]!r}"


def not_finite(arrays: Mapping[str, Any]) -> list[str]:
    """The arrays that hold a NaN or an infinity."""
    import numpy

    return [
        f"{name} is not finite"
        for name, array in arrays.items()
        if array.dtype.kind == "f" and not numpy.isfinite(array).all()
    ]


def _compare(name: str, expected: Any, found: Any, tolerant: bool) -> Iterator[str]:
    import numpy

    if expected.shape != found.shape or expected.dtype != found.dtype:
        yield f"{name} was {_form(expected)}, is {_form(found)}"
        return
    if tolerant and expected.dtype.kind == "f":
        same = numpy.isclose(found, expected, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
    else:
        same = (found == expected) | ((found != found) & (expected != expected))
    if not same.all():
        wrong = numpy.argwhere(~same)
        place = tuple(int(index) for index in wrong[0])
        where = f" at {list(place)}" if place else ""
        yield (
            f"{name}: {len(wrong)} of {expected.size} values differ, first{where}:"
            f" {expected[place]!s} was saved, {found[place]!s} came back"
        )


def _form(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"
