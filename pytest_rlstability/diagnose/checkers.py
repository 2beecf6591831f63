"""Runs memory checkers until one names the function that does the damage."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_rlstability.child.error_lines import VARIABLE
from pytest_rlstability.child.script import SITE
from pytest_rlstability.diagnose.memcheck import Complaint, first_guilty, read_complaints
from pytest_rlstability.diagnose.trials import Condition, Subject, Trial, run_trial
from pytest_rlstability.model.units import format_duration
from pytest_rlstability.osinfo.helper_process import HelperProcess
from pytest_rlstability.osinfo.process_control import end_tree

_LEAST_TIME = 5.0
_ALLOCATOR_SHARE = 0.2
"""Of the time that is left; valgrind tells more."""
_MOST_FRAMES = 8
_DEEPEST = "--num-callers=40"
_COMMON = ("-q", "--xml=yes", "--error-limit=no", "--trace-children=no", _DEEPEST)
VALGRIND: Mapping[str, tuple[str, ...]] = {
    "valgrind memcheck": (*_COMMON, "--leak-check=no", "--undef-value-errors=no"),
    "valgrind memcheck, uninitialised memory": (*_COMMON, "--leak-check=no", "--track-origins=yes"),
    "valgrind helgrind": (*_COMMON, "--tool=helgrind", "--history-level=full"),
}
_INSTALL = "apt-get install valgrind"
_SMASHED = re.compile(r"^\s*(?:__)?(?:GI_+)?_*(?:stack_chk_fail|fortify_fail|chk_fail)\w* at .*\n((?:\s+.*\n?)+)", re.M)
_FRAME = re.compile(r"^\s+(\S.*?) at (\S+)(?: \[Python\])?$", re.M)
_BLOCK = re.compile(r"Debug memory block at address.*?(?=\nFatal Python error|\Z)", re.DOTALL)
_ALLOCATED = re.compile(r"Memory block allocated at \(most recent call first\):\n((?:  File .*\n)+)")


@dataclass(frozen=True)
class Culprit:
    """Who does the damage, by which tool, with what it showed."""

    function: str
    place: str
    deed: str
    tool: str
    details: str
    python_lines: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def name_culprit(
    subject: Subject, example: Trial, left: Callable[[], float], say: Callable[[str], None], lines: list[str]
) -> Culprit | None:
    """The first tool that names a guilty function wins. *lines* gets what each tool said."""
    if (culprit := _smashed_stack(example)) is not None:
        lines.append(f"stack protector: {culprit.function} {culprit.deed}")
        return culprit
    if (culprit := _debug_allocator(subject, left, say, lines)) is not None:
        return culprit
    if shutil.which("valgrind") is None:
        lines.append(f"valgrind: not installed ({_INSTALL}); it names the code that damages memory")
        return None
    for tool, options in VALGRIND.items():
        limit = left()
        if limit < _LEAST_TIME:
            lines.append(f"{tool}: not run, the time is over (--for)")
            continue
        say(f"{tool}: running, for at most {format_duration(limit)}")
        complaints, python_lines, complete = _valgrind(subject, options, limit)
        guilty = first_guilty(complaints)
        if guilty is not None:
            culprit = _culprit(guilty, tool, python_lines)
            lines.append(f"{tool}: {culprit.function} ({culprit.place}) {culprit.deed}")
            return culprit
        what = f"{len(complaints)} errors, all in the interpreter or the C library" if complaints else "no error"
        lines.append(f"{tool}: {what}{'' if complete else ', ended before its time was over'}")
    return None


def _culprit(complaint: Complaint, tool: str, python_lines: tuple[str, ...]) -> Culprit:
    guilty = complaint.guilty
    assert guilty is not None
    blocks = []
    for words, frames in complaint.stacks:
        shown = [f"  {frame}" for frame in frames[:_MOST_FRAMES]]
        blocks.append("\n".join([words, *shown]))
    place = guilty.place or os.path.basename(guilty.library)
    return Culprit(guilty.function, place, complaint.deed, tool, "\n".join(blocks), python_lines)


def _valgrind(
    subject: Subject, options: tuple[str, ...], limit: float
) -> tuple[list[Complaint], tuple[str, ...], bool]:
    """The errors, the Python lines of the first one, and whether the program came to its end."""
    with tempfile.TemporaryDirectory(prefix="rlstability-diagnose-", ignore_cleanup_errors=True) as directory:
        xml, lines = Path(directory, "errors.xml"), Path(directory, "lines.txt")
        before = os.environ.get("PYTHONPATH")
        environment = {
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": os.pathsep.join([SITE, *([before] if before else [])]),
            VARIABLE: f"{xml}\n{lines}",
            "OMP_NUM_THREADS": "2",
        }
        words = ["valgrind", *options, f"--xml-file={xml}", *subject.plain_words()]
        with open(Path(directory, "output.txt"), "wb") as output:
            process = HelperProcess(
                words, environment=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                complete = process.ended_within(limit)
            finally:
                end_tree(process.pid)
                process.end()
        text = xml.read_text(errors="replace") if xml.exists() else ""
        first = lines.read_text(errors="replace").split("\n\n")[0] if lines.exists() else ""
        return read_complaints(text), tuple(line for line in first.splitlines() if line), complete


def _smashed_stack(example: Trial) -> Culprit | None:
    """A function that notices at its end that its own frame was overwritten is the guilty one."""
    sections = example.verdict.sections if example.verdict else ()
    native = next((text for title, text in sections if title == "Native stack"), "")
    found = _SMASHED.search(native)
    if found is None:
        return None
    for function, place in _FRAME.findall(found[1]):
        if "chk_fail" not in function and "fortify" not in function:
            return Culprit(function, place, "writes beyond an array on its stack", "stack protector", native)
    return None


def _debug_allocator(
    subject: Subject, left: Callable[[], float], say: Callable[[str], None], lines: list[str]
) -> Culprit | None:
    """Python's own debug allocator notices damage around its blocks, and knows the line that allocated one."""
    say("Python's debug allocator: running")
    condition = Condition("debug allocator", environment={"PYTHONMALLOC": "debug", "PYTHONTRACEMALLOC": "8"})
    trial = run_trial(subject, condition, _ALLOCATOR_SHARE * left())
    block = _BLOCK.search(trial.output)
    allocated = _ALLOCATED.search(trial.output)
    if block is None:
        lines.append("Python's debug allocator: no damaged block")
        return None
    where = allocated[1].strip().splitlines()[0].strip() if allocated else "at an unknown line"
    lines.append(f"Python's debug allocator: a block allocated by {where} was damaged; it does not say by whom")
    return None
