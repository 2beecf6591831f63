"""What kind of saved model a file is, and the pickles inside it, read and judged but never loaded."""

from __future__ import annotations

import base64
import binascii
import json
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from pytest_rlstability.kits.models.archive import Budget, RefusedError, Word, open_archive, open_nested, read_entry
from pytest_rlstability.kits.models.judge import NOBODY, Trust, judge
from pytest_rlstability.kits.models.pickles import TORCH_MAGIC, Reading, maker, read_pickle, read_pickles
from pytest_rlstability.kits.models.table import STORAGES

_TEXT_LIMIT = 64 * 2**10
_INFO_LINE = re.compile(r"-\s*([^:]+):\s*(.*)")
_TORCH_ENTRY = re.compile(
    r"([^/]+)/(data\.pkl|data/\d+|version|byteorder|\.data/serialization_id|\.format_version|\.storage_alignment)"
)


@dataclass(frozen=True)
class Part:
    """One pickle in a file; *attribute* is its name on an SB3 model, *code* the globals that make something to call."""

    where: str
    reading: Reading
    attribute: str = ""
    code: tuple[str, ...] = ()

    @property
    def entry(self) -> str:
        """What a person calls it."""
        return self.attribute or self.where


@dataclass(frozen=True)
class Contents:
    """A saved model's pickles, its plain settings, and what it says about the machine that wrote it."""

    kind: str
    parts: tuple[Part, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    written_by: Mapping[str, str] = field(default_factory=dict)
    is_zip: bool = True


def read_contents(path: Path, trust: Trust = NOBODY) -> Contents:
    """Read *path*, an SB3 zip, a torch file or a pickle; `RefusedError` for everything else and for hostile files."""
    try:
        with open(path, "rb") as stream:
            return _Reader(path.name, trust).read(stream)
    except OSError as error:
        raise RefusedError(f"cannot read {path}: {error.strerror or error}") from error


class _Reader:
    """Reads one file, once, within one budget."""

    def __init__(self, name: str, trust: Trust) -> None:
        self.name, self.trust, self.budget = name, trust, Budget()

    def read(self, stream: IO[bytes]) -> Contents:
        head = stream.read(4)
        stream.seek(0)
        if head not in (b"PK\x03\x04", b"PK\x05\x06"):
            return self._read_pickles(stream)
        with open_archive(stream, self.name) as archive:
            names = archive.namelist()
            if "data" in names:
                return self._read_sb3(archive)
            if any(name.endswith("data.pkl") for name in names):
                return Contents("torch file", (self._torch_part(archive, self.name),))
        raise RefusedError(
            f"{self.name} is a zip, but neither an SB3 model (no 'data' entry) nor a torch file (no 'data.pkl')"
        )

    def _read_sb3(self, archive: zipfile.ZipFile) -> Contents:
        settings = _json(read_entry(archive, "data", budget=self.budget))
        parts = list(self._attribute_parts(settings))
        for name in archive.namelist():
            if name.endswith(".pth"):
                parts += self._weights(archive, name)
        return Contents("SB3 model", tuple(parts), settings, _written_by(archive))

    def _attribute_parts(self, settings: Mapping[str, Any]) -> Iterator[Part]:
        for attribute, value in settings.items():
            if isinstance(value, dict) and ":serialized:" in value:
                try:
                    data = base64.b64decode(value[":serialized:"], validate=True)
                except (binascii.Error, TypeError, ValueError) as error:
                    raise RefusedError(f"{attribute!r} in entry 'data' is not base64: {error}") from error
                yield self._part(f"{attribute!r} in entry 'data'", data, attribute)

    def _part(self, where: str, data: bytes, attribute: str = "") -> Part:
        try:
            reading = read_pickle(data, self.budget)
        except RefusedError as error:
            raise error.within(f"{where}: ") from error
        if reading.externals and attribute:
            raise RefusedError(f"{where} refers to something outside it")
        return Part(where, reading, attribute, judge(reading, where, self.trust, self.budget))

    def _weights(self, archive: zipfile.ZipFile, name: str) -> tuple[Part, ...]:
        with open_nested(archive, name, self.budget) as nested:
            if nested is not None:
                return (self._torch_part(nested, name),)
        stream = BytesIO(read_entry(archive, name, budget=self.budget))
        return self._judged(stream, f"entry {name!r}")

    def _torch_part(self, archive: zipfile.ZipFile, name: str) -> Part:
        roots = set()
        for entry in archive.namelist():
            known = _TORCH_ENTRY.fullmatch(entry)
            if known is None:
                word: Word = "code found" if "/code/" in entry else "not judged"
                raise RefusedError(f"entry {entry!r} in {name} does not belong to saved tensors", word)
            roots.add(known[1])
        root = next(iter(roots))
        entry = f"{root}/data.pkl"
        if len(roots) != 1 or entry not in archive.namelist():
            raise RefusedError(f"{name} holds more or less than one set of saved tensors")
        part = self._part(f"{entry!r} in {name}", read_entry(archive, entry, budget=self.budget))
        found = {one.filename: one.file_size for one in archive.infolist() if one.filename.startswith(f"{root}/data/")}
        needed = {} if self.trust.everything else _weight_sizes(part)
        for key, size in needed.items():
            if found.pop(f"{root}/data/{key}", None) != size:  # torch would read past the end of it
                raise RefusedError(f"storage {key!r} in {name} is missing or not as large as its tensors need")
        if found and not self.trust.everything:
            raise RefusedError(f"entry {min(found)!r} in {name} belongs to no tensor")
        return part

    def _read_pickles(self, stream: IO[bytes]) -> Contents:
        if tarfile.is_tarfile(stream):  # the oldest torch files were; torch reads one even if it begins as a pickle
            raise RefusedError(f"{self.name} is a tar file, which is not read: save it with a newer torch")
        stream.seek(0)
        parts = self._judged(stream, self.name)
        return Contents(_pickle_kind(parts[0].reading.value), parts, is_zip=False)

    def _judged(self, stream: IO[bytes], where: str) -> tuple[Part, ...]:
        """The pickles in *stream*: one, or those of an old torch file with the weights behind them."""
        try:
            readings = read_pickles(stream, self.budget)
        except RefusedError as error:
            raise error.within(f"{where} is neither a zip nor a pickle that can be read: ") from error
        parts = tuple(Part(where, one, code=judge(one, where, self.trust, self.budget)) for one in readings)
        if len(parts) > 1 and not self.trust.everything:
            sizes = _weight_sizes(parts[3])
            position = stream.tell()
            if stream.seek(0, 2) - position != sum(8 + size for size in sizes.values()):
                raise RefusedError(f"{where} has more or fewer bytes of weights than its tensors need")
        return parts


def _weight_sizes(part: Part) -> dict[str, int]:
    """How many bytes each storage outside the pickle has, by its key."""
    sizes: dict[str, int] = {}
    for external in part.reading.externals:
        _, kind, key, _, count, *_ = external.reference.items
        size = count * STORAGES[str(kind)]
        if sizes.setdefault(key, size) != size:
            raise RefusedError(f"{part.where} says twice how large storage {key!r} is, and not the same")
    return sizes


def _json(data: bytes) -> dict[str, Any]:
    try:
        settings = json.loads(data.decode(), object_pairs_hook=_without_twins)
    except RecursionError as error:
        raise RefusedError("entry 'data' nests too deeply to be a model's settings") from error
    except ValueError as error:
        raise RefusedError(f"entry 'data' is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise RefusedError("entry 'data' is not a JSON object of settings")
    return settings


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise RefusedError("entry 'data' has a setting twice: readers disagree on which one counts")
    return found


def _written_by(archive: zipfile.ZipFile) -> dict[str, str]:
    def text(name: str) -> str:
        data = read_entry(archive, name, _TEXT_LIMIT) if name in archive.namelist() else b""
        return data.decode("utf-8", "replace").strip()

    lines = map(_INFO_LINE.match, text("system_info.txt").splitlines())
    found = {match[1].strip(): match[2].strip() for match in lines if match}
    version = text("_stable_baselines3_version")
    return {"Stable-Baselines3": version, **found} if version and "Stable-Baselines3" not in found else found


def _pickle_kind(value: Any) -> str:
    if value == TORCH_MAGIC:
        return "torch file"
    name = getattr(maker(value), "name", "")
    if name == "VecNormalize":
        return "VecNormalize statistics"
    return "replay buffer" if name.endswith("ReplayBuffer") else "pickle"
