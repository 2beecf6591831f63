"""Does ``rlstability diagnose`` name the right factor and the guilty function? On faults whose cause is known.

    python benchmarks/diagnose.py                 # all, takes long
    python benchmarks/diagnose.py overrun_heap gc_timing

Needs gcc and valgrind. For each corruption it also says whether the crash itself shows the guilty function: in the
native stack, which is what gdb or a core file shows, and in the Python stack, which is what faulthandler shows.
"""

from __future__ import annotations

import argparse
import json
import linecache
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent / "diagnose_corpus"
FACTORS = {
    "threads": {"one thread"},
    "fork": {"workers by spawn"},
    "simd": {"no SIMD"},
    "hash_order": {"hash seed 0"},
    "gc_timing": {"gc off"},
    "switch_timing": {"quick switches", "one processor"},
    "start_method": {"workers by fork"},
    "seed": {"seed 1"},
    "memory_limit": {"no memory limit"},
    "stages": set(),
}
"""Each fault with the factors that are right. That of *stages* is a stage."""
CORRUPTIONS = {
    "overrun_heap": "overrun_heap", "underrun_heap": "underrun_heap", "write_freed": "write_freed",
    "read_freed": "read_freed", "release_twice": "release_twice", "free_inside": "free_inside",
    "copy_name": "copy_name", "clear_board": "clear_board", "copy_frame": "copy_frame", "smash_stack": "smash_stack",
    "use_unset": "use_unset", "poke_far": "poke_far", "append_stale": "append_stale", "format_score": "format_score",
    "race": "race_push", "drop_borrowed": "drop_borrowed", "give_borrowed": "give_borrowed",
    "fill_bytes": "fill_bytes", "set_beyond": "set_beyond", "box2d_joint": "b2Joint", "box2d_body": "b2Body",
}  # fmt: skip
"""Each fault with what the name of the guilty function contains."""


def build(directory: Path) -> dict[str, str]:
    """Compile the faults; the environment in which they run."""
    library = directory / "libfaults.so"
    flags = ["-g", "-O0", "-shared", "-fPIC", "-fstack-protector-all", "-fopenmp", "-pthread"]
    subprocess.run(["gcc", *flags, "-o", library, HERE / "faults.c"], check=True)
    include = f"-I{sysconfig.get_path('include')}"
    module = directory / "native_module.so"
    subprocess.run(["gcc", "-g", "-shared", "-fPIC", include, "-o", module, HERE / "native_module.c"], check=True)
    names = "print(next(iter({f'name {number}' for number in range(16)})))"
    first = subprocess.run(
        [sys.executable, "-c", names], env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True
    )
    return {**os.environ, "FAULTS": str(library), "PYTHONPATH": str(directory), "FIRST_OF_HASH_0": first.stdout.strip()}


def diagnose(command: list[str], environment: dict[str, str], *options: str) -> dict[str, object]:
    words = [sys.executable, "-m", "pytest_rlstability", "diagnose", "--json", *options, "--", *command]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    try:
        return json.loads(result.stdout)
    except ValueError:
        return {"trouble": result.stderr[-500:], "factor": None, "culprit": None, "stage": None, "example": None}


def native_shows(found: dict[str, object], name: str) -> bool:
    """Whether the native stack of the crash has the guilty function, as gdb or a core file would show."""
    sections = (found.get("example") or {}).get("sections", [])
    native = "\n".join(text for title, text in sections if title == "Native stack")
    return any(name in line for line in native.splitlines() if not line.endswith("[Python]"))


def python_shows(found: dict[str, object], name: str) -> bool:
    """Whether the newest line of the user's, as faulthandler shows it, calls the guilty function."""
    place = (found.get("example") or {}).get("location")
    return place is not None and name in linecache.getline(place["file"], place["line"])


def show(name: str, ok: bool, text: str, began: float) -> None:
    print(f"{name:<15} {'ok ' if ok else 'NOT'} {text}, {time.monotonic() - began:.0f} s)", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--for", dest="budget", default="4min")
    arguments = parser.parse_args()
    tally = {"factors": 0, "right": 0, "wrong": 0, "corruptions": 0, "named": 0, "native stack": 0, "Python stack": 0}
    with tempfile.TemporaryDirectory() as directory:
        environment = build(Path(directory))
        for name, right in FACTORS.items():
            if arguments.names and name not in arguments.names:
                continue
            began = time.monotonic()
            command = [sys.executable, str(HERE / "factor.py"), name]
            if name == "memory_limit":
                command = ["bash", "-c", 'ulimit -Sv 700000; exec "$@"', "bash", *command]
            found = diagnose(command, environment, f"--for={arguments.budget}")
            said = found["stage"] if name == "stages" else found["factor"]
            ok = said == "'load'" if name == "stages" else said in right
            tally["factors"] += 1
            tally["right"] += ok
            tally["wrong"] += not ok and said is not None
            plain = found.get("plain", {})
            show(name, ok, f"{said} (died {plain.get('died')} of {plain.get('runs')}", began)
        for name, guilty in CORRUPTIONS.items():
            if arguments.names and name not in arguments.names:
                continue
            began = time.monotonic()
            command = [sys.executable, str(HERE / "corruption.py"), name]
            found = diagnose(command, environment, f"--for={arguments.budget}", "--factors=none")
            culprit = found["culprit"] or {}
            ok = guilty in f"{culprit.get('function', '')} {culprit.get('place', '')}"
            native, python = native_shows(found, guilty), python_shows(found, guilty)
            tally["corruptions"] += 1
            tally["named"] += ok
            tally["native stack"] += native
            tally["Python stack"] += python
            seen = f"crash shows it natively: {'yes' if native else 'no'}, in Python: {'yes' if python else 'no'}"
            said = f"{culprit['function']} by {culprit['tool']}" if culprit else found.get("checkers")
            show(name, ok, f"{said} ({seen}", began)
    print(tally)
    return 0


if __name__ == "__main__":
    sys.exit(main())
