"""Runs memory checkers until one names the function that does the damage."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_rlstability.child.error_lines import VARIABLE, line_of
from pytest_rlstability.child.references import FOUND
from pytest_rlstability.child.references import VARIABLE as REFERENCES
from pytest_rlstability.child.script import SITE
from pytest_rlstability.diagnose.memcheck import SMASHED, Complaint, Errors, NativeFrame, read_errors
from pytest_rlstability.diagnose.sanitizer import read_report
from pytest_rlstability.diagnose.trials import PASSED, Subject, Trial, run_alone
from pytest_rlstability.model.stack_dump import parse_dump
from pytest_rlstability.model.units import format_duration

_LEAST_TIME = 5.0
_CHEAP_SHARE = 0.2
"""Of the time that is left, for each check that needs no valgrind; valgrind tells more."""
_ATTEMPTS = 3
_MOST_FRAMES = 8
_SUPPRESSIONS = str(Path(__file__).parent / "valgrind.supp")
_COMMON = ("-q", "--xml=yes", "--error-limit=no", "--num-callers=40", f"--suppressions={_SUPPRESSIONS}")
_MEMCHECK = ("--show-leak-kinds=none", "--errors-for-leak-kinds=none", "--redzone-size=128", "--freelist-vol=200000000")
VALGRIND: Mapping[str, tuple[str, ...]] = {
    "valgrind memcheck": (*_COMMON, *_MEMCHECK, "--undef-value-errors=no"),
    "valgrind memcheck, uninitialised memory": (*_COMMON, *_MEMCHECK, "--track-origins=yes"),
    "valgrind helgrind": (*_COMMON, "--tool=helgrind", "--history-level=full"),
}
_INSTALL = "apt-get install valgrind"
_SMASHED = re.compile(r"^\s*_*stack_chk_fail\w* at .*\n((?:\s+.*\n?)+)", re.M)
_COPIED = re.compile(
    r"thread .*\n\s+_*(?:GI_)?(?:((?:mem|str|wcs)\w+) at .*\n(?:\s+(?:string_at|wstring_at|\?+) .*\n)*\s+ffi_call |"
    r"(\w+) at \S*/_ctypes/\w+\.c:)"
)
"""A crash in a copy by ctypes, or in ctypes itself."""
_FRAME = re.compile(r"^\s+(\S.*?) at (\S+)(?: \[Python\])?$", re.M)
_BLOCK = re.compile(r"Debug memory block at address.*?(?=\nFatal Python error|\Z)", re.DOTALL)
_ALLOCATED = re.compile(r"Memory block allocated at \(most recent call first\):\n((?:  File .*\n)+)")
_GLIBC = re.compile(r"^((?:free|malloc|realloc|calloc|munmap_chunk|corrupted|double free|malloc_\w+)\b.*)$", re.M)
_NEEDS_SANITIZER = re.compile(r"ASan runtime does not come first|undefined symbol: __asan_")


@dataclass(frozen=True)
class Culprit:
    """Who does the damage, by which tool, with what it showed."""

    function: str
    place: str
    deed: str
    tool: str
    details: str
    python_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """What the checkers found: a culprit, or at least where a wrong address was used."""

    culprit: Culprit | None = None
    site: str = ""


class Checkers:
    """``check()`` runs one checker after another; the first that names a guilty function wins. *lines* gets what each
    said."""

    def __init__(
        self, subject: Subject, example: Trial, left: Callable[[], float], say: Callable[[str], None], lines: list[str]
    ) -> None:
        self._subject, self._example = subject, example
        self._left, self._say, self._lines = left, say, lines
        self._native = example.native_stack

    def check(self) -> Checked:
        culprit = self._smashed_stack() or self._ctypes_call() or self.sanitizer() or self._debug_allocator()
        site = ""
        if culprit is None and shutil.which("valgrind") is None:
            self._lines.append(f"valgrind: not installed ({_INSTALL}); it names the code that damages memory")
        elif culprit is None:
            for tool, options in VALGRIND.items():
                errors, culprit = self._valgrind(tool, options)
                site = site or ("" if errors.site is None else str(errors.site))
                if culprit is not None:
                    break
        if culprit is None:
            self._glibc()
            return Checked(site=site)
        self._lines.append(f"{culprit.tool}: {culprit.function} ({culprit.place}) {culprit.deed}")
        return Checked(culprit)

    def check_passing(self) -> Checked:
        """For one that never died here, such as a race that did not happen: only errors that are certain without a
        crash: writes, frees, and reads of freed memory."""
        culprit = self._debug_allocator()
        if culprit is None and shutil.which("valgrind") is not None:
            tool = next(iter(VALGRIND))
            _, culprit = self._valgrind(tool, VALGRIND[tool])
        if culprit is not None:
            self._lines.append(f"{culprit.tool}: {culprit.function} ({culprit.place}) {culprit.deed}")
        return Checked(culprit)

    def _smashed_stack(self) -> Culprit | None:
        """A function notices at its end that its own frame was overwritten. pystack names the function after it: the
        call that does not return is often the last instruction."""
        found = _SMASHED.search(self._native) if "(by gdb)" in self._native else None
        for function, place in _FRAME.findall(found[1]) if found else ():
            if "chk_fail" not in function:
                return _smashed(function, os.path.basename(place), self._native)
        return None

    def _ctypes_call(self) -> Culprit | None:
        """Python code that died in a copy or search by ctypes gave it a wrong address: nobody else is in between."""
        verdict = self._example.verdict
        place = None if verdict is None else verdict.location
        faulted = verdict is not None and verdict.facts.get("signal") in ("SIGSEGV", "SIGBUS")
        if place is None or not faulted or (called := _COPIED.match(self._native)) is None:
            return None
        where = f"{os.path.basename(place.file)}:{place.line}"
        return Culprit(
            place.function, where, _by_ctypes(called[1] or called[2]), "native stack", self._native, (str(place),)
        )

    def sanitizer(self) -> Culprit | None:
        """What a build with AddressSanitizer says; it is started with its library if it needs that."""
        output = self._example.output
        if _NEEDS_SANITIZER.search(output) and (library := _sanitizer_library()):
            self._say("AddressSanitizer: running")
            environment = {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
            _, output = self._run([], environment, _CHEAP_SHARE * self._left())
        guilty = read_report(output)
        return None if guilty is None else Culprit(*guilty, "AddressSanitizer", output[-4000:])

    def _debug_allocator(self) -> Culprit | None:
        """Python's own debug allocator notices damage around its blocks, and knows the line that allocated one. In the
        same run the references of objects are counted."""
        self._say("Python's debug allocator and reference counts: running")
        environment = {"PYTHONMALLOC": "debug", "PYTHONTRACEMALLOC": "8", **_attached()}
        with tempfile.TemporaryDirectory(prefix="rlstability-diagnose-", ignore_cleanup_errors=True) as directory:
            found = Path(directory, "references.txt")
            limit = _CHEAP_SHARE * self._left() / _ATTEMPTS
            for _ in range(_ATTEMPTS):  # looking at an object that is gone may kill the process before it is told
                status, output = self._run([], {**environment, REFERENCES: str(found)}, limit)
                if status is None or status >= 0:
                    break
            written = found.read_text(errors="replace").splitlines() if found.exists() else []
        if status == FOUND and written:
            return _loses_reference(written[0], written[1:])
        allocated = _ALLOCATED.search(output)
        said = "no damaged block"
        if _BLOCK.search(output) is not None:
            where = allocated[1].strip().splitlines()[0].strip() if allocated else "at an unknown line"
            said = f"a block allocated by {where} was damaged; it does not say by whom"
        over = ", ended before its time was over" if status is None else ""
        self._lines.append(f"Python's debug allocator: {said}, no reference missing{over}")
        return None

    def _glibc(self) -> None:
        """The C library's own checks notice damage when memory is freed, and do not say who did it."""
        library, limit = _debug_library(), _CHEAP_SHARE * self._left()
        if limit < 1:
            self._lines.append("glibc's checks: not run, the time is over (--for)")
            return
        if not library:
            self._lines.append("glibc's checks: libc_malloc_debug.so.0 not found (apt-get install libc6)")
            return
        self._say("glibc's checks: running")
        environment = {"LD_PRELOAD": library, "GLIBC_TUNABLES": "glibc.malloc.check=3", "PYTHONMALLOC": "malloc"}
        _, output = self._run([], environment, limit)
        found = _GLIBC.search(output)
        said = f"{found[1]}; it does not say by whom" if found else "no damaged block"
        self._lines.append(f"glibc's checks: {said}")

    def _valgrind(self, tool: str, options: tuple[str, ...]) -> tuple[Errors, Culprit | None]:
        limit = self._left()
        if limit < _LEAST_TIME:
            self._lines.append(f"{tool}: not run, the time is over (--for)")
            return Errors(), None
        self._say(f"{tool}: running, for at most {format_duration(limit)}")
        with tempfile.TemporaryDirectory(prefix="rlstability-diagnose-", ignore_cleanup_errors=True) as directory:
            xml, lines = Path(directory, "errors.%p.xml"), Path(directory, "lines.txt")
            environment = {"PYTHONMALLOC": "malloc", VARIABLE: f"{xml}\n{lines}", "OMP_NUM_THREADS": "2",
                           "PYTHONFAULTHANDLER": "1", **_attached()}  # fmt: skip
            children = f"--trace-children={'no' if self._subject.is_python else 'yes'}"
            status, output = self._run(["valgrind", *options, children, f"--xml-file={xml}"], environment, limit)
            logs = sorted(Path(directory).glob("errors.*.xml"), key=lambda path: path.stat().st_mtime)
            found = [read_errors(path.read_text(errors="replace")) for path in logs]
            python_lines = lines.read_text(errors="replace") if lines.exists() else ""
        errors = next((one for one in found if one.first(self._native)), max(found, key=_amount, default=Errors()))
        culprit = self._culprit(errors, tool, python_lines, output)
        if culprit is None:
            amount = len(errors.complaints)
            said = f"{amount} errors, none that names a culprit" if amount else "no error"
            self._lines.append(f"{tool}: {said}{', ended before its time was over' if status is None else ''}")
        return errors, culprit

    def _culprit(self, errors: Errors, tool: str, written: str, output: str) -> Culprit | None:
        complaint = errors.first(self._native)
        if complaint is None:
            if (smashed := errors.smashed) is None:
                return None
            return _smashed(smashed.name, _place(smashed), _stacks([("", errors.death)]))
        if self._example.word == PASSED and complaint.is_live_read:
            return None
        lines = line_of(written, complaint.offset) or _died_at(output)
        if complaint.guilty is not None and not complaint.by_ctypes:
            guilty = complaint.guilty
            return Culprit(guilty.name, _place(guilty), complaint.deed, tool, _stacks(complaint.stacks), lines)
        return _by_python(complaint, tool, lines)

    def _run(self, prefix: list[str], environment: Mapping[str, str], limit: float) -> tuple[int | None, str]:
        """Run the subject in one process without a watch: its exit status, None if it was ended, and its output."""
        with tempfile.TemporaryFile() as output:
            status = run_alone([*prefix, *self._subject.plain_words()], environment, output, limit, [])
            output.seek(0)
            return status, output.read().decode(errors="replace")


