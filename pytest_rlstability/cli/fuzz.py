"""Drive an env with generated calls until it breaks, and write the shortest test that shows it.

  rlstability fuzz my_package.envs:make_env
  rlstability fuzz my_package.envs:make_env --for 10min -o tests/test_found.py

MAKE_ENV is called without arguments and returns an env. It is driven in processes of their own.

Exit status: 0 when nothing was found, 1 when something was (the test is written), 2 when there is nothing to drive.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shlex
import sys
import sysconfig
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_rlstability.cli.doctor import duration, target
from pytest_rlstability.model.units import counted, escaped, format_duration

if TYPE_CHECKING:
    from pytest_rlstability.kits.fuzz.calls import Case, Settings
    from pytest_rlstability.kits.fuzz.search import Search

CLEAN, FOUND, CANNOT, INTERRUPTED = 0, 1, 2, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", type=target, metavar="MODULE:MAKE_ENV", help="a function, or a class, that makes the env")
    add(
        "--for", dest="seconds", type=duration, default=120.0, metavar="2min", help="how long to search (default: 2min)"
    )
    add("-o", "--output", type=Path, default=Path("test_found.py"), metavar="PATH",
        help="the test file to write (default: test_found.py)")  # fmt: skip
    add("--seed", type=int, metavar="N", help="draw the same calls again")
    add("--invalid", action="store_true", help="also make calls that Gymnasium's rules forbid; they must not crash")
    add("--options", type=_options, action="append", metavar="JSON",
        help="options for resets, such as '{\"level\": 3}'; may be given several times; null for none")  # fmt: skip
    add("--keep-going", action="store_true", help="search for other faults until the time is over")
    add("--stall-after", type=duration, default=10.0, metavar="10s", help="a call that takes longer is stuck")
    add("--shrink-for", type=duration, default=60.0, metavar="60s", help="how long to shrink what was found")


def _options(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if value is not None and not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not an object, such as {{"level": 3}}, nor null')
    return value


def run(arguments: argparse.Namespace) -> int:
    if not hasattr(os, "fork"):
        return _fail("this system cannot fork processes", CANNOT)
    sys.path.insert(0, os.getcwd())
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        # The env's module is imported here, so that its crash at import is not the end of this command.
        os._exit(_search_in_fork(arguments))
    return _status_of(pid, arguments.target)


def _status_of(pid: int, name: str) -> int:
    from pytest_rlstability.osinfo.fatal_signals import signal_of_exit

    while True:
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            break
        except KeyboardInterrupt:  # the other process has it too, and ends
            continue
    if died := signal_of_exit(status):
        return _fail(f"CRASH: {died} while {name} was imported", CANNOT)
    return status


def _search_in_fork(arguments: argparse.Namespace) -> int:
    try:
        code = _search(arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = CANNOT
    except BaseException:
        import traceback

        traceback.print_exc()
        code = CANNOT
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        pass
    return code


def _search(arguments: argparse.Namespace) -> int:
    make_env = _resolve(arguments.target)
    if isinstance(make_env, str):
        return _fail(make_env, CANNOT)
    try:
        from pytest_rlstability.kits.fuzz.calls import Settings
        from pytest_rlstability.kits.fuzz.laboratory import CannotFuzzError, Laboratory
        from pytest_rlstability.kits.fuzz.search import Search
    except ImportError as error:
        return _fail(f"{error}: pip install gymnasium", CANNOT)
    seed = random.SystemRandom().getrandbits(31) if arguments.seed is None else arguments.seed
    settings = Settings(
        arguments.seconds, seed, arguments.invalid, arguments.stall_after, arguments.shrink_for,
        tuple(arguments.options or (None, {})),
    )  # fmt: skip
    print(f"fuzzing {arguments.target} for {format_duration(settings.seconds)}, seed {seed}", flush=True)
    try:
        laboratory = Laboratory(make_env, settings)
    except CannotFuzzError as error:
        return _fail(str(error), CANNOT)
    with closing(laboratory):
        return _report(
            arguments, settings, Search(laboratory, _Progress().say, arguments.target), laboratory.probe.adapter
        )


def _report(arguments: argparse.Namespace, settings: Settings, search: Search, adapter: str) -> int:
    """Write a file for each case, and say what was found."""
    found, interrupted = 0, False
    try:
        for case in search.cases():
            found += 1
            path = arguments.output if found == 1 else _numbered(arguments.output, found)
            _write(path, case, arguments, settings, adapter)
            if not arguments.keep_going:
                break
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted")
    for line in search.tally.unconfirmed:
        print(f"not confirmed: {escaped(line)}")
    print(f"{'nothing found' if not found else counted(found, 'fault')}: {search.tally.line()}", flush=True)
    return FOUND if found else INTERRUPTED if interrupted else CLEAN


def _write(path: Path, case: Case, arguments: argparse.Namespace, settings: Settings, adapter: str) -> None:
    from pytest_rlstability.kits.fuzz.written_test import Target, source_of_test

    module, _, name = arguments.target.partition(":")
    command = ["rlstability", "fuzz", arguments.target, f"--seed={settings.seed}"]
    command += ["--invalid"] * settings.invalid
    command += [f"--options={json.dumps(one)}" for one in arguments.options or ()]
    goal = Target(module, name, shlex.join(command), _directory(module, path), adapter)
    path.write_text(source_of_test(case, goal, settings.stall_after), encoding="utf-8")
    finding = case.finding
    print(f"{finding.kind}: {escaped(finding.text)}")
    if case.seen < case.tries:
        print(f"  it comes in {case.seen} of {case.tries} replays")
    if finding.stack:
        print("\n".join(f"  {line}" for line in finding.stack.splitlines()[-12:]))
    print(f"  {counted(len(case.calls), 'call')}, shrunk from {len(case.journal):,}: {path}", flush=True)


def _directory(module: str, path: Path) -> str:
    """Where the test finds the module, if pytest would not find it beside the test or installed."""
    file = getattr(sys.modules[module.partition(".")[0]], "__file__", None)
    if file is None:
        return ""
    package = Path(file).resolve()
    home = package.parent.parent if package.name == "__init__.py" else package.parent
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    return "" if home == path.resolve().parent or home in installed else str(home)


def _numbered(path: Path, number: int) -> Path:
    return path.with_stem(f"{path.stem}_{number}")


def _resolve(name: str) -> Callable[[], Any] | str:
    """The callable that *name* stands for, or why there is none."""
    module_name, _, attributes = name.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            value = getattr(value, attribute)
    except (Exception, SystemExit) as error:
        return f"cannot import {name}: {type(error).__name__}: {error}"
    return value if callable(value) else f"{name} is {type(value).__name__}, which cannot be called"


class _Progress:
    """A line on the terminal that is written again and again; nothing where the output is not a terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()

    def say(self, line: str) -> None:
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{escaped(line)[:118]}")
            sys.stderr.flush()


def _fail(text: str, code: int) -> int:
    print(f"rlstability fuzz: error: {text}", file=sys.stderr, flush=True)
    return code
