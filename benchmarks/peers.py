"""What pytest-rlstability and its peers do about the same faults, measured, as a Markdown table.

    python benchmarks/peers.py                              everything, some ten minutes
    python benchmarks/peers.py --only psleak                one contender
    python benchmarks/peers.py --environments DIRECTORY     keep the virtual environments there, and use them again

Each contender has a virtual environment of its own with the newest pytest; one that fails a green file there is
measured on pytest 8.4.2. Each fault (``peer_cases.py``) is a run of its own with a hard limit, judged by its JUnit
file, exit code and output. How each cell came about goes to standard error. Linux only: what a run leaves behind is
found through ``/proc``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import venv
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from peer_cases import CONTENDERS, CRASHES, HANGS, LAPS, LEAKS, LIMIT, Contender, file_for, line_of_crash

OLDER_PYTEST = "8.4.2"
HARD_LIMIT, HARD_LIMIT_OF_LEAKS = 30, 100  # seconds for a run
YES, NO, NOT_MADE_FOR = "yes", "no", "\N{EN DASH}"
_RUN = "PEERS_RUN"


@dataclass(frozen=True)
class Outcome:
    """What a run left behind. *exit_code* is None where the hard limit ended it."""

    exit_code: int | None
    tests: dict[str, str]
    reports: dict[str, str] = field(default_factory=dict)
    output: str = ""
    seconds: float = 0.0

    @property
    def ended(self) -> bool:
        return self.exit_code is not None

    def told(self) -> str:
        """The outcome in a line."""
        tests = ", ".join(f"{name} {word}" for name, word in self.tests.items()) or "no test reported"
        end = f"exit {self.exit_code}" if self.ended else "cut off at the hard limit"
        return f"{tests}; {end}; {self.seconds:.0f} s"


def read_junit(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Outcome and failure text by test. A test with several entries failed if one of them did; a file that the run
    did not finish writing says nothing."""
    tests: dict[str, str] = {}
    reports: dict[str, str] = {}
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return tests, reports
    for case in root.iter("testcase"):
        # xdist reports a lost worker under the whole node id
        name = case.get("name", "").rpartition("::")[2]
        failures = [child for child in case if child.tag in ("failure", "error")]
        skipped = case.find("skipped") is not None
        word = "failed" if failures else "skipped" if skipped else "passed"
        tests[name] = "failed" if "failed" in (word, tests.get(name)) else word
        for child in failures:
            reports[name] = "\n".join(filter(None, (reports.get(name), child.get("message"), child.text)))
    return tests, reports


def green(outcome: Outcome) -> str:
    passed = outcome.tests.get("test_bad") == outcome.tests.get("test_good") == "passed"
    return YES if passed and outcome.exit_code == 0 else NO


def reported(outcome: Outcome) -> str:
    """The run ended by itself, and the bad test is a failure under its own name."""
    failed = outcome.tests.get("test_bad") == "failed" and outcome.tests.get("test_good") != "failed"
    return YES if failed and outcome.exit_code == 1 else NO


def contained(outcome: Outcome) -> str:
    """Reported, and the good test ran as well."""
    return reported(outcome) if outcome.tests.get("test_good") == "passed" else NO


def names_line(outcome: Outcome) -> str:
    """The crashed line, in the test's report (JUnit's or the terminal's) or at least somewhere in the output."""
    line = re.compile(rf'test_case\.py(?::|", line ){line_of_crash()}\b')
    if line.search(outcome.reports.get("test_bad", "") + outcome.output.partition("= FAILURES =")[2]):
        return YES
    return "on stderr" if line.search(outcome.output) else NO


def names_signal(outcome: Outcome) -> str:
    """The failure of the bad test says by which signal its worker died."""
    named = re.search(r"SIGKILL|signal 9\b|exit ?code[ =:]*-9\b", outcome.reports.get("test_bad", ""))
    return YES if named and contained(outcome) == YES else NO


