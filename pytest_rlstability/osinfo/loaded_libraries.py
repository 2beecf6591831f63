"""The native libraries that this process has loaded, and what each runs at the end of the process. Linux only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from ctypes import (
    POINTER,
    PYFUNCTYPE,
    PyDLL,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_ssize_t,
    c_void_p,
    cast,
    sizeof,
)

_RTLD_LAZY, _RTLD_DI_LINKMAP = 1, 2
_FINI, _FINI_ARRAY, _FINI_ARRAY_SIZE = 13, 26, 28


class _Loaded(Structure):
    """C's ``struct link_map``."""


_Loaded._fields_ = (
    ("address", c_size_t),
    ("path", c_char_p),
    ("dynamic", c_void_p),
    ("next", POINTER(_Loaded)),
    ("previous", POINTER(_Loaded)),
)


class _Entry(Structure):
    """C's ``Elf_Dyn``."""

    _fields_ = (("tag", c_ssize_t), ("value", c_size_t))


_libc = PyDLL(None) if sys.platform == "linux" else None
"""Calls that keep the GIL: no thread may run Python code in between."""
_Finalizer = PYFUNCTYPE(None)
if _libc is not None:
    _libc.dlopen.restype = c_void_p
    _libc.dlopen.argtypes = [c_char_p, c_int]
    _libc.dlinfo.argtypes = [c_void_p, c_int, c_void_p]


class Library:
    """A loaded library."""

    def __init__(self, loaded: _Loaded) -> None:
        self.path = (loaded.path or b"").decode(errors="replace")
        self._loaded = loaded

    def finalize(self) -> None:
        """Run its destructors: those of C, those of static objects of C++, and what it has registered with ``atexit``.
        They must not run again."""
        entries, address = self._entries(), self._loaded.address
        if _FINI_ARRAY in entries:
            count = entries[_FINI_ARRAY_SIZE] // sizeof(c_size_t)
            for finalizer in reversed((c_size_t * count).from_address(address + entries[_FINI_ARRAY])):
                _Finalizer(finalizer)()
        if _FINI in entries:
            _Finalizer(address + entries[_FINI])()

    def _entries(self) -> dict[int, int]:
        entries, number = cast(self._loaded.dynamic, POINTER(_Entry)), 0
        found = {}
        while entries[number].tag:
            found[entries[number].tag] = entries[number].value
            number += 1
        return found


def loaded_libraries() -> Iterator[Library]:
    """In the order in which they were loaded."""
    if _libc is None:
        return
    loaded = POINTER(_Loaded)()
    _libc.dlinfo(_libc.dlopen(None, _RTLD_LAZY), _RTLD_DI_LINKMAP, byref(loaded))
    while loaded:
        yield Library(loaded.contents)
        loaded = loaded.contents.next


def exit_before_inherited_handlers() -> None:
    """Have ``exit_process()`` run the C exit handlers and C++ destructors that are registered from now on, and then end
    the process at once: the handlers that were there before are left out."""
    if _libc is not None:
        _libc.__cxa_atexit(_libc._exit, None, None)


def exit_process() -> None:
    """End this process by C's ``exit(0)``. Python's own end is not part of it."""
    if _libc is not None:
        _libc.exit(0)
