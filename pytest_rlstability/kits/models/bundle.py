"""A model, observations and what it predicts from them, in one file: made on one machine, checked on another."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_rlstability.kits.models import lock, worker
from pytest_rlstability.kits.models.archive import RefusedError, open_archive, read_entry, rewrite
from pytest_rlstability.kits.models.audit import Audit, audit_contents, code_in
from pytest_rlstability.kits.models.contents import Contents, read_contents
from pytest_rlstability.kits.models.judge import EVERYTHING, NOBODY, Trust
from pytest_rlstability.kits.models.pickles import Group, Name
from pytest_rlstability.kits.models.roundtrip import ARRAYS, SUFFIX, Saved, Trip, judge_model, read_arrays, step_for
from pytest_rlstability.kits.models.sb3 import ALGORITHMS, algorithm_of
from pytest_rlstability.kits.models.targets import Target
from pytest_rlstability.steps import Outcome, Step, run_step

SCHEMA = 1
_KINDS = {"SB3 model": "sb3", "VecNormalize statistics": "vec_normalize", "replay buffer": "buffer"}
_KINDS_OF = {
    **{spoken: (kind,) for spoken, kind in _KINDS.items()},
    "torch file": ("module", "state_dict"),
    "pickle": (),
}
_HERE = Target("this machine")
_SCRATCH = "scratch"
_OBSERVATIONS, _EXPECTED, _STATISTICS, _DESCRIPTION = (
    "observations.npz",
    "expected.npz",
    "statistics.pkl",
    "bundle.json",
)
# Where one of these differs, predictions may differ in their last digits.
_DECIDES_BITS = ("python", "processor", "capability", "torch", "numpy")


class PackingError(Exception):
    """The model cannot be packed because it does not even work here; the message is the report."""


@dataclass(frozen=True)
class Verification:
    """How a bundle fared on this machine."""

    description: Mapping[str, Any]
    audit: Audit
    trip: Trip

    @property
    def passed(self) -> bool:
        return self.trip.passed and not self.audit.exit_code

    def text(self) -> str:
        there, here = self.description["machine"], (self.trip.outcome.result or {}).get("machine", {})
        how = "bit for bit" if self.trip.target.exact else "within the tolerance"
        lines = [f"{'ok' if self.passed else 'FAILED'}: {self.trip.line()}", f"compared {how}"]
        changed = [name for name in there if here.get(name, there[name]) != there[name]]
        lines += [f"  {name}: packed on {there[name]}, here {here[name]}" for name in changed]
        lines += [f"  {line}" for line in self.trip.differences[1:]]
        if self.trip.outcome.stack:
            lines += ["", self.trip.outcome.stack.rstrip()]
        if self.audit.exit_code or not self.trip.passed:
            lines += ["", self.audit.text().rstrip()]
        return "\n".join(lines) + "\n"


def pack(
    model: Path,
    out: Path,
    *,
    observations: Path | None = None,
    statistics: Path | None = None,
    algorithm: str = "",
    count: int = 16,
    trust: Trust = NOBODY,
) -> dict[str, Any]:
    """Write the bundle *out* for the saved *model* and give its description.

    Observations are drawn from an SB3 model's own space unless given (``.npy`` or ``.npz``); ``expected`` is what a
    fresh process on this machine predicts from them, after it has also learned a rollout. What is loaded and packed
    is the model written again, without the code that ``load()`` makes again itself.
    """
    with tempfile.TemporaryDirectory(prefix="rlstability-pack-") as temporary:
        directory, scratch = Path(temporary), Path(temporary) / _SCRATCH
        scratch.mkdir()
        path, contents = _take_in(model, directory / "model", trust)
        own_statistics = _take_in(statistics, directory / _STATISTICS, trust)[0] if statistics else None
        kind = _kind(contents)
        _require_weights_only(kind, trust)
        chosen = _algorithm(contents, kind, algorithm, trust)
        saved = Saved(
            kind=kind,
            algorithm=chosen,
            path=path,
            statistics=str(own_statistics or ""),
            observations=scratch / _OBSERVATIONS,
            arrays={},
            facts={},
            directory=directory,
            draw=count if kind == "sb3" and observations is None else 0,
        )
        worker.write_observations(_read_observations(observations), str(saved.observations))
        outcome = run_step(_locked(step_for(_HERE, saved, scratch), scratch, trust))
        _require(outcome, audit_contents(model.name, contents))
        files = {f"model{SUFFIX[kind]}": saved.path, _OBSERVATIONS: saved.observations, _EXPECTED: scratch / ARRAYS}
        for written in (saved.observations, scratch / ARRAYS):
            _require_arrays(written)
        if own_statistics is not None:
            files[_STATISTICS] = own_statistics
        description = {
            "schema": SCHEMA,
            "kind": kind,
            "algorithm": chosen,
            "source": model.name,
            "facts": {name: value for name, value in outcome.result.items() if name != "machine"},
            "machine": outcome.result["machine"],
            "sha256": {name: _digest(path) for name, path in files.items()},
        }
        _write_bundle(out, description, files)
    return description


def _algorithm(contents: Contents, kind: str, given: str, trust: Trust) -> str:
    """The algorithm that loads the model, as ``module:class``; what the user names himself is his own."""
    chosen = given or (algorithm_of(contents.settings) if kind == "sb3" else "")
    if chosen is None:
        raise RefusedError("the file does not say which algorithm wrote it: name it with --algorithm module:class")
    if not _is_algorithm(chosen, kind, EVERYTHING if given else trust):
        raise RefusedError(f"{chosen!r} is no algorithm that is known here: name it with --algorithm module:class")
    return chosen


def verify(bundle: Path, trust: Trust = NOBODY) -> Verification:
    """Load the model of *bundle* in a fresh process here and compare it with what was packed.

    `RefusedError` when the bundle is damaged, is none, or holds a hostile file: nothing is loaded then.
    """
    with tempfile.TemporaryDirectory(prefix="rlstability-verify-") as temporary:
        directory, scratch = Path(temporary), Path(temporary) / _SCRATCH
        scratch.mkdir()
        description = _unpack(bundle, directory, trust)
        kind = description["kind"]
        path, contents = _take_in(directory / f"model{SUFFIX[kind]}", directory / "model", trust)
        audited = audit_contents(f"model{SUFFIX[kind]}", contents)
        if kind not in _KINDS_OF[audited.kind]:
            raise RefusedError(f"{bundle.name} calls a {audited.kind} a {kind}: the bundle is damaged")
        _require_weights_only(kind, trust)
        statistics = directory / _STATISTICS
        if statistics.exists():
            statistics = _take_in(statistics, directory / "own_statistics", trust)[0]
        for name in (_OBSERVATIONS, _EXPECTED):
            _require_arrays(directory / name)
        expected = {name: array for name, array in read_arrays(directory / _EXPECTED).items() if name[:8] != "learned/"}
        saved = Saved(
            kind=kind,
            algorithm=description["algorithm"],
            path=path,
            statistics=str(statistics) if statistics.exists() else "",
            observations=directory / _OBSERVATIONS,
            arrays=expected,
            facts=description["facts"],
            directory=directory,
        )
        outcome = run_step(_locked(step_for(_HERE, saved, scratch), scratch, trust))
        if outcome.ending != "ok":
            return Verification(description, audited, Trip(_HERE, outcome))
        target = replace(_HERE, exact=_computes_alike(description["machine"], outcome.result["machine"]))
        _require_arrays(scratch / ARRAYS)
        trip = judge_model(target, outcome, read_arrays(scratch / ARRAYS), saved)
        return Verification(description, audited, trip)


def _take_in(given: Path, target: Path, trust: Trust) -> tuple[Path, Contents]:
    """Write *given* again as *target*: what is judged, loaded and packed is that copy and nothing else.

    Code that SB3's ``load()`` makes again itself is left out; any other code is refused, unless all is trusted.
    """
    copy = target.with_suffix(".copy")
    try:
        shutil.copyfile(given, copy)
    except OSError as error:
        raise RefusedError(f"cannot read {given}: {error.strerror or error}") from error
    with open(copy, "rb") as stream:
        is_zip = stream.read(2) == b"PK"
    contents = _named(given, read_contents, copy, trust)
    left_out = {part.attribute for part in contents.parts if part.code and part.attribute in worker.REBUILT}
    found = [part for part in contents.parts if part.code and part.attribute not in left_out]
    if trust.everything:
        left_out = set()
    elif found:
        where = found[0].attribute or found[0].where
        raise RefusedError(
            f"{where} holds {code_in(found[0])}, which would be run; with --i-trust-this-file it is", "code found"
        )
    if not is_zip:
        copy.replace(target)
        return target, contents
    _named(given, rewrite, copy, target, lambda _, data: _without(data, left_out))
    copy.unlink()
    return target, _named(given, read_contents, target, trust)


def _require_weights_only(kind: str, trust: Trust) -> None:
    if kind == "module" and not trust.everything:
        raise RefusedError(
            "a whole pickled module is not loaded: save its state_dict(); with --i-trust-this-file it is loaded"
        )


def _locked(step: Step, scratch: Path, trust: Trust) -> Step:
    """*step* in a process that locks itself in and can write to *scratch* alone; unlocked only where that cannot be."""
    missing = lock.missing()
    if missing and not trust.everything:
        raise RefusedError(
            f"the model would be loaded without a lock around it: {missing}; with --i-trust-this-file it is loaded"
        )
    if missing:
        return step
    # The current directory is searched, and can be read then, only for modules of the user's own.
    needs_own = trust != NOBODY or step.arguments["algorithm"] not in ("", *ALGORITHMS)
    arguments = {
        "write": [str(scratch)],
        "read": [str(scratch.parent)],
        "seconds": step.timeout,
        "arguments": dict(step.arguments),
    }
    return replace(
        step,
        call=f"{lock.__file__}:check",
        arguments=arguments,
        environment={**lock.environment(scratch), **step.environment},
        directory=str(scratch),
        search_path=tuple(one for one in step.search_path if needs_own or one != os.getcwd()),
    )


def _named(given: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call *function*; what it refuses is refused under the name that the user gave."""
    try:
        return function(*arguments)
    except RefusedError as error:
        raise RefusedError(str(error).replace(arguments[0].name, given.name), error.word) from error


