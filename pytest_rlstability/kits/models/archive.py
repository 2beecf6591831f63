"""Reading a saved model's container without trusting it, and writing it again in the one form that is loaded."""

from __future__ import annotations

import json
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Literal

from pytest_rlstability.model.units import escaped, format_size

ENTRY_LIMIT = 64 * 2**20
"""No entry that is read whole is larger than this; weights are never read."""

_BOMB_SIZE = 16 * 2**20
_BOMB_RATIO = 100
_MAX_ENTRIES = 100_000
_ENCRYPTED, _DESCRIPTOR_FOLLOWS = 0x1, 0x8
_EXTRA_FIELDS = {0x0001: "large sizes", 0x4246: "torch's padding", 0x5455: "times", 0x7875: "owner"}
_END = 22
_END_64 = 56 + 20

Word = Literal["no code found", "code found", "not judged"]
"""What can be said about a file; there is no word for *harmless*."""


def as_text(*lines: str) -> str:
    """*lines*, each of which stays one line."""
    return "".join(escaped(line) + "\n" for line in lines)


class RefusedError(Exception):
    """The file cannot or should not be read; the message says why, in one line, and *word* says what was found."""

    def __init__(self, message: str, word: Word = "not judged") -> None:
        super().__init__(escaped(message))
        self.word = word

    def within(self, where: str) -> RefusedError:
        return RefusedError(f"{where}{self}", self.word)


@dataclass
class Budget:
    """What may be spent on one file, however many pickles and archives are inside it."""

    opcodes: int = 5_000_000
    unpacked: int = 256 * 2**20

    def take_opcode(self) -> None:
        self.opcodes -= 1
        if self.opcodes < 0:
            raise RefusedError("a file whose pickles have more than 5 million opcodes is not read")

    def take_unpacked(self, size: int) -> None:
        self.unpacked -= size
        if self.unpacked < 0:
            raise RefusedError("a file whose pickles and settings unpack to more than 256 MiB is not read")


