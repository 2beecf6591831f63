"""The baseline file: sorted JSON, one measure a line, so that a diff of two shows what changed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_rlstability.reports.baselines.measures import Measure, TestMeasures
from pytest_rlstability.reports.files import replacing

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
        "tests": {name: _test_to(baseline.tests[name]) for name in sorted(baseline.tests)},
    }
    with replacing(path) as file:
        file.write(_MEASURE.sub(r'{"value": \1, "spread": \2}', json.dumps(data, indent=1)) + "\n")


def _test_to(test: TestMeasures) -> dict[str, object]:
    entry: dict[str, object] = {"runs": test.runs, "passes": test.passes}
    for name in _MEASURES:
        if (measure := getattr(test, name)) is not None:
            entry[name] = _rounded(asdict(measure))
    if test.lap_seconds is not None:
        entry |= _rounded({"load": test.load})
    if test.growth:
        entry["growth"] = {name: _rounded(asdict(test.growth[name])) for name in sorted(test.growth)}
    return entry


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


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    """*numbers* to three digits: more would make every diff longer."""
    short = {name: float(f"{number:.3g}") for name, number in numbers.items()}
    return {name: int(number) if number.is_integer() else number for name, number in short.items()}
