"""Does ``rlstability diagnose`` name the right factor and the guilty function? On faults whose cause is known.

    python benchmarks/diagnose.py                 # all, takes long
    python benchmarks/diagnose.py overrun_heap gc_timing

Needs gcc, g++, gdb and valgrind. Each corruption is also given to faulthandler, gdb and gdb with a core file. They name
the guilty function if it is anywhere in the stack of the crash, and faulthandler if the user's newest line calls it.
"""

from __future__ import annotations

import argparse
import json
import linecache
import os
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
HELD_OUT = {
    "vector": "blur_row", "within_block": "rename_actor", "callees_stack": "fill_tail",
    "python_overrun": "load_state", "borrowed_lookup": "lookup", "destroyed_twice": "drop_sprite",
    "shared_frame": "worker_", "view_of_released": "release",
}  # fmt: skip
"""Faults that were written after the rules."""
LIMIT = 120
Environment = Mapping[str, str]


def build(directory: Path) -> dict[str, str]:
    """Compile the faults; the environment in which they run."""
    flags = ["-g", "-shared", "-fPIC", "-fstack-protector-all", "-fopenmp", "-pthread"]
    include = f"-I{sysconfig.get_path('include')}"
    for compiler, source, target in (
        (["gcc", "-O0"], "faults.c", "libfaults.so"), (["g++", "-O1"], "held_out.cpp", "libheld.so"),
        (["gcc", "-O0", include], "native_module.c", "native_module.so"),
        (["gcc", "-O0", include], "held_module.c", "held_module.so"),
    ):  # fmt: skip
        subprocess.run([*compiler, *flags, "-o", directory / target, HERE / source], check=True)
    names = "print(next(iter({f'name {number}' for number in range(16)})))"
    first = subprocess.run(
        [sys.executable, "-c", names], env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True
    )
    libraries = {"FAULTS": str(directory / "libfaults.so"), "HELD_OUT": str(directory / "libheld.so")}
    return {**os.environ, **libraries, "PYTHONPATH": str(directory), "FIRST_OF_HASH_0": first.stdout.strip()}


def run(words: list[str], environment: Environment, directory: str | None = None) -> str:
    """What a command prints, however it ends."""
    try:
        result = subprocess.run(
            words, env={**environment}, cwd=directory, capture_output=True, stdin=subprocess.DEVNULL, timeout=LIMIT,
            preexec_fn=_allow_core if directory else None,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    return (result.stdout + result.stderr).decode(errors="replace")


def _allow_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)


def diagnose(command: list[str], environment: Environment, *options: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "pytest_rlstability", "diagnose", "--json", *options, "--", *command]
    result = subprocess.run(words, env={**environment}, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    try:
        found: dict[str, Any] = json.loads(result.stdout)
        return found
    except ValueError:
        return {"trouble": result.stderr[-500:], "factor": None, "culprit": None, "stage": None, "example": None}


def faulthandler_shows(command: list[str], environment: Environment, name: str) -> bool:
    """Whether the newest line of the user's calls the guilty function."""
    text = run([command[0], "-X", "faulthandler", *command[1:]], environment)
    dump = text.partition("most recent call first")[2]
    lines = re.findall(rf'File "({re.escape(str(HERE))}[^"]*)", line (\d+) in (\w+)', dump)
    newest = lines[0] if lines else ("", "0", "")
    return name in linecache.getline(newest[0], int(newest[1])) or name == newest[2]


BACKTRACE = ["-ex", "bt 60"]


def gdb_shows(command: list[str], environment: Environment, name: str) -> bool:
    text = run(["gdb", "-nx", "-batch", "-ex", "run", *BACKTRACE, "--args", *command], environment)
    return _in_stack(text, name)


def core_shows(command: list[str], environment: Environment, name: str) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        run(command, environment, directory)
        cores = list(Path(directory).glob("core*"))
        program = os.path.realpath(command[0])
        text = run(["gdb", "-nx", "-batch", *BACKTRACE, program, str(cores[0])], environment) if cores else ""
    return _in_stack(text, name)


def _in_stack(text: str, name: str) -> bool:
    return any(name in line.partition(" (")[0] for line in text.splitlines() if line.startswith("#"))


PEERS: dict[str, Callable[[list[str], Environment, str], bool]] = {
    "faulthandler": faulthandler_shows, "gdb": gdb_shows, "core file": core_shows,
}  # fmt: skip


def show(name: str, ok: bool, text: str, began: float) -> None:
    print(f"{name:<16} {'ok ' if ok else 'NOT'} {text}, {time.monotonic() - began:.0f} s)", flush=True)


def factors(wanted: list[str], environment: Environment, budget: str) -> None:
    tally: Counter[str] = Counter()
    for name, right in FACTORS.items():
        if wanted and name not in wanted:
            continue
        began = time.monotonic()
        command = [sys.executable, str(HERE / "factor.py"), name]
        if name == "memory_limit":
            command = ["bash", "-c", 'ulimit -Sv 700000; exec "$@"', "bash", *command]
        found = diagnose(command, environment, f"--for={budget}")
        said = found["stage"] if name == "stages" else found["factor"]
        ok = said == "'load'" if name == "stages" else said in right
        tally.update({"factors": 1, "right": ok, "wrong": not ok and said is not None})
        plain = found.get("plain", {})
        show(name, ok, f"{said} (died {plain.get('died')} of {plain.get('runs')}", began)
    print(dict(tally))


def corruptions(
    faults: Mapping[str, str], script: str, wanted: list[str], environment: Environment, budget: str
) -> None:
    tally: Counter[str] = Counter()
    for name, guilty in faults.items():
        if wanted and name not in wanted:
            continue
        began = time.monotonic()
        command = [sys.executable, str(HERE / script), name]
        found = diagnose(command, environment, f"--for={budget}", "--factors=none")
        culprit = found["culprit"] or {}
        said = str(culprit.get("function", ""))
        ok = guilty in said
        tally.update({"corruptions": 1, "named": ok, "wrong": bool(said) and not ok and " or " not in said})
        shown = {peer: shows(command, environment, guilty) for peer, shows in PEERS.items()}
        tally.update(shown)
        others = ", ".join(f"{peer} {'yes' if seen else 'no'}" for peer, seen in shown.items())
        nothing = found["trouble"] or f"no culprit, crash site {found.get('crash_site')}"
        what = f"{said} by {culprit['tool']}" if culprit else nothing
        show(name, ok, f"{what} ({others}", began)
    print(dict(tally))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--for", dest="budget", default="4min")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        environment = build(Path(directory))
        factors(arguments.names, environment, arguments.budget)
        corruptions(CORRUPTIONS, "corruption.py", arguments.names, environment, arguments.budget)
        corruptions(HELD_OUT, "held_out.py", arguments.names, environment, arguments.budget)
    return 0


if __name__ == "__main__":
    sys.exit(main())
