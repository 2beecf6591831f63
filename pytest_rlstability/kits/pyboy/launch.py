"""Starts the emulator's process, and removes everything it leaves."""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from pytest_rlstability.kits.pyboy.channel import OUTPUT, STACKS, Channel, SharedBlock
from pytest_rlstability.kits.pyboy.rom import build_rom
from pytest_rlstability.osinfo.fatal_signals import ask_for_stacks
from pytest_rlstability.osinfo.helper_process import HelperProcess, module_command

_SPIN = 1e-3
_SIBLINGS = (".ram", ".rtc", ".sym", ".map")
_TAIL = 4000
_DUMP_WAIT = 1.0

_running: set[int] = set()


def place_rom(rom: str | os.PathLike[str] | bytes | IO[bytes] | None, directory: Path, *, cgb: bool) -> Path:
    """A copy of *rom* for one emulator, with the save and symbol files beside it: PyBoy writes save files beside the
    ROM, and two emulators with one ROM file would read each other's."""
    if rom is None:
        copy = directory / ("homebrew.gbc" if cgb else "homebrew.gb")
        copy.write_bytes(build_rom(cgb=cgb))
    elif isinstance(rom, (str, os.PathLike)):
        original = Path(rom)
        copy = directory / original.name
        shutil.copyfile(original, copy)
        for suffix in _SIBLINGS:
            for sibling in {original.with_name(original.name + suffix), original.with_suffix(suffix)}:
                if sibling.is_file():
                    shutil.copyfile(sibling, directory / sibling.name)
    else:
        copy = directory / "game.gb"
        copy.write_bytes(rom if isinstance(rom, bytes) else rom.read())
    return copy


class EmulatorProcess(HelperProcess):
    """One ``pytest_rlstability.kits.pyboy.server`` with its directory, its shared block and our end of its channel."""

    def __init__(self, rom: str | os.PathLike[str] | bytes | IO[bytes] | None, *, cgb: bool) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pyboy-rlstability-"))
        try:
            self.rom = place_rom(rom, self.directory, cgb=cgb)
            self.block = SharedBlock()
            ours, theirs = socket.socketpair()
            descriptors = (theirs.fileno(), self.block.descriptor)
            arguments = [*map(str, descriptors), str(os.getpid()), str(self.directory)]
            command = module_command("pytest_rlstability.kits.pyboy.server", *arguments)
            with theirs, open(self.directory / OUTPUT, "wb") as output:
                super().__init__(command, pass_fds=descriptors, stdout=output, stderr=output)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        self.block.close_descriptor()
        _running.add(self.pid)
        # Spinning pays while a core is free for it; it would take time from other emulators otherwise.
        self.channel = Channel(ours, spin=_SPIN if len(_running) < (os.cpu_count() or 1) else 0.0)

    def dump_stacks(self) -> None:
        """Have a hung process write its Python stacks; this works even while it holds the interpreter lock."""
        if sys.platform == "win32":
            raise NotImplementedError
        ask_for_stacks(self.pid, self.directory / STACKS, signal.SIGUSR1, seconds=_DUMP_WAIT)

    def stacks(self) -> str:
        return self._read(STACKS).split("\nExtension modules:")[0].strip()

    def output(self) -> str:
        return self._read(OUTPUT)[-_TAIL:]

    def _read(self, name: str) -> str:
        try:
            return (self.directory / name).read_text(errors="replace").strip()
        except OSError:
            return ""

    def end(self) -> None:
        """Kill and reap the process and remove its directory; may be called twice."""
        super().end()
        _running.discard(self.pid)
        self.channel.close()
        self.block.release()
        shutil.rmtree(self.directory, ignore_errors=True)


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """PyBoy's keyword arguments as they are sent: files by content, no window by default."""
    files = {name: io.BytesIO(options[name].read()) for name in ("ram_file", "rtc_file") if options.get(name)}
    return {"window": "null", "log_level": "ERROR", **options, **files}