def _attached() -> dict[str, str]:
    """The environment in which every Python process below looks at what it is asked to."""
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([SITE, *([before] if before else [])])}


def _amount(errors: Errors) -> int:
    return len(errors.complaints) + bool(errors.death)


def _place(frame: NativeFrame) -> str:
    return frame.place or os.path.basename(frame.library)


def _stacks(stacks: tuple[tuple[str, tuple[NativeFrame, ...]], ...] | list[tuple[str, tuple[NativeFrame, ...]]]) -> str:
    return "\n".join("\n".join([words, *(f"  {one}" for one in frames[:_MOST_FRAMES])]) for words, frames in stacks)


def _died_at(output: str) -> tuple[str, ...]:
    """The user's lines in the stack that faulthandler printed, newest first."""
    dump = parse_dump(output)
    frames = next((thread.frames for thread in dump.threads if thread.current), ())
    return tuple(f"{frame.file}:{frame.line} in {frame.function}" for frame in frames if frame.is_users)


def _by_python(complaint: Complaint, tool: str, lines: tuple[str, ...]) -> Culprit | None:
    """Python code that gives ctypes a wrong address or size is guilty itself."""
    if not lines:
        return None
    place, _, function = lines[0].rpartition(" in ")
    called = complaint.access[0].name
    return Culprit(function, os.path.basename(place), _by_ctypes(called), tool, _stacks(complaint.stacks), lines)


