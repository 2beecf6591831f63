"""Reads the report of AddressSanitizer: pure text in, the guilty function out."""

from __future__ import annotations

import os
import re

_ERROR = re.compile(r"^==\d+==\s*ERROR: AddressSanitizer: ([\w-]+)(.*)$", re.M)
_FRAME = re.compile(r"^\s+#\d+ 0x[0-9a-f]+ in (.+?) (\S+)$", re.M)
_DEEDS = {
    "heap-buffer-overflow": "accesses memory beyond a block",
    "stack-buffer-overflow": "accesses memory beyond an array on the stack",
    "global-buffer-overflow": "accesses memory beyond a static array",
    "dynamic-stack-buffer-overflow": "accesses memory beyond an array on the stack",
    "heap-use-after-free": "uses memory that was freed",
    "stack-use-after-return": "uses a variable of a function that has returned",
    "attempting": "frees memory that was not allocated, or was freed already",
    "double-free": "frees memory that was freed already",
    "use-after-poison": "uses memory that is not in use",
}
"""A SEGV is not among them: it says where an address was used, not who made it wrong."""
_RUNTIME = re.compile(
    r"__interceptor|__asan|__sanitizer|operator (?:new|delete)|(?:mem|str)\w+$|free$|realloc$|v?sn?printf$"
)
_NOT_GUILTY = re.compile(r"libasan|libc[.-]|libffi|libpython|/python[\d.]*\b|_ctypes\.")


def read_report(text: str) -> tuple[str, str, str] | None:
    """The guilty function, its place and its deed; None without a report that names one.

    >>> report = '''==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x60
    ... WRITE of size 8 at 0x60 thread T0
    ...     #0 0x7f in __interceptor_memset ../asan.cpp:87
    ...     #1 0x7f in fill_row /game/rows.c:4
    ... '''
    >>> read_report(report)
    ('fill_row', 'rows.c:4', 'accesses memory beyond a block')
    """
    error = _ERROR.search(text)
    if error is None or error[1] not in _DEEDS:
        return None
    stack = re.split(r"\n\s*\n", text[error.end() :], maxsplit=1)[0]
    for function, place in _FRAME.findall(stack):
        if not _RUNTIME.match(function) and not _NOT_GUILTY.search(place):
            where = re.sub(r":(\d+):\d+$", r":\1", place)
            return function, os.path.basename(where.strip("()")), _DEEDS[error[1]]
    return None
