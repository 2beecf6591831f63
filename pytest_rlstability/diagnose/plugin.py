"""``pytest --rl-diagnose``: every CRASH of a run is diagnosed, within a budget, and the report says what was found."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pytest_rlstability.config.options import OPTION_GROUP, settings_of
from pytest_rlstability.model.units import DURATION_FORM, parse_duration

if TYPE_CHECKING:
    from pytest_rlstability.model.run import Run
    from pytest_rlstability.model.verdict import Verdict

_BUDGET = "10min"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup(OPTION_GROUP).addoption(
        "--rl-diagnose",
        metavar=_BUDGET,
        nargs="?",
        const=_BUDGET,
        default=None,
        help=f"find out why each CRASH of the run happens, within so much time for all of them (default: {_BUDGET})",
    )


def pytest_configure(config: pytest.Config) -> None:
    given = config.getoption("rl_diagnose")
    if given is None or not settings_of(config).enabled:
        return
    from pytest_rlstability.diagnose.trials import INSIDE

    if INSIDE in os.environ:
        return
    try:
        budget = parse_duration(given)
    except ValueError:
        raise pytest.UsageError(f"--rl-diagnose={given}: expected {DURATION_FORM}") from None
    config.pluginmanager.register(CrashDiagnoser(config, budget), "rlstability-diagnoser")


class CrashDiagnoser:
    """Adds a diagnosis to each CRASH, as a section of its own, until the time is over."""

    def __init__(self, config: pytest.Config, budget: float) -> None:
        self._config = config
        self._left = budget
        self._done: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_rlstability_judge(self, run: Run) -> Generator[None, Verdict | None, Verdict | None]:
        from pytest_rlstability.model.verdict import Word

        verdict = yield
        wanted = verdict is not None and verdict.word == Word.CRASH and not run.spec.repeated
        if verdict is None or not wanted or run.spec.nodeid in self._done or self._left <= 0:
            return verdict
        self._done.add(run.spec.nodeid)
        began = time.monotonic()
        try:
            return self._diagnosed(run, verdict)
        finally:
            self._left -= time.monotonic() - began

    def _diagnosed(self, run: Run, verdict: Verdict) -> Verdict:
        from pytest_rlstability.diagnose.diagnosis import Diagnoser
        from pytest_rlstability.diagnose.report import with_diagnosis
        from pytest_rlstability.diagnose.trials import TestSubject

        path, separator, rest = run.spec.nodeid.partition("::")
        directory = self._config.invocation_params.dir
        argument = os.path.relpath(self._config.rootpath / path, directory) + separator + rest
        subject = TestSubject(argument, run.spec.seed, [f"--rootdir={self._config.rootpath}"])
        diagnoser = Diagnoser(
            subject, is_test=True, seeded=True, budget=self._left, say=self._say, at_once=self._processes()
        )
        return with_diagnosis(verdict, diagnoser.diagnose())

    def _processes(self) -> int:
        """One at a time beside other workers of pytest-xdist."""
        return 1 if hasattr(self._config, "workerinput") else 0

    def _say(self, text: str) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and reporter.verbosity > 0:
            reporter.ensure_newline()
            reporter.write_line(f"rl-stability: diagnosing: {text}")
