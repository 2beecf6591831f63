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
