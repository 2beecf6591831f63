"""What kind of saved model a file is, and the pickles inside it, read but never loaded."""

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

from pytest_rlstability.models.archive import RefusedError, is_zip, open_archive, read_entry
from pytest_rlstability.models.danger import refuse_danger
from pytest_rlstability.models.pickles import TORCH_MAGIC, Call, Name, Reading, read_pickle, read_pickles

_TEXT_LIMIT = 64 * 2**10
_INFO_LINE = re.compile(r"-\s*([^:]+):\s*(.*)")


@dataclass(frozen=True)
class Part:
    """One pickle in a file. *attribute* is the name SB3 gives the value on the model, empty for anything else."""

    where: str
    reading: Reading
    attribute: str = ""


@dataclass(frozen=True)
class Contents:
    """A saved model's pickles, its plain settings, and what it says about the machine that wrote it."""

    kind: str
    parts: tuple[Part, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    written_by: Mapping[str, str] = field(default_factory=dict)


def read_contents(path: Path) -> Contents:
    """Read *path*, an SB3 zip, a torch file or a pickle; `RefusedError` for everything else and for hostile files."""
    if not is_zip(path):
        return _read_pickle_file(path)
    with open_archive(path, path.name) as archive:
        names = archive.namelist()
        if "data" in names:
            return _read_sb3(archive)
        if any(name.endswith("data.pkl") for name in names):
            parts = tuple(_torch_parts(archive, path.name))
            return Contents("torch file", parts)
    raise RefusedError(
        f"{path.name} is a zip, but neither an SB3 model (no 'data' entry) nor a torch file (no 'data.pkl')"
    )


def _read_sb3(archive: zipfile.ZipFile) -> Contents:
    settings = _json(read_entry(archive, "data"))
    parts = list(_attribute_parts(settings))
    for name in archive.namelist():
        if name.endswith(".pth"):
            parts += _nested_torch_parts(archive, name)
    return Contents("SB3 model", tuple(parts), settings, _written_by(archive))


def _json(data: bytes) -> dict[str, Any]:
    try:
        settings = json.loads(data)
    except RecursionError as error:
        raise RefusedError("entry 'data' nests too deeply to be a model's settings") from error
    except ValueError as error:
        raise RefusedError(f"entry 'data' is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise RefusedError("entry 'data' is not a JSON object of settings")
    return settings


def _attribute_parts(settings: Mapping[str, Any]) -> Iterator[Part]:
    for attribute, value in settings.items():
        if isinstance(value, dict) and ":serialized:" in value:
            try:
                data = base64.b64decode(value[":serialized:"], validate=True)
            except (binascii.Error, TypeError, ValueError) as error:
                raise RefusedError(f"{attribute!r} in entry 'data' is not base64: {error}") from error
            yield _part(f"{attribute!r} in entry 'data'", data, attribute)


def _part(where: str, data: bytes, attribute: str = "") -> Part:
    try:
        reading = read_pickle(data)
    except RefusedError as error:
        raise RefusedError(f"{where}: {error}") from error
    refuse_danger(reading, where)
    return Part(where, reading, attribute)


def _written_by(archive: zipfile.ZipFile) -> dict[str, str]:
    found: dict[str, str] = {}
    if "system_info.txt" in archive.namelist():
        text = read_entry(archive, "system_info.txt", _TEXT_LIMIT).decode("utf-8", "replace")
        found = {match[1].strip(): match[2].strip() for match in map(_INFO_LINE.match, text.splitlines()) if match}
    if "_stable_baselines3_version" in archive.namelist():
        version = read_entry(archive, "_stable_baselines3_version", _TEXT_LIMIT).decode("utf-8", "replace").strip()
        found.setdefault("Stable-Baselines3", version)
    return found


def _nested_torch_parts(archive: zipfile.ZipFile, name: str) -> list[Part]:
    with archive.open(name) as stream:
        if stream.read(4) != b"PK\x03\x04":
            where = f"entry {name!r}"
            return [Part(where, reading) for reading in _judged(BytesIO(read_entry(archive, name)), where)]
        stream.seek(0)
        # Only the directory and the small pickle are read from it, never the weights.
        with open_archive(stream, name) as nested:
            return list(_torch_parts(nested, name))


def _torch_parts(archive: zipfile.ZipFile, name: str) -> Iterator[Part]:
    for entry in archive.namelist():
        if entry.endswith(("data.pkl", "constants.pkl")):
            yield _part(f"{entry!r} in {name}", read_entry(archive, entry))


def _read_pickle_file(path: Path) -> Contents:
    try:
        if tarfile.is_tarfile(path):  # the oldest torch files were; torch reads one even if it begins as a pickle
            raise RefusedError(f"{path.name} is a tar file, which is not read: save it with a newer torch")
        with open(path, "rb") as stream:
            readings = list(_judged(stream, path.name))
    except OSError as error:
        raise RefusedError(f"cannot read {path}: {error.strerror or error}") from error
    return Contents(_pickle_kind(readings), tuple(Part(path.name, reading) for reading in readings))


def _judged(stream: IO[bytes], where: str) -> Iterator[Reading]:
    """The pickles in *stream*, each judged before the next is read."""
    readings = read_pickles(stream)
    while True:
        try:
            reading = next(readings, None)
        except RefusedError as error:
            raise RefusedError(f"{where} is neither a zip nor a pickle that can be read ({error})") from error
        if reading is None:
            return
        refuse_danger(reading, where)
        yield reading


def _pickle_kind(readings: list[Reading]) -> str:
    value = readings[0].value
    if value == TORCH_MAGIC:
        return "torch file"
    if isinstance(value, Call) and isinstance(value.function, Name):
        if value.function.name == "VecNormalize":
            return "VecNormalize statistics"
        if value.function.name.endswith("ReplayBuffer"):
            return "replay buffer"
    return "pickle"
