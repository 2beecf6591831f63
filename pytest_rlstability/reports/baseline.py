"""``--rl-baseline`` and ``--rl-save-baseline``: this run beside a saved one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlstability.reports.registry import path_option

if TYPE_CHECKING:
    from pytest_rlstability.baselines.compare import Comparison
    from pytest_rlstability.baselines.file import Baseline

TOLERANCE = "20%"
TOLERANCE_FORM = "a share such as 20% or 0.2"
_SHOWN = 20


class BaselineReport:
    """Measures the run's tests as they end; at the end of the run compares them with one baseline and saves another.

    Also a plugin: it has to know which tests were collected, to tell those that vanished from those not asked for.
    """

    def __init__(
        self, config: pytest.Config, compare_with: Path | None, save_to: Path | None, tolerance: float
    ) -> None:
        from pytest_rlstability.baselines.measures import Gatherer

        self.trouble = ""
        self._config = config
        self._compare_with = compare_with
        self._save_to = save_to
        self._tolerance = tolerance
        self._before = None if compare_with is None else _load(compare_with, "--rl-baseline")
        self._replaced = _load_if_there(save_to)
        self._gatherer = Gatherer()
        self._machine = ""
        self._present: set[str] = set()
        self._broken: set[str] = set()
        self._lines: list[str] = []

    def hear(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "session":
            self._machine = f"{event.get('host', '')}: {event.get('platform', '')}"
        self._gatherer.hear(event)

    def close(self) -> None:
        comparison = None if self._before is None else self._compare(self._before)
        if self._save_to is not None:
            if comparison is not None and comparison.worse and self._save_to == self._compare_with:
                self._lines.append(f"{self._save_to.name} is left as it was: a worse run does not replace a better one")
            else:
                self._save(self._save_to)

    def lines(self) -> Sequence[str]:
        return self._lines

    # Comparing

    def _compare(self, before: Baseline) -> Comparison:
        from pytest_rlstability.baselines.compare import compare

        assert self._compare_with is not None
        name = self._compare_with.name
        comparison = compare(before.tests, self._gatherer.tests, self._tolerance)
        self._complain([f"worse than {name}: {change.line()}" for change in comparison.worse])
        self._say([f"better than {name}: {change.line()}" for change in comparison.better])
        self._say(_listed(f"not in {name}", comparison.new))
        self._say(_listed(f"in {name} but no longer there", self._vanished(before)))
        tests = f"{comparison.compared} test{'' if comparison.compared == 1 else 's'}"
        counts = f"{len(comparison.worse)} worse, {len(comparison.better)} better"
        self._say(
            [f"compared {tests} with {name}: {counts} (tolerated: {self._tolerance:.0%} and the runs' own spread)"]
        )
        if before.machine != self._machine:
            self._say([f"{name} was saved on another machine ({before.machine}): times and peaks may differ for that"])
        return comparison

    def _complain(self, lines: list[str]) -> None:
        self.trouble = "\n".join([self.trouble, *_first(lines)]).strip()

    def _say(self, lines: Sequence[str]) -> None:
        self._lines += _first(lines)

    def _vanished(self, baseline: Baseline) -> list[str]:
        """The tests of *baseline* that this run asked for and did not find."""
        from pytest_rlstability.baselines.scope import covered, is_narrowed

        if is_narrowed(self._config) or not self._present:
            return []
        config = self._config
        missing = [name for name in baseline.tests if name not in self._present | self._gatherer.tests.keys()]
        missing = [name for name in missing if name.partition("::")[0] not in self._broken]
        return sorted(covered(config.args, config.invocation_params.dir, config.rootpath, missing))

    # Saving

    def _save(self, path: Path) -> None:
        """Tests that were not run this time keep what was saved of them, except those that are no longer there."""
        from pytest_rlstability.baselines.file import Baseline, save

        tests = dict(self._gatherer.tests)
        if self._replaced is not None:
            vanished = set(self._vanished(self._replaced))
            tests = {**{k: v for k, v in self._replaced.tests.items() if k not in vanished}, **tests}
        try:
            save(path, Baseline(tests, self._machine))
        except OSError as error:
            self._complain([f"--rl-save-baseline={path}: {error.strerror or error}; the baseline is not saved"])
        else:
            self._say([f"baseline of {len(tests)} tests saved in {path}"])

    # What was collected

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._broken.add(report.nodeid.partition("::")[0])

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._present.update(item.nodeid for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._present.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        self._present.update(ids)


def _first(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"... and {more} more"] if more > 0 else [])]


def _listed(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return [f"{what}: {shown}"]


def _load(path: Path, flag: str) -> Baseline:
    from pytest_rlstability.baselines.file import BaselineError, load

    try:
        return load(path)
    except BaselineError as error:
        raise pytest.UsageError(f"{flag}={path}: {error}") from None


def _load_if_there(path: Path | None) -> Baseline | None:
    """What is about to be replaced. A file that is no baseline is not replaced: it may be a slip of the hand."""
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


def add_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    text = "compare growth, peak memory, lap time and pass rate with a saved run; worse fails"
    group.addoption("--rl-baseline", metavar="PATH", default=None, help=text)
    text = "save growth, peak memory, lap time and pass rate of this run"
    group.addoption("--rl-save-baseline", metavar="PATH", default=None, help=text)
    text = f"how much worse than --rl-baseline is tolerated (default: {TOLERANCE})"
    parser.addini("rl_baseline_tolerance", text, default=TOLERANCE)


def open_report(config: pytest.Config) -> BaselineReport | None:
    compare_with, save_to = path_option(config, "rl_baseline"), path_option(config, "rl_save_baseline")
    if compare_with is None and save_to is None:
        return None
    given = str(config.getini("rl_baseline_tolerance"))
    try:
        tolerance = parse_tolerance(given)
    except ValueError:
        raise pytest.UsageError(f"rl_baseline_tolerance={given}: accepted is {TOLERANCE_FORM}") from None
    report = BaselineReport(
        config,
        None if compare_with is None else Path(compare_with),
        None if save_to is None else Path(save_to),
        tolerance,
    )
    config.pluginmanager.register(report, "rlstability-baseline")
    return report
