"""The soaks of a run: those that are running, and a closing line for each that ended or was cut short."""

from __future__ import annotations

from dataclasses import replace

from pytest_rlstability.model.events import Event, Finished, Outcome, Progress
from pytest_rlstability.model.units import format_duration
from pytest_rlstability.session.terminal.run_lines import first_lines


class SoakSummary:
    """Handles the events of a run."""

    def __init__(self) -> None:
        self._running: dict[str, Progress] = {}
        self._lines: list[str] = []

    def handle(self, event: Event) -> None:
        match event:
            case Progress():
                self._running[event.test] = event
            case Finished():
                self._running.pop(event.test, None)
                if event.soak is not None:
                    cut = event.outcome is Outcome.INTERRUPTED
                    parts = [*([f"interrupted, {event.soak.so_far()}"] if cut else []), *event.soak.lines()]
                    self._lines.append(f"soak {event.test}: {'; '.join(parts)}")

    def cut_short(self) -> list[Finished]:
        """At the end of the run: a ``Finished`` event for every soak that was still running."""
        running, self._running = self._running, {}
        return [_interrupted(progress) for progress in running.values()]

    def lines(self) -> list[str]:
        """A closing line for each soak."""
        return first_lines(self._lines, "soaks")


def _interrupted(progress: Progress) -> Finished:
    state = progress.soak
    seconds = min(progress.seconds, state.duration)
    return Finished(
        test=progress.test,
        outcome=Outcome.INTERRUPTED,
        duration=progress.seconds,
        laps=progress.laps,
        stages=[progress.stage] if progress.stage else [],
        report=f"interrupted after {format_duration(seconds)} in lap {progress.laps}, {state.so_far()}",
        soak=replace(state, seconds=seconds, laps=progress.laps),
        host=progress.host,
        worker=progress.worker,
    )
