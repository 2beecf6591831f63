"""Do signatures group crashes? One bug must have one signature, whatever the build, the addresses, the caller and the
memory in use; two bugs must have two, even under one Python function.

    python benchmarks/signatures.py

Needs gcc, and pystack and gdb: both read the native stack, in turn, and the crashes are told apart without either too.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent / "diagnose_corpus"
BUGS = ("draw_line", "mix_sound", "load_bank", "copy_tile", "divide_clock", "free_sprite")
SCRIPT = """
import ctypes, sys
library, kind, caller, ballast = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
memory, native = bytearray(ballast), ctypes.CDLL(library)

def tick():
    native.tick(kind, 9)

def film():
    tick()

def play():
    for _ in range(3):
        tick()

globals()[caller]()
"""
RUN = """
import sys
from pytest_rlstability.osinfo import native_stacks
for tool in {hidden!r}: native_stacks._TOOLS.pop(tool)
from pytest_rlstability.__main__ import main
sys.exit(main())
"""
HIDDEN: dict[str, tuple[str, ...]] = {"pystack": ("gdb",), "gdb": ("pystack",), "neither": ("pystack", "gdb")}


def signature(directory: Path, library: str, kind: int, caller: str, ballast: int, hidden: tuple[str, ...]) -> str:
    log = directory / "run.jsonl"
    script = [sys.executable, "script.py", library, str(kind), caller, str(ballast)]
    words = [sys.executable, "-c", RUN.format(hidden=hidden), "run", f"--jsonl={log}", "--", *script]
    subprocess.run(words, cwd=directory, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    log.unlink()
    verdict = events[-1]["verdict"]
    return "no crash" if verdict is None else str(verdict["facts"]["signature"])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "script.py").write_text(SCRIPT)
        for level in ("-O0", "-O2"):
            words = [
                "gcc",
                "-g",
                level,
                "-w",
                "-shared",
                "-fPIC",
                "-o",
                directory / f"lib{level}.so",
                HERE / "crashes.c",
            ]
            subprocess.run(words, check=True)
        for tool, hidden in HIDDEN.items():
            seen: dict[str, set[str]] = defaultdict(set)
            for kind, bug in enumerate(BUGS):
                for level, caller, ballast in (("-O0", "film", 0), ("-O0", "play", 1 << 27), ("-O2", "film", 1 << 20)):
                    seen[bug].add(signature(directory, f"./lib{level}.so", kind, caller, ballast, hidden))
            pairs = list(itertools.combinations(BUGS, 2))
            one = sum(len(names) == 1 for names in seen.values())
            apart = sum(not seen[first] & seen[second] for first, second in pairs)
            print(
                f"{tool}: {one} of {len(BUGS)} bugs have one signature, {apart} of {len(pairs)} pairs have two",
                flush=True,
            )
            for bug, names in seen.items():
                print(f"  {bug}: {', '.join(sorted(names))}", flush=True)


if __name__ == "__main__":
    main()
