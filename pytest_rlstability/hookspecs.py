"""What other packages can add: one hook for each kind of thing. ``docs/extending.md`` has an example of each.

A hook is implemented in a pytest plugin or in the root ``conftest.py``, as a function with the hook's name. It takes
the arguments that it needs. The package adds what it ships by the same hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_rlstability.leaks.known_leaks import KnownLeak
    from pytest_rlstability.leaks.signals.protocol import Signal
    from pytest_rlstability.model.run import Run
    from pytest_rlstability.model.verdict import Verdict
    from pytest_rlstability.reports.exposition import Family
    from pytest_rlstability.session.event_bus import Report
    from pytest_rlstability.session.watchdogs import KillCondition, Observer, WatchContext
    from pytest_rlstability.steps.doctor_step import DoctorStep


@pytest.hookspec
def pytest_rlstability_signals() -> Sequence[type[Signal]] | None:
    """Add signals: things that can grow, and that leak checks judge.

    Called in pytest's process and in the processes of tests. The signals of the package come first, then those of other
    plugins. A signal's name must be unique; ``rl_no_leak(signals=["sockets"])`` then chooses it.
    """


@pytest.hookspec
def pytest_rlstability_known_leaks() -> Sequence[KnownLeak] | None:
    """Add known leaks: what a library keeps although the test is not to blame.

    Called in the test's process when a leak check opens and again after its warm-up. Return an object for each library
    that the test has imported by then. What it counts is subtracted from what was measured.
    """


@pytest.hookspec(firstresult=True)
def pytest_rlstability_metric(name: str) -> Family | None:
    """Say which Prometheus metric a sampled value belongs to; None for a *name* that is not yours.

    A value that no plugin knows is ``rlstability_probe{name=...}``. The label ``test`` is always added, and so is a
    metric for the growth per lap and per minute.
    """


@pytest.hookspec
def pytest_rlstability_kill_conditions(item: pytest.Item, context: WatchContext) -> Sequence[KillCondition] | None:
    """Add reasons to end a running test.

    Called in pytest's process for each run of a test in a process of its own. Return an object for each reason. It is
    checked when it is due, and what it returns becomes the test's CRASH unless a judge has another verdict.
    """


@pytest.hookspec
def pytest_rlstability_observers(item: pytest.Item, context: WatchContext) -> Sequence[Observer] | None:
    """Add objects that look at a running test now and then, and never end it.

    Called like ``pytest_rlstability_kill_conditions``.
    """


@pytest.hookspec(firstresult=True)
def pytest_rlstability_judge(run: Run) -> Verdict | None:
    """Judge a finished run; None leaves it to the next judge.

    Called in pytest's process after each run of a test in a process of its own. The judges of other plugins are asked
    before that of the package, and can say more about what they know. With a verdict, the test fails.
    """


@pytest.hookspec
def pytest_rlstability_doctor_steps() -> Sequence[DoctorStep] | None:
    """Add steps to ``rlstability doctor``.

    The doctor finds a plugin by its ``pytest11`` entry point, if its distribution requires ``pytest-rlstability``. It
    calls this hook without a pytest run, and runs each step in a fresh process.
    """


@pytest.hookspec
def pytest_rlstability_before_import(item: pytest.Item) -> str | None:
    """Name a function, ``package.module:function``, to call before the modules of *item* are imported.

    Only a fresh interpreter can do that: with the backend ``spawn`` the function is called first of all in the test's
    process. With ``zygote`` it is not called, because the modules are imported before a test is chosen.
    """


@pytest.hookspec
def pytest_rlstability_reports(config: pytest.Config) -> Sequence[Report] | None:
    """Open reports: objects that handle every event of the run (``pytest_rlstability.model.events``).

    Called once, before collection, in the process that shows results (with xdist: the controller), if the switch is on.
    Return those that were asked for. Their options are added by ``pytest_addoption``, as in any plugin.
    """
