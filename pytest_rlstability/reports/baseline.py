"""``--rl-baseline`` and ``--rl-save-baseline``: compares this run with a saved one.

The file is sorted JSON, one measure a line, so that a diff of two shows what changed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.config.options import path_option
from pytest_rlstability.model.events import Event, Session
from pytest_rlstability.model.units import counted
from pytest_rlstability.reports.baselines.compare import Comparison, compare
from pytest_rlstability.reports.baselines.measures import Gatherer, Measure, TestMeasures
from pytest_rlstability.reports.files import replacing
from pytest_rlstability.session.terminal.run_lines import first_lines

SCHEMA = 1
KIND = "rl-stability baseline"
_MEASURES = ("peak_memory", "lap_seconds", "lap_cpu_seconds")
_MEASURE = re.compile(r'\{\s*"value": ([^,\s]+),\s*"spread": ([^,\s]+)\s*\}')


class BaselineError(Exception):
    """The file cannot be read as a baseline; the text says why."""


@dataclass(frozen=True)
class Baseline:
    """The tests of a saved run, and the machine it ran on."""

    tests: Mapping[str, TestMeasures]
    machine: str = ""
    saved: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def load(path: Path) -> Baseline:
    """Read a baseline, or raise ``BaselineError``."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BaselineError("there is no such file; --rl-save-baseline=PATH makes one") from None
    except OSError as error:
        raise BaselineError(error.strerror or str(error)) from None
    except ValueError as error:
        raise BaselineError(f"the file is damaged: not JSON ({error})") from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise BaselineError("not a baseline: --rl-save-baseline=PATH makes one")
    schema = data.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise BaselineError(
            f"the file has schema {schema} and this pytest-rlstability knows {SCHEMA}: "
            "pip install -U pytest-rlstability, or save it again"
        )
    try:
        tests = {str(name): _test_from(entry) for name, entry in data["tests"].items()}
        return Baseline(tests, str(data["machine"]), str(data["saved"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BaselineError(f"the file is damaged: {type(error).__name__}: {error}") from None


def save(path: Path, baseline: Baseline) -> None:
    """Replace the baseline at *path*, whole or not at all. Raises ``OSError``."""
    data = {
        "kind": KIND,
        "schema": SCHEMA,
        "saved": baseline.saved,
        "machine": baseline.machine,
        "tests": {name: _plain(asdict(baseline.tests[name])) for name in sorted(baseline.tests)},
    }
    with replacing(path) as file:
        file.write(_MEASURE.sub(r'{"value": \1, "spread": \2}', json.dumps(data, indent=1)) + "\n")


def _plain(value: Any) -> Any:
    """*value* without what was not measured, and with numbers of three digits: more would make every diff longer."""
    if isinstance(value, dict):
        return {name: _plain(value[name]) for name in value if value[name] not in (None, {})}
    short = float(f"{value:.3g}")
    return int(short) if short.is_integer() else short


def _test_from(entry: Mapping[str, Any]) -> TestMeasures:
    runs, passes = int(entry["runs"]), int(entry["passes"])
    if not 0 <= passes <= runs or not runs:
        raise ValueError(f"{passes} passes in {runs} runs")
    return TestMeasures(
        runs,
        passes,
        growth={str(name): _measure_from(measure) for name, measure in entry.get("growth", {}).items()},
        load=float(entry.get("load", 0.0)),
        **{name: _measure_from(entry[name]) for name in _MEASURES if name in entry},
    )


def _measure_from(entry: Mapping[str, Any]) -> Measure:
    return Measure(float(entry["value"]), float(entry["spread"]))


class BaselineReport:
    """Measures tests as they end. At the end of the run, compares them with a baseline and saves one."""

    def __init__(
        self, config: pytest.Config, compare_with: Path | None, save_to: Path | None, tolerance: float
    ) -> None:
        self.trouble = ""
        self._root = config.rootpath
        self._compare_with = compare_with
        self._save_to = save_to
        self._tolerance = tolerance
        self._before = None if compare_with is None else _load(compare_with, "--rl-baseline")
        self._replaced = _load_if_there(save_to)
        self._gatherer = Gatherer()
        self._machine = ""
        self._lines: list[str] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Session):
            self._machine = f"{event.host}: {event.platform}"
        self._gatherer.handle(event)

    def close(self) -> None:
        is_worse = self._before is not None and bool(self._compare(self._before).worse)
        if self._save_to is not None and is_worse and self._save_to == self._compare_with:
            self._lines.append(f"{self._save_to.name} is left as it was: a worse run does not replace a better one")
        elif self._save_to is not None:
            self._save(self._save_to)

    def lines(self) -> Sequence[str]:
        return self._lines

    def _compare(self, before: Baseline) -> Comparison:
        assert self._compare_with is not None
        name = self._compare_with.name
        comparison = compare(before.tests, self._gatherer.tests, self._tolerance, self._gatherer.signals)
        self.trouble = "\n".join(first_lines([f"worse than {name}: {change.line()}" for change in comparison.worse]))
        tests = counted(comparison.compared, "test")
        counts = f"{len(comparison.worse)} worse, {len(comparison.better)} better"
        self._lines += [
            *first_lines([f"better than {name}: {change.line()}" for change in comparison.better]),
            *_listed(f"not in {name}", comparison.new),
            *_listed(f"in {name} but no longer there", self._vanished(before)),
            f"compared {tests} with {name}: {counts} (tolerated: {self._tolerance:.0%} and the runs' own spread)",
        ]
        if before.machine != self._machine:
            where = f"saved on another machine ({before.machine})"
            self._lines.append(f"{name} was {where}: times and peaks may differ because of that")
        return comparison

    def _vanished(self, baseline: Baseline) -> list[str]:
        """The tests of *baseline* whose file is gone."""
        return [test for test in sorted(baseline.tests) if not (self._root / test.partition("::")[0]).exists()]

    def _save(self, path: Path) -> None:
        """Save the measures of this run. Tests that were not run keep theirs, except those that have vanished."""
        tests = dict(self._gatherer.tests)
        if self._replaced is not None:
            vanished = set(self._vanished(self._replaced))
            tests = {**{k: v for k, v in self._replaced.tests.items() if k not in vanished}, **tests}
        try:
            save(path, Baseline(tests, self._machine))
        except OSError as error:
            trouble = f"--rl-save-baseline={path}: {error.strerror or error}; the baseline is not saved"
            self.trouble = f"{self.trouble}\n{trouble}".strip()
        else:
            self._lines.append(f"baseline of {counted(len(tests), 'test')} saved in {path}")


def _listed(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return [f"{what}: {shown}"]


def _load(path: Path, flag: str) -> Baseline:
    try:
        return load(path)
    except BaselineError as error:
        raise pytest.UsageError(f"{flag}={path}: {error}") from None


def _load_if_there(path: Path | None) -> Baseline | None:
    """The baseline that will be replaced. A file that is not a baseline is an error: its name may be a mistake."""
    if path is None or not path.exists() or (path.is_file() and not path.stat().st_size):
        return None
    return _load(path, "--rl-save-baseline")


def parse_tolerance(text: str) -> float:
    """A share from ``20%`` or ``0.2``; a number above 1 is read as per cent.

    >>> parse_tolerance("20%"), parse_tolerance("0.2"), parse_tolerance("20")
    (0.2, 0.2, 0.2)
    """
    stripped = text.strip()
    number = float(stripped.removesuffix("%"))
    if not 0 <= number < 1e6:
        raise ValueError(text)
    return number / 100 if stripped.endswith("%") or number > 1 else number


def open_report(config: pytest.Config) -> BaselineReport | None:
    compare_with, save_to = path_option(config, "rl_baseline"), path_option(config, "rl_save_baseline")
    if compare_with is None and save_to is None:
        return None
    given = str(config.getini("rl_baseline_tolerance"))
    try:
        tolerance = parse_tolerance(given)
    except ValueError:
        raise pytest.UsageError(f"rl_baseline_tolerance={given} is not a share such as 20% or 0.2") from None
    return BaselineReport(config, compare_with, save_to, tolerance)