def _without(data: bytes, left_out: set[str]) -> bytes:
    """The settings without the attributes *left_out*; as they are when none is left out."""
    if not left_out:
        return data
    return json.dumps({name: value for name, value in json.loads(data).items() if name not in left_out}).encode()


def _kind(contents: Contents) -> str:
    if contents.kind in _KINDS:
        return _KINDS[contents.kind]
    if contents.kind != "torch file":
        raise RefusedError(f"a {contents.kind} cannot be packed: it is no model, statistics or buffer")
    value = contents.parts[0].reading.value
    is_mapping = isinstance(value, Group) or getattr(getattr(value, "function", None), "name", "") == "OrderedDict"
    return "state_dict" if is_mapping else "module"


def _read_observations(given: Path | None) -> Any:
    import numpy

    if given is None:
        return None
    try:
        loaded = numpy.load(given, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RefusedError(f"{given} holds no observations that can be read: {error}") from error
    return loaded if hasattr(loaded, "shape") else dict(loaded)


def _require(outcome: Outcome, audited: Audit) -> None:
    trip = Trip(_HERE, outcome)
    if not trip.passed:
        raise PackingError(f"the model does not work on {trip.line()}\n{outcome.stack}\n{audited.text()}")
    if outcome.result["substituted"]:
        names = ", ".join(outcome.result["substituted"])
        raise PackingError(f"the model does not work here: SB3 put defaults in the place of {names}\n{audited.text()}")


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _write_bundle(out: Path, description: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    # The name is drawn and the file must be new: nobody else's link is followed, nobody's file is written over.
    descriptor, partial = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
    try:
        with open(descriptor, "wb") as stream, zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(_DESCRIPTION, json.dumps(description, indent=2))
            for name, path in files.items():
                archive.write(path, name)
        os.replace(partial, out)
    except BaseException:
        os.unlink(partial)
        raise


def _unpack(bundle: Path, directory: Path, trust: Trust) -> dict[str, Any]:
    """Copy the files the description names, under the names this module gives them, after checking each digest."""
    with open_archive(bundle, bundle.name) as archive:
        if _DESCRIPTION not in archive.namelist():
            raise RefusedError(
                f"{bundle.name} is no bundle (no {_DESCRIPTION!r} entry): make one with rlstability pack"
            )
        description = _description(read_entry(archive, _DESCRIPTION), trust)
        needed = {f"model{SUFFIX[description['kind']]}", _OBSERVATIONS, _EXPECTED}
        missing = sorted(needed - description["sha256"].keys())
        if missing:
            raise RefusedError(f"{bundle.name} names no file {missing[0]!r}")
        for name, digest in description["sha256"].items():
            if name not in needed | {_STATISTICS} or name not in archive.namelist():
                raise RefusedError(f"{bundle.name} names a file {name!r} that it does not hold or should not")
            with archive.open(name) as source, open(directory / name, "wb") as target:
                shutil.copyfileobj(source, target)
            if _digest(directory / name) != digest:
                raise RefusedError(f"{name!r} in {bundle.name} is not what was packed: the bundle is damaged")
    return description


def _require_arrays(path: Path) -> None:
    import numpy

    if not stat.S_ISREG(path.lstat().st_mode):
        raise RefusedError(f"{path.name!r} is not a plain file", "code found")
    try:
        with open_archive(path, path.name), numpy.load(path, allow_pickle=False) as stored:
            for name in stored.files:
                stored[name]
    except RefusedError:
        raise
    except Exception as error:  # numpy raises whatever the bytes lead it to
        raise RefusedError(f"{path.name!r} holds no arrays that can be read: {error}") from error


def _description(data: bytes, trust: Trust) -> dict[str, Any]:
    """The description in *data*, after everything that is used of it was found to be of the type it is used as."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{_DESCRIPTION!r} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or found.get("kind") not in list(SUFFIX):
        raise RefusedError(f"{_DESCRIPTION!r} is of a kind or schema that this version does not know")
    facts = found.get("facts")
    groups = [facts.get(name, {}) for name in ("settings", "normalisation")] if isinstance(facts, dict) else [None]
    for name, sound in (
        ("algorithm", _is_algorithm(found.get("algorithm"), found["kind"], trust)),
        ("facts", all(isinstance(group, dict) for group in groups)),
        ("machine", _is_texts(found.get("machine"))),
        ("sha256", _is_texts(found.get("sha256"))),
    ):
        if not sound:
            raise RefusedError(f"{name!r} in {_DESCRIPTION!r} is missing or not what rlstability pack writes")
    return found


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _is_algorithm(value: object, kind: str, trust: Trust) -> bool:
    """Whether *value* is text and, where it will be imported, names an algorithm that is known or trusted."""
    if not isinstance(value, str) or kind != "sb3":
        return isinstance(value, str)
    if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", value):
        return False
    return value in ALGORITHMS or trust.covers(Name(*value.split(":")))


def _computes_alike(packed_on: Mapping[str, str], here: Mapping[str, str]) -> bool:
    """Whether both machines compute with the same code on the same instructions."""
    return all(here.get(name) == packed_on.get(name) for name in _DECIDES_BITS)
