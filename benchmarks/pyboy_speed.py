"""How fast an emulator in its own process is, against one in this process: ``python benchmarks/pyboy_speed.py``.

Both run the package's homebrew ROM, in turns, so that whatever else the machine does hits both. A rate is the
best of the rounds; the ratio of the two is what counts. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_rlstability.kits.pyboy.client import ForkedPyBoy
from pytest_rlstability.kits.pyboy.rom import build_rom

TARGETS = {1: 0.60, 24: 0.90}
BOOT_FRAMES = 100


def calls_per_second(boy: Any, frames: int, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        boy.tick(frames)
        boy.screen.ndarray  # noqa: B018 (the access is what is measured)
    return calls / (time.perf_counter() - start)


def compare(rom: bytes, make_inside: Callable[[str], Any], frames: int, rounds: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "game.gb"
        path.write_bytes(rom)
        inside = make_inside(str(path))
        with ForkedPyBoy(path) as forked:
            inside.tick(BOOT_FRAMES)
            forked.tick(BOOT_FRAMES)
            calls = 400 // (frames + 3)  # a few ten milliseconds: some rounds then have the machine to themselves
            rates = [
                (calls_per_second(inside, frames, calls), calls_per_second(forked, frames, calls))
                for _ in range(rounds)
            ]
        inside.stop(save=False)
    return max(rate for rate, _ in rates), max(rate for _, rate in rates)


def main() -> int:
    from pyboy import PyBoy

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=80)
    rounds = parser.parse_args().rounds
    missed = False
    print(f"{'ROM':<4} {'call':<26} {'in-process':>12} {'forked':>12} {'ratio':>7} {'target':>7}")
    for cgb in (False, True):
        for frames, target in TARGETS.items():
            rom = build_rom(cgb=cgb)
            inside, forked = compare(rom, lambda path: PyBoy(path, window="null", log_level="ERROR"), frames, rounds)
            ratio = forked / inside
            missed |= ratio < target
            name = f"tick({frames}) + screen.ndarray"
            print(
                f"{'CGB' if cgb else 'DMG':<4} {name:<26} {inside:>10.0f}/s {forked:>10.0f}/s"
                f" {ratio:>7.2f} {target:>7.2f}"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
