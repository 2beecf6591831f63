"""A session as a file: what was asked of an emulator, one line a call, and how to run it again."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_rlstability.pyboy.client import ForkedPyBoy

SCHEMA = 1
_READING = frozenset({"peek", "save", "hook", "stop"})
_REMEMBERED_CALLS = 256


class Beginning:
    """The calls before an emulator's first tick, for a recording that begins after them: a save state would not
    hold the buttons among them. ``calls`` is ``None`` once there was a tick, or too much to remember."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] | None = []

    def add(self, operation: str, details: tuple[Any, ...]) -> None:
        if self.calls is None or operation in _READING:
            return
        if operation == "tick" or len(self.calls) == _REMEMBERED_CALLS:
            self.calls = None
            return
        try:
            self.calls.append([operation, *map(pack, details)])
        except TypeError:
            self.calls = None


class Recorder:
    """Writes one session; each line is in the file before the emulator hears of it."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        rom: Path,
        options: dict[str, Any],
        frame: int,
        state: bytes | None,
        calls: Iterable[list[Any]] = (),
    ) -> None:
        self.path = Path(path) if path is not None else _fresh_path()
        self._file = open(self.path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed by close)
        self._write(
            {
                "schema": SCHEMA,
                "rom": pack(rom.read_bytes()),
                "name": rom.name,
                "options": {name: pack(value) for name, value in options.items()},
                "frame": frame,
                "state": pack(state),
            }
        )
        for call in calls:
            self._write(call)

    def write(self, operation: str, details: tuple[Any, ...]) -> None:
        if operation not in _READING:
            self._write([operation, *map(pack, details)])

    def _write(self, record: object) -> None:
        if not self._file.closed:
            self._file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        self._file.close()


def _fresh_path() -> Path:
    descriptor, path = tempfile.mkstemp(prefix="pyboy-session-", suffix=".jsonl")
    os.close(descriptor)
    return Path(path)


def pack(value: Any) -> Any:
    """*value* as JSON that ``unpack`` turns back; what is neither plain nor a number is refused."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, tuple):
        return {"tuple": [pack(item) for item in value]}
    if isinstance(value, slice):
        return {"slice": [pack(bound) for bound in (value.start, value.stop, value.step)]}
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(item)] for key, item in value.items()]}
    if hasattr(value, "tolist"):
        return pack(value.tolist())
    raise TypeError(f"{value!r} cannot be part of a recorded session")


def unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "tuple":
        return tuple(unpack(item) for item in content)
    if kind == "slice":
        return slice(*map(unpack, content))
    if kind == "dict":
        return {unpack(key): unpack(item) for key, item in content}
    raise ValueError(f"not a recorded session: {kind!r}")


def _lines(path: Path) -> Iterator[Any]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):  # a last line that was cut short by a crash never reached the emulator
                yield json.loads(line)


def replay(path: str | os.PathLike[str], *, stall_after: str | float = "30s") -> ForkedPyBoy:
    """Run a recorded session again, in a new emulator, and return that emulator as the session left it; a
    session that ended in a crash raises ``EmulatorCrashed`` at the same call again.

    ``with replay("session.jsonl") as boy: assert boy.memory[0xC000] == 3``
    """
    import io

    from pytest_rlstability.pyboy.client import ForkedPyBoy

    lines = _lines(Path(path))
    header = next(lines, None)
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise ValueError(f"{os.fspath(path)} is not a recorded session")
    options = {name: unpack(value) for name, value in header["options"].items()}
    for name in ("ram_file", "rtc_file"):
        if options.get(name) is not None:
            options[name] = io.BytesIO(options[name])
    boy = ForkedPyBoy(unpack(header["rom"]), stall_after=stall_after, **options)
    try:
        if header["state"] is not None:
            boy.ask("load", unpack(header["state"]))
        for operation, *details in lines:
            boy.ask(operation, *map(unpack, details))
    except BaseException:
        boy.close()
        raise
    return boy
