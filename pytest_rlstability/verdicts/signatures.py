"""A name for a kind of crash: the same from run to run, machine to machine and build to build.

Made of the signal, the phase, the newest native functions that are not everybody's, and the Python frames from the
newest one to the first of the user's own. So two bugs under one Python function have two names, and one bug that is
reached from two callers has one.
"""

from __future__ import annotations

import hashlib
import ntpath  # splits paths of every system
import re
from collections.abc import Iterator, Sequence

from pytest_rlstability.model.stack_dump import Frame

_MOST_NATIVE = 2
_MOST_PYTHON = 3
_CLONE = re.compile(r"\.(?:part|isra|constprop|cold|llvm|lto_priv)(?:\.\d+)*")
_VARIANT = re.compile(
    r"(?:_(?:evex|avx2|avx512|avx|sse2|sse4_2|sse42|ssse3|erms|unaligned|rtm|512|no_vzeroupper|generic))+$"
)
_EVERYBODYS = re.compile(
    r"(?:gsignal|raise|abort|pthread_kill\w*|kill|libc_message\w*|malloc_printerr|int_malloc|int_free|int_realloc|"
    r"(?:libc_)?(?:malloc|calloc|realloc|free)|unlink_chunk|tcache_\w*|munmap_chunk|malloc_consolidate|sysmalloc|cfree|assert_fail\w*|fortify_fail|"
    r"stack_chk_fail\w*|(?:mem|str|wcs)(?:set|cpy|move|cmp|chr|len|cat|n\w+|r\w+)|ffi_\w*|call_function_pointer|ctypes_callproc|PyCFuncPtr_call|PyErr_\w*|\?+)$"
)


def signature(cause: str, phase: str, frames: Sequence[Frame], native: str = "", detail: str = "") -> str:
    """The name for a crash with these Python frames, newest first, and the text of its *native* stack. A *detail*
    is not shown, but makes a difference.

    >>> frames = [Frame("/a/env.py", 7, "step"), Frame("/a/test_env.py", 3, "test_env")]
    >>> signature("SIGSEGV", "call", frames)
    'SIGSEGV call step 17dda87a'
    >>> signature("SIGSEGV", "call", frames, "thread 7\\n  b2Body::Apply<int>.part.0 at b.cpp:4")
    'SIGSEGV call b2Body::Apply<step d24692bf'
    """
    functions = native_functions(native)
    own = own_frames(frames)
    chain = "<".join([*functions, *(frame.function for frame in own)])
    files = "<".join([*functions, *(f"{ntpath.basename(frame.file)}:{frame.function}" for frame in own)])
    digest = hashlib.sha256(f"{cause}|{phase}|{files}{detail}".encode()).hexdigest()[:8]
    return " ".join(part for part in (cause, phase, chain, digest) if part)


def own_frames(frames: Sequence[Frame]) -> list[Frame]:
    """The newest frames, to the first of the user's own: who called that is not part of the bug."""
    first = next((index for index, frame in enumerate(frames) if frame.is_users), len(frames))
    return list(frames)[: min(first + 1, _MOST_PYTHON)]


def native_functions(native: str) -> list[str]:
    """The newest functions of the thread that crashed, without what depends on the build, and without those that every
    program dies in.

    >>> native_functions("thread 7\\n  __GI_raise at raise.c:1\\n  step(int) at env.cpp:4\\n  f at a.py:1 [Python]")
    ['step']
    """
    if "stack_chk_fail" in native:
        return ["stack_chk_fail"]  # the stack was overwritten: which functions are below is not certain
    return list(dict.fromkeys(_telling(native)))[:_MOST_NATIVE]


def _telling(native: str) -> Iterator[str]:
    for line in native.splitlines():
        if line.startswith("thread ") or not line.startswith("  "):
            continue
        if line.endswith("[Python]"):
            return
        function = normalised(line.strip().partition(" at ")[0])
        if function and not _EVERYBODYS.match(function):
            yield function


def normalised(function: str) -> str:
    """*function* without its parameters, template arguments and the suffixes that compilers and libraries add.

    >>> [normalised(name) for name in ("b2World::Step(float, int)", "__strlen_evex", "grow<int, less<int> >.cold")]
    ['b2World::Step', 'strlen', 'grow']
    """
    name = _CLONE.sub("", function)
    while (shorter := re.sub(r"<[^<>]*>|\([^()]*\)", "", name)) != name:
        name = shorter
    return _VARIANT.sub("", name.strip().lstrip("_").removeprefix("GI_").lstrip("_"))
