"""Reads what valgrind found, leaves out what is the interpreter's and the loader's own, and picks the guilty function.

The crash hits innocent code mostly. Guilty is who wrote, read or freed what was not his. A victim comes later than its
culprit, so the first error in time counts. Where an error only shows that an address is wrong, and not who made it so,
nobody is accused: that is the place of the crash.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

_RECORD = re.compile(r"<(error|fatal_signal)>.*?</\1>", re.DOTALL)
_NOT_GUILTY = re.compile(
    r"/(ld-linux[^/]*|ld-\d[^/]*|libc[.-][^/]*|libpthread[^/]*|libm[.-][^/]*|libdl[^/]*|libffi[^/]*|libpython[^/]*|"
    r"python[\d.]*|vgpreload[^/]*|_ctypes\.[^/]*|libstdc\+\+[^/]*|libgcc[^/]*)$"
)
_OWN_MODULES = re.compile(r"/lib-dynload/[^/]*$")
_ARRAYS = re.compile(r"/(?:numpy|numpy\.libs|torch)/")
"""Libraries that use the addresses they are given: a view of memory that is gone is not their fault."""
_CTYPES = re.compile(r"/_ctypes\.[^/]*$")
_OPENMP = re.compile(r"/lib(?:gomp|iomp5|omp)[^/]*$")
_SYSTEMS = re.compile(r"(?:/usr)?/lib(?:32|64)?/(?!.*/?python)")
"""Where the system's own libraries are: checkers report much in them (libcrypto) that is harmless."""
_HEADERS = re.compile(
    r"/include/(?:python3|c\+\+|pybind11|nanobind|numpy)|/usr/(?:local/)?include(?:/|$)|/_?core/include/numpy"
)
_TEMPLATES = re.compile(r"(?:.* )?(?:std|__gnu_cxx)::|operator (?:new|delete)|(?:.*::)?~")
"""Functions that stand for their callers: those of the C++ library are compiled into whoever uses them, and a
destructor is not to blame for who destroys."""
_DEALLOCATION = re.compile(r"_Py_Dealloc|_?Py_(?:X?DECREF|CLEAR)|\w+_dealloc$|gc_collect|_Py\w+_ClearFreeList")
_KINDS = {
    "InvalidWrite": "writes to memory that is not its own",
    "InvalidRead": "reads memory that is not its own",
    "InvalidFree": "frees memory that was not allocated, or was freed already",
    "InvalidJump": "jumps to an address that holds no code",
    "UninitCondition": "decides by memory that was never written",
    "UninitValue": "uses memory that was never written",
    "SyscallParam": "has the kernel read or write memory that is not its own",
    "Race": "accesses memory that another thread changes at the same time",
    "ConflictingAccess": "accesses memory that another thread changes at the same time",
}
"""The errors that can be the cause of a crash. Leaks, memory freed by the wrong function and the like are not."""
_UNCERTAIN = ("UninitCondition", "UninitValue", "Race", "ConflictingAccess")
"""Much correct code is reported so. It counts only where the program died in the same function or library."""
_HEAP = re.compile(r"^ +_*(?:int_|libc_)?(?:malloc|free|realloc|calloc|abort)", re.M)
SMASHED = "overwrites the stack"


@dataclass(frozen=True)
class NativeFrame:
    """A frame of a stack, as a checker names it."""

    function: str
    place: str
    library: str
    directory: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.place or os.path.basename(self.library) or '?'})"

    @property
    def name(self) -> str:
        return self.function or f"a function without a name of {os.path.basename(self.library) or 'no library'}"

    @property
    def is_suspect(self) -> bool:
        """Whether the code is neither the interpreter's nor the system's, nor that of a header of theirs."""
        name = re.split(r"[(<]", self.function)[0]
        if not self.library or _SYSTEMS.match(self.library) or _TEMPLATES.match(name):
            return False
        if _HEADERS.search(f"{self.directory}/"):
            return False
        return not any(innocent.search(self.library) for innocent in (_NOT_GUILTY, _OWN_MODULES, _ARRAYS))


Stack = tuple[NativeFrame, ...]