def goes_on(python: Outcome, native: Outcome) -> str:
    after = [contained(outcome) == YES for outcome in (python, native)]
    return YES if all(after) else "Python's only" if after[0] else "native only" if after[1] else NO


def told_from_slow(deadlock: Outcome, computation: Outcome) -> str:
    """The same limit ends the one and lets the other finish."""
    return YES if reported(deadlock) == YES and green(computation) == YES else NO


def leak_reported(outcome: Outcome) -> str:
    about_leaks = re.search(r"LEAK:|MemoryLeakError|allowed to leak", outcome.reports.get("test_bad", ""))
    return YES if about_leaks and contained(outcome) == YES else NO


@dataclass(frozen=True)
class Row:
    """A line of the table: what is asked, for whom it is a fair question, and who answers it."""

    title: str
    scope: str
    cases: tuple[str, ...]
    judge: Callable[..., str]


ROWS = (
    Row("a segfault fails its test, and the next one runs", CRASHES, ("segfault",), contained),
    Row("the report names the line that crashed", CRASHES, ("segfault",), names_line),
    Row("`os._exit(0)` half-way fails the test", CRASHES, ("silent exit",), contained),
    Row("abort in an `atexit` callback fails the test", CRASHES, ("abort at exit",), contained),
    Row("abort when its garbage is collected fails the test", CRASHES, ("abort in collection",), contained),
    Row("a killed worker process is named with its signal", CRASHES, ("worker killed",), names_signal),
    Row("deadlock of Python locks ends and is reported", HANGS, ("lock cycle",), reported),
    Row("deadlock in native code that holds the GIL, too", HANGS, ("native deadlock",), reported),
    Row("the run goes on after them", HANGS, ("lock cycle", "native deadlock"), goes_on),
    Row("tells a deadlock from slow", HANGS, ("lock cycle", "long computation"), told_from_slow),
    Row("leak of Python objects reported", LEAKS, ("python leak",), leak_reported),
    Row("leak of C memory reported", LEAKS, ("native leak",), leak_reported),
    Row("no false alarm: `deque(maxlen=10_000)` fills", LEAKS, ("replay buffer",), green),
    Row("no false alarm: sawtooth of a rollout buffer", LEAKS, ("sawtooth",), green),
)


@dataclass
class Environment:
    """A contender's virtual environment."""

    directory: Path

    @property
    def python(self) -> str:
        return str(self.directory / "bin" / "python")

    def install(self, *packages: str) -> None:
        command = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run(command, check=True, timeout=600, stdout=sys.stderr)

    def versions(self) -> dict[str, str]:
        command = [self.python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]
        listed = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout
        return {package["name"].lower(): package["version"] for package in json.loads(listed)}


def end_run(run: str) -> None:
    """Kills whatever the run left: it inherited the run's name in its environment, into other sessions as well."""
    wanted = f"{_RUN}={run}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def run_case(environment: Environment, contender: Contender, case: str) -> Outcome:
    """One run of one case, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as name:
        directory, run = Path(name), uuid.uuid4().hex
        (directory / "test_case.py").write_text(file_for(contender, case), encoding="utf-8")
        command = ["nice", "-n10", environment.python, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
        command += ["--rootdir=.", "--junit-xml=junit.xml", *contender.options, "test_case.py"]
        inherited = {key: text for key, text in os.environ.items() if not key.startswith(("PYTEST", "PYTHON"))}
        variables = {**inherited, **contender.environment, _RUN: run, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": name}
        began = time.monotonic()
        # a file, not a pipe: a process that outlives the run would keep a pipe open
        with (directory / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=directory, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                exit_code: int | None = process.wait(HARD_LIMIT_OF_LEAKS if case in LAPS else HARD_LIMIT)
            except subprocess.TimeoutExpired:
                exit_code = None
            finally:
                end_run(run)
                process.wait()
        seconds = time.monotonic() - began
        junit = directory / "junit.xml"
        tests, reports = read_junit(junit.read_text(encoding="utf-8") if junit.exists() else "")
        text = (directory / "output.txt").read_text(encoding="utf-8", errors="replace")
        return Outcome(exit_code, tests, reports, text, seconds)


@dataclass
class Column:
    """A contender's cells."""

    contender: Contender
    versions: dict[str, str]
    newest: str
    runs_on_newest: str
    cells: dict[str, str]

    def told(self) -> str:
        names = [name if "/" not in name else "pytest-rlstability" for name in self.contender.packages]
        packages = ", ".join(f"{name} {self.versions[name]}" for name in [*names, "pytest"])
        variables = "".join(f"{name}={value} " for name, value in self.contender.environment.items())
        command = " ".join(["pytest", *self.contender.options])
        return f"{packages}: `{variables}{command}`"


