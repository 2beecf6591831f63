"""Reads what valgrind found, leaves out what is the interpreter's and the loader's own, and picks the guilty function.

The crash hits innocent code mostly. Guilty is who wrote, read or freed what was not his: the first error in time whose
stack leads to code that is neither the interpreter nor the C library.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_ERROR = re.compile(r"<error>.*?</error>", re.DOTALL)
_NOT_GUILTY = re.compile(
    r"/(ld-linux[^/]*|ld-\d[^/]*|libc[.-][^/]*|libpthread[^/]*|libm[.-][^/]*|libdl[^/]*|libffi[^/]*|libpython[^/]*|"
    r"python[\d.]*|vgpreload[^/]*|_ctypes\.[^/]*|libstdc\+\+[^/]*|libgcc[^/]*)$"
)
_OWN_MODULES = re.compile(r"/lib-dynload/[^/]*$")
_SYSTEMS = re.compile(r"(?:/usr)?/lib(?:32|64)?/(?!.*/?python)")
"""Where the system's own libraries are: checkers report much in them (libcrypto) that is harmless."""
_KINDS = {
    "InvalidWrite": "writes to memory that is not its own",
    "InvalidRead": "reads memory that is not its own",
    "InvalidFree": "frees memory that was not allocated, or was freed already",
    "MismatchedFree": "frees memory by the wrong function",
    "InvalidJump": "jumps to an address that holds no code",
    "InvalidMemPool": "misuses a memory pool",
    "UninitCondition": "decides by memory that was never written",
    "UninitValue": "uses memory that was never written",
    "SyscallParam": "passes memory that was never written, or is not its own, to the kernel",
    "Overlap": "copies between blocks that overlap",
    "Race": "accesses memory that another thread changes at the same time",
    "ConflictingAccess": "accesses memory that another thread changes at the same time",
}


@dataclass(frozen=True)
class NativeFrame:
    """A frame of a stack, as a checker names it."""

    function: str
    place: str
    library: str

    def __str__(self) -> str:
        return f"{self.function} ({self.place or os.path.basename(self.library) or '?'})"

    @property
    def is_suspect(self) -> bool:
        """Whether the code is neither the interpreter's nor the system's."""
        if not self.function or not self.library or _SYSTEMS.match(self.library):
            return False
        return not _NOT_GUILTY.search(self.library) and not _OWN_MODULES.search(self.library)


@dataclass(frozen=True)
class Complaint:
    """One error: its stacks, each under the words that belong to it; the first is that of the access itself."""

    kind: str
    what: str
    stacks: tuple[tuple[str, tuple[NativeFrame, ...]], ...]

    @property
    def guilty(self) -> NativeFrame | None:
        """The newest suspect in the stack of the access; where that is all the interpreter's, in the others: an object
        that was freed too early is found by the interpreter, but who freed it is in the second stack."""
        others = sorted(self.stacks[1:], key=lambda stack: "free'd" not in stack[0])
        for _, frames in (*self.stacks[:1], *others):
            for frame in frames:
                if frame.is_suspect:
                    return frame
        return None

    @property
    def deed(self) -> str:
        return _KINDS.get(self.kind, self.what.lower())


def read_complaints(text: str) -> list[Complaint]:
    """The errors in valgrind's XML, in order, however early the file ends."""
    return list(_complaints(_ERROR.findall(text)))


def _complaints(blocks: Iterable[str]) -> Iterator[Complaint]:
    for block in blocks:
        try:
            error = ElementTree.fromstring(block)
        except ElementTree.ParseError:
            continue
        what = error.findtext("what") or error.findtext("xwhat/text") or ""
        stacks: list[tuple[str, tuple[NativeFrame, ...]]] = []
        words = what
        for child in error:
            if child.tag == "auxwhat":
                words = child.text or ""
            elif child.tag == "xauxwhat":
                words = child.findtext("text") or ""
            elif child.tag == "stack":
                stacks.append((words, tuple(map(_frame, child.findall("frame")))))
        if stacks:
            yield Complaint(error.findtext("kind") or "", what, tuple(stacks))


def _frame(element: ElementTree.Element) -> NativeFrame:
    file, line = element.findtext("file"), element.findtext("line")
    place = f"{file}:{line}" if file and line else ""
    return NativeFrame(element.findtext("fn") or "", place, element.findtext("obj") or "")


def first_guilty(complaints: Sequence[Complaint]) -> Complaint | None:
    """The first error for which somebody but the interpreter can be blamed. One that writes or frees comes first: who
    reads may be its victim."""
    with_suspect = [complaint for complaint in complaints if complaint.guilty is not None]
    damage = [one for one in with_suspect if one.kind in ("InvalidWrite", "InvalidFree", "MismatchedFree")]
    return next(iter(damage or with_suspect), None)
