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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_rlstability.kits.models import lock, worker
from pytest_rlstability.kits.models.archive import RefusedError, as_text, open_archive, read_entry, rewrite
from pytest_rlstability.kits.models.audit import Audit, audit_contents, code_in
from pytest_rlstability.kits.models.contents import Contents, read_contents
from pytest_rlstability.kits.models.judge import EVERYTHING, NOBODY, Trust
from pytest_rlstability.kits.models.pickles import Group, Name, maker
from pytest_rlstability.kits.models.roundtrip import ARRAYS, SUFFIX, Saved, Trip, judge_model, read_arrays, step_for
from pytest_rlstability.kits.models.targets import Target
from pytest_rlstability.steps import Outcome, run_step

SCHEMA = 1
_KINDS = {"SB3 model": "sb3", "VecNormalize statistics": "vec_normalize", "replay buffer": "buffer"}
_HERE = Target("this machine")
_BUT_TRUSTED = "with --i-trust-this-file it is loaded"
_OBSERVED = 16
_OBSERVATIONS, _EXPECTED, _DESCRIPTION = "observations.npz", "expected.npz", "bundle.json"
# Where one of these differs, predictions may differ in their last digits.
_DECIDES_BITS = ("python", "processor", "capability", "torch", "numpy")
# A model's file names its policy, and not the algorithm.
_BY_POLICY_MODULE = {
    "sb3_contrib.common.maskable": "sb3_contrib:MaskablePPO", "sb3_contrib.ppo_mask": "sb3_contrib:MaskablePPO",
    "sb3_contrib.common.recurrent": "sb3_contrib:RecurrentPPO", "sb3_contrib.ppo_recurrent": "sb3_contrib:RecurrentPPO",
    "sb3_contrib.qrdqn": "sb3_contrib:QRDQN", "sb3_contrib.tqc": "sb3_contrib:TQC",
    "sb3_contrib.crossq": "sb3_contrib:CrossQ", "sb3_contrib.ars": "sb3_contrib:ARS",
    "stable_baselines3.dqn": "stable_baselines3:DQN", "stable_baselines3.sac": "stable_baselines3:SAC",
    "stable_baselines3.td3": "stable_baselines3:TD3",
}  # fmt: skip
# The algorithms that a file may name.
_ALGORITHMS = frozenset({
    *_BY_POLICY_MODULE.values(), "stable_baselines3:PPO", "stable_baselines3:A2C", "stable_baselines3:DDPG",
    "sb3_contrib:TRPO",
})  # fmt: skip


class PackingError(Exception):
    """The model cannot be packed because it does not even work here; the message is the report."""


