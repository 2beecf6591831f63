"""Reading a saved model's container without trusting it."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pytest_rlstability.units import format_size

ENTRY_LIMIT = 64 * 2**20
"""No entry that is read whole is larger than this; weights are never read."""

_BOMB_SIZE = 16 * 2**20
_BOMB_RATIO = 100
_MAX_ENTRIES = 100_000
_ENCRYPTED = 0x1


class RefusedError(Exception):
    """The file cannot or should not be read; the message says why, in one line."""


def is_zip(path: Path) -> bool:
    """Whether *path* begins as a zip does. A truncated zip still does, and is then refused by name."""
    try:
        with open(path, "rb") as stream:
            return stream.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
    except OSError as error:
        raise RefusedError(f"cannot read {path}: {error.strerror or error}") from error


@contextmanager
def open_archive(source: Path | IO[bytes], name: str) -> Iterator[zipfile.ZipFile]:
    """The zip *source*, after every name and declared size in its directory was found harmless.

    ``with open_archive(Path("model.zip"), "model.zip") as archive: ...`` raises `RefusedError` for what is no zip, is
    cut short, is encrypted, has names that climb out of a directory, or would unpack to far more than it holds.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            _check_directory(archive, name)
            yield archive
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise RefusedError(f"{name} is not a whole zip file: {error}") from error
    except NotImplementedError as error:
        raise RefusedError(f"{name} uses a compression that cannot be read here: {error}") from error
    except OSError as error:
        raise RefusedError(f"cannot read {name}: {error.strerror or error}") from error


def read_entry(archive: zipfile.ZipFile, name: str, limit: int = ENTRY_LIMIT) -> bytes:
    """The bytes of entry *name*; more than *limit* is refused before a byte of it is read."""
    info = archive.getinfo(name)
    if info.file_size > limit:
        raise RefusedError(
            f"entry {name!r} is {format_size(info.file_size)}; more than {format_size(limit)} is not read"
        )
    # zipfile stops at the declared size, so a directory that lies about it cannot make this grow.
    return archive.read(info)


def _check_directory(archive: zipfile.ZipFile, name: str) -> None:
    entries = archive.infolist()
    if len(entries) > _MAX_ENTRIES:
        raise RefusedError(f"{name} has {len(entries)} entries; no saved model has more than {_MAX_ENTRIES}")
    # A zip of zips that was cut short ends in a whole directory of an inner one, and would pass for that.
    if entries and min(entry.header_offset for entry in entries) > 0:
        raise RefusedError(f"{name} is not a whole zip file: it begins with something its directory does not list")
    seen: set[str] = set()
    for entry in entries:
        _check_entry(entry)
        if entry.filename in seen:
            raise RefusedError(f"entry {entry.filename!r} appears twice: readers disagree on which one counts")
        seen.add(entry.filename)


def _check_entry(entry: zipfile.ZipInfo) -> None:
    parts = re.split(r"[\\/]", entry.filename)
    if ".." in parts or entry.filename.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", entry.filename):
        raise RefusedError(f"entry {entry.filename!r} would be written outside the directory it is unpacked to")
    if entry.flag_bits & _ENCRYPTED:
        raise RefusedError(f"entry {entry.filename!r} is encrypted")
    if entry.file_size > _BOMB_SIZE and entry.file_size > _BOMB_RATIO * max(1, entry.compress_size):
        packed, unpacked = format_size(entry.compress_size), format_size(entry.file_size)
        raise RefusedError(f"entry {entry.filename!r} unpacks from {packed} to {unpacked}: a zip bomb")