@dataclass(frozen=True)
class Complaint:
    """One error: its stacks, each under the words that belong to it; the first is that of the access itself. *offset*
    is where it ends in the checker's file."""

    kind: str
    what: str
    stacks: tuple[tuple[str, Stack], ...]
    about: str = ""
    """What is said about the address after the first stack."""
    offset: int = 0

    @property
    def access(self) -> Stack:
        return self.stacks[0][1]

    @property
    def _address(self) -> str:
        """What is known about the address."""
        return self.about

    @property
    def is_wild(self) -> bool:
        """Whether the address belongs to nothing. Who uses it need not be who made it wrong."""
        kinds = ("InvalidRead", "InvalidWrite", "InvalidFree", "InvalidJump")
        return self.kind in kinds and (not self._address or "is not stack'd" in self._address)

    @property
    def is_live_read(self) -> bool:
        """Whether it reads beyond a block that is in use: vectorised code does, on purpose and harmlessly."""
        return self.kind == "InvalidRead" and "alloc'd" in self._address

    @property
    def by_ctypes(self) -> bool:
        """Whether Python code did it itself, by a call of ctypes to a function of the C library."""
        for frame in self.access:
            if _CTYPES.search(frame.library):
                return True
            if frame.is_suspect:
                return False
        return False

    @property
    def guilty(self) -> NativeFrame | None:
        """The newest suspect in the stack of the access. Where that is all the interpreter's, who freed the memory,
        unless an object's last reference was given up there: another may have been given up wrongly before."""
        if (found := _newest_suspect(self.access)) is not None or self.kind not in (
            "InvalidRead",
            "InvalidWrite",
            "InvalidFree",
        ):
            return found
        for words, frames in self.stacks[1:]:
            if "free'd" in words:
                suspect = _newest_suspect(frames)
                before = frames[: frames.index(suspect)] if suspect else ()
                return None if any(_DEALLOCATION.match(frame.function) for frame in before) else suspect
        return None

    @property
    def deed(self) -> str:
        if self.kind in ("InvalidRead", "InvalidWrite") and "free'd" in self._address:
            freed_itself = _newest_suspect(self.access) is not None
            return "uses memory that was freed" if freed_itself else "frees memory that is still used"
        return _KINDS[self.kind]


@dataclass(frozen=True)
class Errors:
    """What a checker found, in order; *death* is the stack at the signal that killed the program."""

    complaints: tuple[Complaint, ...] = ()
    death: Stack = ()

    def first(self, crash: str = "") -> Complaint | None:
        """The first error that names a culprit for certain; a harmless read only if there is nothing else. *crash* is
        the native stack of the crash without a checker."""
        known = [one for one in self.complaints if one.by_ctypes or (not one.is_wild and self._is_certain(one, crash))]
        return min(known, key=lambda one: (one.is_live_read, one.offset), default=None)

    def _is_certain(self, one: Complaint, crash: str) -> bool:
        guilty = one.guilty
        if guilty is None or one.kind not in _UNCERTAIN:
            return guilty is not None
        if any(_OPENMP.search(frame.library) for _, frames in one.stacks for frame in frames):
            return False
        died_there = guilty.function in crash or any(frame.function == guilty.function for frame in self.death)
        if one.kind in ("UninitCondition", "UninitValue"):
            return died_there
        sides = [_newest_suspect(frames) for _, frames in one.stacks[:2]]
        same = all(side is not None and side.library == guilty.library for side in sides)
        return same and (died_there or _HEAP.search(crash) is not None)

    @property
    def site(self) -> NativeFrame | None:
        """Where an address was used that belongs to nothing."""
        wild = (one.access[one.kind == "InvalidJump" :] for one in self.complaints if one.is_wild)
        return next(filter(None, map(_newest_suspect, wild)), None)

    @property
    def smashed(self) -> NativeFrame | None:
        """The function that noticed at its end that its own frame was overwritten."""
        functions = ["stack_chk_fail" in frame.function for frame in self.death]
        callers = self.death[len(functions) - functions[::-1].index(True) :] if any(functions) else ()
        return next(iter(callers), None)


def _newest_suspect(frames: Stack) -> NativeFrame | None:
    """None as well if code without a library, compiled while the program ran, is newer."""
    for frame in frames:
        if frame.is_suspect:
            return frame
        if not frame.library:
            return None
    return None


def read_errors(text: str) -> Errors:
    """The errors in valgrind's XML, in order, however early the file ends."""
    complaints: list[Complaint] = []
    death: Stack = ()
    for found in _RECORD.finditer(text):
        try:
            record = ElementTree.fromstring(found[0])
        except ElementTree.ParseError:
            continue
        if found[1] == "fatal_signal":
            death = death or _stack(record.find("stack"))
        elif (complaint := _complaint(record, len(text[: found.end()].encode()))) is not None:
            complaints.append(complaint)
    return Errors(tuple(complaints), death)


def _complaint(error: ElementTree.Element, offset: int) -> Complaint | None:
    kind, words = error.findtext("kind") or "", ""
    what = words = error.findtext("what") or error.findtext("xwhat/text") or ""
    stacks: list[tuple[str, Stack]] = []
    about = ""
    for child in error:
        if child.tag in ("auxwhat", "xauxwhat"):
            words = child.text if child.tag == "auxwhat" and child.text else child.findtext("text") or ""
            about = about or (words if stacks else "")
        elif child.tag == "stack":
            stacks.append((words, _stack(child)))
    return Complaint(kind, what, tuple(stacks), about, offset) if stacks and kind in _KINDS else None


def _stack(element: ElementTree.Element | None) -> Stack:
    return () if element is None else tuple(map(_frame, element.findall("frame")))


def _frame(element: ElementTree.Element) -> NativeFrame:
    file, line = element.findtext("file"), element.findtext("line")
    place = f"{file}:{line}" if file and line else ""
    function, library = element.findtext("fn") or "", element.findtext("obj") or ""
    return NativeFrame(function, place, library, element.findtext("dir") or "")