def pack(
    model: Path, out: Path, *, observations: Path | None = None, algorithm: str = "", trust: Trust = NOBODY
) -> dict[str, Any]:
    """Write the bundle *out* for the saved *model* and give its description.

    Observations are drawn from an SB3 model's own space unless given (``.npy`` or ``.npz``). What is loaded and packed
    is the model written again, without the code that ``load()`` makes again itself.
    """
    with tempfile.TemporaryDirectory(prefix="rlstability-pack-") as temporary:
        scratch = Path(temporary) / "scratch"
        scratch.mkdir()
        path, contents = _take_in(model, Path(temporary) / "model", trust)
        kind = _kind(contents)
        if kind not in SUFFIX:
            raise RefusedError(f"a {kind} cannot be packed: it is not a model, statistics or a buffer")
        saved = Saved(
            kind=kind,
            algorithm=_algorithm(contents, kind, algorithm, trust),
            path=path,
            observations=scratch / _OBSERVATIONS,
            draw=_OBSERVED if kind == "sb3" and observations is None else 0,
        )
        worker.write_observations(_read_observations(observations), str(saved.observations))
        outcome = _load_locked(saved, scratch, trust)
        _require(outcome, audit_contents(model.name, contents))
        files = {f"model{SUFFIX[kind]}": saved.path, _OBSERVATIONS: saved.observations, _EXPECTED: scratch / ARRAYS}
        for written in (saved.observations, scratch / ARRAYS):
            _read_arrays(written)
        description = {
            "schema": SCHEMA,
            "kind": kind,
            "algorithm": saved.algorithm,
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
        raise RefusedError(f"{chosen!r} is not a known algorithm: name it with --algorithm module:class")
    return chosen


def algorithm_of(settings: Mapping[str, Any]) -> str | None:
    """The algorithm that wrote these settings, as ``module:class``: the file itself does not name it."""
    policy = settings.get("policy_class")
    module = str(policy.get("__module__", "")) if isinstance(policy, dict) else ""
    for part, algorithm in _BY_POLICY_MODULE.items():
        if part in module:
            return algorithm
    if "clip_range" in settings:
        return "stable_baselines3:PPO"
    if "n_steps" in settings and "gae_lambda" in settings:
        return "sb3_contrib:TRPO" if "cg_max_steps" in settings else "stable_baselines3:A2C"
    return None


def verify(bundle: Path, trust: Trust = NOBODY) -> tuple[bool, str]:
    """Load the model of *bundle* in a fresh process here: whether it is what was packed, and the report.

    `RefusedError` when the bundle is damaged, is none, or holds a hostile file: nothing is loaded then.
    """
    with tempfile.TemporaryDirectory(prefix="rlstability-verify-") as temporary:
        directory, scratch = Path(temporary), Path(temporary) / "scratch"
        scratch.mkdir()
        description = _unpack(bundle, directory, trust)
        kind = description["kind"]
        path, contents = _take_in(directory / f"model{SUFFIX[kind]}", directory / "model", trust)
        if _kind(contents) != kind:
            raise RefusedError(f"{bundle.name} calls a {contents.kind} a {kind}: the bundle is damaged")
        _read_arrays(directory / _OBSERVATIONS)
        expected = _read_arrays(directory / _EXPECTED)
        saved = Saved(
            kind=kind,
            algorithm=description["algorithm"],
            path=path,
            observations=directory / _OBSERVATIONS,
            arrays={name: array for name, array in expected.items() if not name.startswith("learned/")},
            facts=description["facts"],
        )
        outcome = _load_locked(saved, scratch, trust)
        there, here = description["machine"], (outcome.result or {}).get("machine", description["machine"])
        trip = Trip(_HERE, outcome)
        if outcome.ending == "ok":
            target = replace(_HERE, exact=all(here.get(name) == there.get(name) for name in _DECIDES_BITS))
            trip = judge_model(target, outcome, _read_arrays(scratch / ARRAYS), saved)
    audited = audit_contents(f"model{SUFFIX[kind]}", contents)
    passed = trip.passed and not audited.exit_code
    how = "bit for bit" if trip.target.exact else "within the tolerance"
    lines = [f"{'ok' if passed else 'FAILED'}: {trip.line()}", f"compared {how}"]
    changed = [name for name in there if here.get(name, there[name]) != there[name]]
    lines += [f"  {name}: packed on {there[name]}, here {here[name]}" for name in changed]
    lines += [f"  {line}" for line in trip.differences[1:]]
    lines += ["", *outcome.stack.splitlines()] if outcome.stack else []
    return passed, as_text(*lines) + ("" if passed else "\n" + audited.text())


def _take_in(given: Path, target: Path, trust: Trust) -> tuple[Path, Contents]:
    """Write *given* again as *target*: what is judged, loaded and packed is that copy and nothing else.

    Code that SB3's ``load()`` makes again itself is left out; any other code is refused, unless all is trusted.
    """
    copy = Path(tempfile.mkdtemp(dir=target.parent)) / given.name
    try:
        shutil.copyfile(given, copy)
    except OSError as error:
        raise RefusedError(f"cannot read {given}: {error.strerror or error}") from error
    contents = read_contents(copy, trust)
    code = [part for part in contents.parts if part.code and not trust.everything]
    for part in code:
        if part.attribute not in worker.REBUILT:
            what = f"{part.entry} holds {code_in(part)}, which would be run"
            raise RefusedError(f"{what}; with --i-trust-this-file it is", "code found")
    if not contents.is_zip:
        copy.replace(target)
        return target, contents
    rewrite(copy, target, {part.attribute for part in code})
    copy.unlink()
    return target, read_contents(target, trust)


def _load_locked(saved: Saved, scratch: Path, trust: Trust) -> Outcome:
    """Load *saved* in a process that locks itself in and can write to *scratch* alone.

    Where there is no lock, and for a whole module, the file has to be trusted.
    """
    step = step_for(_HERE, saved, scratch)
    missing = lock.missing()
    if saved.kind == "module" and not trust.everything:
        raise RefusedError(f"a whole pickled module is not loaded: save its state_dict(); {_BUT_TRUSTED}")
    if missing and not trust.everything:
        raise RefusedError(f"the model would be loaded without a lock around it: {missing}; {_BUT_TRUSTED}")
    if missing:
        return run_step(step)
    # The current directory is searched, and can be read then, only for modules of the user's own.
    needs_own = trust != NOBODY or saved.algorithm not in ("", *_ALGORITHMS)
    search_path = tuple(one for one in step.search_path if needs_own or one != os.getcwd())
    python, walled = lock.interpreter(step.python, scratch, search_path)
    locked = replace(
        step,
        call=f"{lock.__file__}:check",
        arguments={
            "scratch": str(scratch), "seconds": step.timeout, "walled": walled, "arguments": dict(step.arguments)
        },
        python=python,
        environment={**lock.environment(scratch), **step.environment},
        directory=str(scratch),
        search_path=search_path,
    )  # fmt: skip
    return run_step(locked)


def _kind(contents: Contents) -> str:
    """The kind by which `worker` knows what is in the file; of what it does not know, the kind in words."""
    if contents.kind != "torch file":
        return _KINDS.get(contents.kind, contents.kind)
    value = contents.parts[-2:][0].reading.value  # an old torch file has five pickles, and the fourth is the model
    is_mapping = isinstance(value, Group) or getattr(maker(value), "name", "") == "OrderedDict"
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
    if outcome.ending != "ok":
        why = f"on {Trip(_HERE, outcome).line()}"
    elif outcome.result["substituted"]:
        why = f"here: SB3 put defaults in the place of {', '.join(outcome.result['substituted'])}"
    else:
        return
    raise PackingError(as_text(f"the model does not work {why}", *outcome.stack.splitlines()) + audited.text())


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
            raise RefusedError(f"{bundle.name} is not a bundle (no {_DESCRIPTION!r}): make one with rlstability pack")
        description = _description(read_entry(archive, _DESCRIPTION), trust)
        needed = {f"model{SUFFIX[description['kind']]}", _OBSERVATIONS, _EXPECTED}
        odd = needed ^ description["sha256"].keys() | {_DESCRIPTION, *needed} ^ {*archive.namelist()}
        if odd:
            raise RefusedError(f"{bundle.name} has the file {min(odd)!r} too many or too few: the bundle is damaged")
        for name, digest in description["sha256"].items():
            with archive.open(name) as source, open(directory / name, "wb") as target:
                shutil.copyfileobj(source, target)
            if _digest(directory / name) != digest:
                raise RefusedError(f"{name!r} in {bundle.name} is not what was packed: the bundle is damaged")
    return description


def _read_arrays(path: Path) -> dict[str, Any]:
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise RefusedError(f"{path.name!r} is not a plain file", "code found")
        with open_archive(path, path.name):
            return read_arrays(path)
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
    return value in _ALGORITHMS or trust.covers(Name(*value.split(":")))