def _by_ctypes(called: str) -> str:
    return f"has ctypes use memory that is not its own (by {called})"


def _smashed(function: str, place: str, details: str) -> Culprit:
    """The function whose frame was overwritten notices it; it may have given the address to another."""
    return Culprit(f"{function} or a function that it calls", place, SMASHED, "stack protector", details)


def _loses_reference(line: str, calls: list[str]) -> Culprit:
    place, _, function = line.rpartition(" in ")
    guilty, where = (" or ".join(calls), f"called at {os.path.basename(place)}") if calls else (function, place)
    deed = "gives up a reference that it does not own"
    details = f"{line}: after it an object has fewer references than are held"
    return Culprit(guilty, where, deed, "reference counts", details, (line,))


def _sanitizer_library() -> str:
    """The path of AddressSanitizer's run-time library; empty without a compiler."""
    return _asked(["gcc", "-print-file-name=libasan.so"])


def _debug_library() -> str:
    """The path of the C library's debug allocator; empty where there is none."""
    for path in ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib"):
        if Path(path, "libc_malloc_debug.so.0").exists():
            return f"{path}/libc_malloc_debug.so.0"
    return ""


def _asked(words: list[str]) -> str:
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    path = answer.stdout.strip()
    return path if os.path.isabs(path) else ""
