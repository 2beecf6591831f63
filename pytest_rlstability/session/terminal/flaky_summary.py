"""The ``rl_flaky`` tests of a run that kept their promise: a closing line for each. The others have failed."""

from __future__ import annotations

from pytest_rlstability.model.events import Event, Finished, Outcome
from pytest_rlstability.session.terminal.run_lines import first_lines


class FlakySummary:
    """Handles the events of a run."""

    def __init__(self) -> None:
        self._kept: list[str] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Finished) and event.runs and event.outcome is Outcome.PASSED and not event.undecided:
            promised = f"promised {event.limit:g}" if event.limit is not None else ""
            self._kept.append(f"rl_flaky kept: {event.test}: {event.passes} of {event.runs} runs passed, {promised}")

    def lines(self) -> list[str]:
        return first_lines(self._kept, "promises kept")
