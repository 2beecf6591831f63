"""Runs a test or command once, in fresh processes and under changed conditions, and reads how that ended."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol
from uuid import uuid4

from pytest_rlstability.child.changes import CHANGES
from pytest_rlstability.child.script import SITE
from pytest_rlstability.model.events import Outcome
from pytest_rlstability.model.verdict import CrashClass, Verdict, Word
from pytest_rlstability.osinfo.conditions import Changes
from pytest_rlstability.osinfo.helper_process import HelperProcess
from pytest_rlstability.osinfo.process_control import end_tree
from pytest_rlstability.reports.log_reader import Attempt, UnreadableLogError, read_runs

INSIDE = "RLSTABILITY_DIAGNOSING"
"""Set in the runs of a diagnosis, which are not diagnosed themselves. Each has a value of its own, which what it left
running has too."""
PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"
_TAIL = 20000


@dataclass(frozen=True)
class Condition:
    """One change of the conditions a subject runs under. *inside* is what its Python processes do to themselves."""

    name: str = ""
    text: str = ""
    """What is changed, for a person."""
    environment: Changes = field(default_factory=dict)
    inside: Mapping[str, object] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Of pytest or ``rlstability run``."""
    prefix: tuple[str, ...] = ()
    """Words before the command."""
    python: str = ""
    """Another interpreter."""
    native: bool = False
    """Whether the native stack of a crash is read, which takes half a second."""
    advice: str = ""
    """What to do when it makes the failure go away."""


@dataclass(frozen=True)
class Trial:
    """How one run ended: ``passed``, ``failed``, a verdict's word, or ``unknown`` when it did not run to an end."""

    word: str
    seconds: float
    verdict: Verdict | None = None
    stages: tuple[str, ...] = ()
    output: str = ""
    used: frozenset[str] = frozenset()
    """What a plain run used of ``child.library_changes``."""

    @property
    def died(self) -> bool:
        """Whether the process of the test or script, or a worker of it, died: another process, such as that in which a
        fixture loads a model, is not there when a checker runs the test."""
        crash = self.verdict is not None and self.verdict.word == Word.CRASH
        return crash and self.verdict is not None and self.verdict.facts.get("class") in (None, *CrashClass)

    @property
    def native_stack(self) -> str:
        """Empty if none was read."""
        sections = self.verdict.sections if self.verdict else ()
        text = next((text for title, text in sections if title == "Native stack"), "")
        return text if "(by " in text else ""

    @property
    def signature(self) -> str:
        return "" if self.verdict is None else str(self.verdict.facts.get("signature", ""))


class Subject(Protocol):
    """What is diagnosed."""

    name: str

    @property
    def is_python(self) -> bool:
        """Whether the process that is started is the interpreter."""

    def words(self, log: Path, condition: Condition) -> list[str]:
        """The command that runs it under watch and writes an event log."""

    def plain_words(self) -> list[str]:
        """The command that runs it in one process, without a watch: for a checker."""


class TestSubject:
    """A test, by its node id; *options* are pytest's."""

    __test__ = False
    is_python = True

    def __init__(self, nodeid: str, seed: int | None = None, options: Sequence[str] = ()) -> None:
        self.name = nodeid
        self._options = [*options, *([] if seed is None else [f"--rl-seed={seed}"])]

    def words(self, log: Path, condition: Condition) -> list[str]:
        python = condition.python or sys.executable
        words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rl-stability", f"--rl-jsonl={log}"]
        native = [] if condition.native else ["--rl-native=off"]
        return [*words, "--rl-group=test", *native, *self._options, *condition.options, self.name]

    def plain_words(self) -> list[str]:
        off = ["-o", "rl_stability=false", "-p", "no:faulthandler"]
        given = [option for option in self._options if not option.startswith("--rl-s")]
        return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *off, *given, self.name]