@contextmanager
def open_archive(source: Path | IO[bytes], name: str) -> Iterator[zipfile.ZipFile]:
    """The zip *source*, after every byte of it was found to belong to one entry or to its one directory.

    `RefusedError` for what is no whole zip, is encrypted or a bomb, or what two readers could read differently.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            _check_directory(archive, name)
            _check_layout(archive, name)
            yield archive
    except (zipfile.BadZipFile, EOFError, zlib.error, struct.error) as error:
        raise RefusedError(f"{name} is not a whole zip file: {error}") from error
    except NotImplementedError as error:
        raise RefusedError(f"{name} uses a compression that cannot be read here: {error}") from error
    except OSError as error:
        raise RefusedError(f"cannot read {name}: {error.strerror or error}") from error


@contextmanager
def open_nested(archive: zipfile.ZipFile, name: str, budget: Budget) -> Iterator[zipfile.ZipFile | None]:
    """The zip inside *archive* that entry *name* is, or None when the entry does not begin as a zip does."""
    info = archive.getinfo(name)
    with archive.open(info) as stream, SpooledTemporaryFile(ENTRY_LIMIT) as unpacked:
        if stream.read(4) != b"PK\x03\x04":
            yield None
            return
        stream.seek(0)
        source: IO[bytes] = stream
        if info.compress_type != zipfile.ZIP_STORED:  # to go back and forth in it would unpack it each time
            budget.take_unpacked(info.file_size)
            shutil.copyfileobj(stream, unpacked)
            source = unpacked
        with open_archive(source, name) as nested:
            yield nested


def read_entry(archive: zipfile.ZipFile, name: str, limit: int = ENTRY_LIMIT, budget: Budget | None = None) -> bytes:
    """The bytes of entry *name*; more than *limit* is refused before a byte of it is read."""
    info = archive.getinfo(name)
    if info.file_size > limit:
        size, most = format_size(info.file_size), format_size(limit)
        raise RefusedError(f"entry {name!r} is {size}; more than {most} is not read")
    (budget or Budget()).take_unpacked(info.file_size)
    # zipfile stops at the declared size, so a directory that lies about it cannot make this grow.
    return archive.read(info)


def rewrite(source: Path, target: Path, left_out: Collection[str] = ()) -> None:
    """Write the archive *source* again as *target*: the same entries, stored plainly, and nothing else.

    Archives inside it are written again too. The settings *left_out* are taken out of the entry ``data``.
    """
    with open_archive(source, source.name) as archive, zipfile.ZipFile(target, "x") as out:
        for name in archive.namelist():
            with open_nested(archive, name, Budget(unpacked=2**40)) as nested:
                if nested is not None:
                    _store(out, name, _rewritten(nested))
                elif name == "data":
                    settings = json.loads(archive.read(name)).items()
                    kept = {key: value for key, value in settings if key not in left_out}
                    out.writestr(zipfile.ZipInfo(name), json.dumps(kept))
                else:
                    _store(out, name, archive.open(name))


def _rewritten(archive: zipfile.ZipFile) -> IO[bytes]:
    stream = SpooledTemporaryFile(ENTRY_LIMIT)  # noqa: SIM115 (_store closes it)
    with zipfile.ZipFile(stream, "w") as out:
        for name in archive.namelist():
            _store(out, name, archive.open(name))
    stream.seek(0)
    return stream


def _store(out: zipfile.ZipFile, name: str, stream: IO[bytes]) -> None:
    with stream, out.open(zipfile.ZipInfo(name), "w", force_zip64=True) as entry:
        shutil.copyfileobj(stream, entry)


def _check_directory(archive: zipfile.ZipFile, name: str) -> None:
    entries = archive.infolist()
    if len(entries) > _MAX_ENTRIES:
        raise RefusedError(f"{name} has {len(entries)} entries; no saved model has more than {_MAX_ENTRIES}")
    seen: dict[str, str] = {}
    for entry in entries:
        _check_entry(entry)
        twin = seen.setdefault(entry.filename.casefold(), entry.filename)
        if twin != entry.filename:
            raise RefusedError(f"entries {twin!r} and {entry.filename!r} differ only in case: readers disagree on them")
    if len(seen) < len(entries):
        raise RefusedError(f"an entry of {name} appears twice: readers disagree on which one counts")


def _check_entry(entry: zipfile.ZipInfo) -> None:
    parts = re.split(r"[\\/]", entry.orig_filename)
    if ".." in parts or entry.filename.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", entry.filename):
        raise RefusedError(f"entry {entry.filename!r} would be written outside the directory it is unpacked to")
    if not re.fullmatch(r"[\x20-\x7e]+", entry.orig_filename):
        raise RefusedError(f"entry {entry.orig_filename!r} has a name that no saved model uses")
    if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise RefusedError(f"entry {entry.filename!r} is a link or a device")
    _check_extra(entry, entry.extra)
    if entry.flag_bits & _ENCRYPTED:
        raise RefusedError(f"entry {entry.filename!r} is encrypted")
    if entry.file_size > _BOMB_SIZE and entry.file_size > _BOMB_RATIO * max(1, entry.compress_size):
        packed, unpacked = format_size(entry.compress_size), format_size(entry.file_size)
        raise RefusedError(f"entry {entry.filename!r} unpacks from {packed} to {unpacked}: a zip bomb")


def _check_extra(entry: zipfile.ZipInfo, data: bytes) -> None:
    """Of the fields that a zip can add to an entry, one gives it another name to some readers: only some may be."""
    while data:
        kind, size = struct.unpack_from("<2H", data)
        if kind not in _EXTRA_FIELDS or size > len(data) - 4:
            raise RefusedError(f"entry {entry.filename!r} has an extra field {kind:#06x}: readers disagree on it")
        data = data[4 + size :]


def _check_layout(archive: zipfile.ZipFile, name: str) -> None:
    """Entries from the first byte on, one directory, one end: without gaps, comments or bytes that belong to none."""
    stream, position = archive.fp, 0
    assert stream is not None
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        if entry.header_offset != position:
            raise RefusedError(f"{name} is not a whole zip file: it holds something its directory does not list")
        position = _end_of_entry(stream, entry)
    end = stream.seek(0, 2) - _END
    if archive.comment or _at(stream, end, 4) != b"PK\5\6":
        raise RefusedError(f"{name} has a comment or other bytes behind its directory: readers disagree on them")
    if end >= _END_64 and _at(stream, end - 20, 4) == b"PK\6\7":
        end -= _END_64
        if _at(stream, end, 4) != b"PK\6\6":
            raise RefusedError(f"{name} has two directories: readers disagree on which one counts")
    if position != archive.start_dir or not _is_directory(_at(stream, position, end - position), archive):
        raise RefusedError(f"{name} is not a whole zip file: it holds something its directory does not list")


def _at(stream: IO[bytes], position: int, size: int) -> bytes:
    stream.seek(position)
    return stream.read(size)


def _is_directory(data: bytes, archive: zipfile.ZipFile) -> bool:
    """Whether *data* is the directory of *archive* from its first byte to its last."""
    position = count = 0
    while data[position : position + 4] == b"PK\1\2":
        position += 46 + sum(struct.unpack_from("<3H", data, position + 28))
        count += 1
    return position == len(data) and count == len(archive.infolist())


def _end_of_entry(stream: IO[bytes], entry: zipfile.ZipInfo) -> int:
    """Where *entry* ends; `RefusedError` when its own header is not what the directory says."""
    header = _at(stream, entry.header_offset, 30)
    flags, method = struct.unpack_from("<2H", header, 6)
    crc, packed, unpacked, name_size, extra_size = struct.unpack_from("<3I2H", header, 14)
    sizes = (entry.compress_size, entry.file_size)
    told = crc == entry.CRC and packed in (sizes[0], 0xFFFFFFFF) and unpacked in (sizes[1], 0xFFFFFFFF)
    same = stream.read(name_size) == entry.orig_filename.encode() and (flags, method) == (
        entry.flag_bits, entry.compress_type
    )  # fmt: skip
    _check_extra(entry, stream.read(extra_size))
    if header[:4] != b"PK\3\4" or not same or not (told or flags & _DESCRIPTOR_FOLLOWS):
        raise RefusedError(f"not a whole zip file: entry {entry.filename!r} is not what the directory says")
    position: int = entry.header_offset + 30 + name_size + extra_size + entry.compress_size
    if not flags & _DESCRIPTOR_FOLLOWS:
        return position
    found = _at(stream, position, 24)
    for form in ("<3I", "<I2Q") if max(sizes) < 2**32 else ("<I2Q",):
        record = struct.pack(form, entry.CRC, *sizes)
        for marked in (b"PK\7\10" + record, record):
            if found.startswith(marked):
                return position + len(marked)
    raise RefusedError(f"not a whole zip file: entry {entry.filename!r} does not end as the directory says")
