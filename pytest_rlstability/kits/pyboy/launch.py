"""Starting the emulator's process, and taking every trace of it away again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from pytest_rlstability.pyboy.rom import build_rom
from pytest_rlstability.pyboy.wire import OUTPUT, STACKS, Channel, SharedBlock

CLIENT_SPIN = 1e-3
_SIBLINGS = (".ram", ".rtc", ".sym", ".map")
_TAIL = 4000
_DUMP_WAIT = 1.0

_running: set[int] = set()


def place_rom(rom: str | os.PathLike[str] | bytes | IO[bytes] | None, directory: Path, *, cgb: bool) -> Path:
    """A copy of *rom* for one emulator alone: PyBoy writes save files beside the ROM, and two emulators with
    one ROM file would read each other's. Save and symbol files beside the original come along."""
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


class EmulatorProcess:
    """One ``pytest_rlstability.pyboy.server`` with its directory, its shared block and our end of its channel."""

    def __init__(self, rom: str | os.PathLike[str] | bytes | IO[bytes] | None, *, cgb: bool) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pyboy-rlstability-"))
        try:
            self.rom = place_rom(rom, self.directory, cgb=cgb)
            self.block = SharedBlock()
            self._process, end = self._start()
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        self.pid = self._process.pid
        _running.add(self.pid)
        self.channel = Channel(end, spin=self._spin())

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        descriptors = (theirs.fileno(), self.block.descriptor)
        arguments = [*map(str, descriptors), str(os.getpid()), str(self.directory)]
        # The same modules as here, and nothing that merely lies in the working directory.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
        with theirs, open(self.directory / OUTPUT, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest_rlstability.pyboy.server", *arguments],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        self.block.close_descriptor()
        return process, ours

    def _spin(self) -> float:
        """Spinning pays while there is a core for it; with as many emulators as cores it would steal theirs."""
        return CLIENT_SPIN if len(_running) < (os.cpu_count() or 1) else 0.0

    def returncode(self) -> int | None:
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """The return code, once it has ended by itself within *seconds*; ``None`` otherwise."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def dump_stacks(self) -> None:
        """Have a hung process write its Python stacks; it needs neither the interpreter nor its lock for that."""
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _DUMP_WAIT
        while not self.stacks() and time.monotonic() < deadline:
            time.sleep(0.02)

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
        """Kill and reap it, and remove its directory; harmless when it is already gone."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        _running.discard(self.pid)
        self.channel.close()
        self.block.release()
        shutil.rmtree(self.directory, ignore_errors=True)


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """PyBoy's keyword arguments in a form that crosses: files by content, paths absolute, no window unless asked."""
    plain = {"window": "null", "log_level": "ERROR", **options}
    for name in ("ram_file", "rtc_file"):
        if plain.get(name) is not None:
            plain[name] = plain[name].read()
    for name in ("symbols", "bootrom"):
        if plain.get(name) is not None:
            plain[name] = os.path.abspath(plain[name])
    return plain