class CommandSubject:
    """A command, as it would be typed."""

    def __init__(self, words: Sequence[str], seed: int | None = None) -> None:
        self.name = shlex.join(words)
        self._words = [*words]
        self._seed = [] if seed is None else [f"--seed={seed}"]

    def words(self, log: Path, condition: Condition) -> list[str]:
        native = [] if condition.native else ["--native=off"]
        watch = [sys.executable, "-m", "pytest_rlstability", "run", f"--jsonl={log}", *native, *self._seed]
        command = [condition.python, *self._words[1:]] if condition.python and self.is_python else self._words
        return [*watch, *condition.options, "--", *command]

    def plain_words(self) -> list[str]:
        return [interpreter_of(self._words[0]), *self._words[1:]]

    @property
    def is_python(self) -> bool:
        return "python" in os.path.basename(self._words[0])


def interpreter_of(program: str) -> str:
    """The interpreter itself, where *program* is a shim that starts it: a checker must not check the shim."""
    path = shutil.which(program) or program
    try:
        with open(path, "rb") as file:
            is_shim = "python" in os.path.basename(path) and file.read(2) == b"#!"
    except OSError:
        return program
    if not is_shim:
        return path
    asked = [path, "-c", "import sys; print(sys.executable)"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    return answer.stdout.strip() or path


def environment_of(condition: Condition) -> dict[str, str | None]:
    """The environment of a trial, as changes of this process's. Every Python process below applies the rest itself."""
    changes: dict[str, str | None] = {**condition.environment}
    if condition.inside:
        changes[CHANGES] = json.dumps(condition.inside)
        before = os.environ.get("PYTHONPATH")
        changes["PYTHONPATH"] = os.pathsep.join([SITE, *([before] if before else [])])
    return changes


def run_trial(
    subject: Subject, condition: Condition, limit: float, running: list[HelperProcess] | None = None
) -> Trial:
    """Run *subject* once. Over *limit* seconds it is ended, and its word is ``unknown``. *running* lists its process
    meanwhile, so that somebody else can end it."""
    running = [] if running is None else running
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rlstability-diagnose-", ignore_cleanup_errors=True) as directory:
        log, printed = Path(directory, "log.jsonl"), Path(directory, "output.txt")
        used = Path(directory, "used.txt")
        if not condition.name:
            condition = replace(condition, inside={"note_use": str(used)})
        words = [*condition.prefix, *subject.words(log, condition)]
        with open(printed, "wb") as output:
            try:
                run_alone(words, environment_of(condition), output, limit, running)
            except OSError as error:
                return Trial(UNKNOWN, 0.0, output=f"cannot start {words[0]}: {error.strerror or error}")
        text = printed.read_text(errors="replace")[-_TAIL:]
        noted = used.read_text().splitlines() if used.exists() else []
        return replace(read_trial(log, time.monotonic() - began, text), used=frozenset(noted))


def run_alone(
    words: Sequence[str],
    environment: Mapping[str, str | None],
    output: IO[bytes],
    limit: float,
    running: list[HelperProcess],
) -> int | None:
    """Run a command for at most *limit* seconds, and end everything that it started, daemons included. Its exit status;
    None if it had to be ended. Raises OSError if it cannot be started."""
    token = uuid4().hex
    process = HelperProcess(
        words, environment={**environment, INSIDE: token}, stdout=output, stderr=output, start_new_session=True
    )
    running.append(process)
    try:
        complete = process.ended_within(limit)
    finally:
        running.remove(process)
        end_tree(process.pid, variable=f"{INSIDE}={token}")
        process.end()
    return process.returncode if complete else None


def read_trial(log: Path, seconds: float, output: str = "") -> Trial:
    """What a log says of the test or script that went worst in it."""
    try:
        runs = read_runs([log])
    except UnreadableLogError:
        return Trial(UNKNOWN, seconds, output=output)
    attempts = [test.last for run in runs for test in run.tests.values()]
    trials = [_trial_of(attempt, seconds, output) for attempt in attempts]
    return min(trials, key=_badness, default=Trial(UNKNOWN, seconds, output=output))


def _trial_of(attempt: Attempt, seconds: float, output: str) -> Trial:
    end = attempt.finished
    if end is None or end.outcome is Outcome.INTERRUPTED:
        return Trial(UNKNOWN, seconds, output=output)
    word = PASSED
    if end.failed:
        word = FAILED if end.verdict is None else str(end.verdict.word)
    return Trial(word, end.duration, end.verdict, tuple(end.stages), output)


def _badness(trial: Trial) -> int:
    return {PASSED: 3, UNKNOWN: 2, FAILED: 1}.get(trial.word, 0)