def prepare(environment: Environment, contender: Contender) -> tuple[str, str]:
    """Installs the contender; the newest pytest, and whether a green file is green with it."""
    if not Path(environment.python).exists():
        venv.create(environment.directory, with_pip=True)
    environment.install("--upgrade", "pytest")
    newest = environment.versions()["pytest"]
    environment.install(*contender.packages)
    outcome = run_case(environment, contender, "green")
    works = green(outcome) if environment.versions()["pytest"] == newest else NO
    tell(contender, f"green on pytest {newest}", works, [outcome])
    if works == NO:
        environment.install(f"pytest=={OLDER_PYTEST}")
    return newest, works


def tell(contender: Contender, title: str, cell: str, outcomes: Iterable[Outcome]) -> None:
    how = " | ".join(outcome.told() for outcome in outcomes)
    print(f"{contender.name}: {title}: {cell} ({how})", file=sys.stderr, flush=True)


def measure(contender: Contender, directory: Path, show: bool) -> Column:
    """Every row in the contender's scope."""
    environment = Environment(directory / contender.name.replace(" ", ""))
    newest, works = prepare(environment, contender)
    outcomes: dict[str, Outcome] = {}
    cells: dict[str, str] = {}
    for row in ROWS:
        if row.scope not in contender.scopes:
            cells[row.title] = NOT_MADE_FOR
            continue
        for case in row.cases:
            if case not in outcomes:
                outcomes[case] = run_case(environment, contender, case)
                if show:
                    print(outcomes[case].output, file=sys.stderr)
        found = [outcomes[case] for case in row.cases]
        cells[row.title] = row.judge(*found)
        tell(contender, row.title, cells[row.title], found)
    return Column(contender, environment.versions(), newest, works, cells)


def table(columns: list[Column]) -> str:
    """The columns as a Markdown table, with what was run below it."""
    lines = ["| | " + " | ".join(column.contender.name for column in columns) + " |"]
    lines.append("| --- |" + " --- |" * len(columns))
    works = [
        YES if column.runs_on_newest == YES else f"no (on {column.versions['pytest']} below)" for column in columns
    ]
    lines.append(f"| runs on pytest {columns[0].newest} | " + " | ".join(works) + " |")
    for row in ROWS:
        lines.append(f"| {row.title} | " + " | ".join(column.cells[row.title] for column in columns) + " |")
    lines += ["", *(f"- {column.told()}" for column in columns)]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[contender.name for contender in CONTENDERS], action="append")
    parser.add_argument("--environments", type=Path, help="directory to keep the virtual environments in")
    parser.add_argument("--show", action="store_true", help="print the output of every run")
    arguments = parser.parse_args()
    chosen = [contender for contender in CONTENDERS if not arguments.only or contender.name in arguments.only]
    with tempfile.TemporaryDirectory(prefix="peers-environments-") as temporary:
        directory = arguments.environments or Path(temporary)
        columns = [measure(contender, directory, arguments.show) for contender in chosen]
    print(f"Python {sys.version.split()[0]}, limit on hangs {LIMIT} s, one run of each case\n")
    print(table(columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
