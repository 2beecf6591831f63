"""Runs one command under watch, from its start to the verdict on its end."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_rlstability.model.events import Event, Finished, Judged, Outcome, Sample, Session, Slow, Started
from pytest_rlstability.model.messages import Sampled, WorkerDied
from pytest_rlstability.model.run import SCRIPT, Observed, Run, RunSpec
from pytest_rlstability.model.series import SampleTable
from pytest_rlstability.model.shells import join_command
from pytest_rlstability.model.stack_dump import parse_dump
from pytest_rlstability.model.verdict import Verdict
from pytest_rlstability.osinfo.fatal_signals import signal_number
from pytest_rlstability.osinfo.machine import platform_line, versions_line
from pytest_rlstability.osinfo.shell import own_shell
from pytest_rlstability.script.command import Command, environment_for
from pytest_rlstability.script.watchdogs import MemorySamples, ScriptStall, SecondInterrupt
from pytest_rlstability.session.connections import Connections
from pytest_rlstability.session.supervisor import Supervisor, WatchedRun
from pytest_rlstability.session.test_process import TestProcess
from pytest_rlstability.session.watchdogs import KillCondition
from pytest_rlstability.session.watchdogs.limits import HardLimit, HeldCrash, MemoryCap
from pytest_rlstability.verdicts.script import judge_script

_LONGEST_WAIT = 1.0
_ROWS = 512


@dataclass(frozen=True)
class WatchSettings:
    """What may end a script, and what it begins with. 0: no such limit; no *seed*: the script's own randomness."""

    stall_after: float = 600.0
    limit: float = 0.0
    memory: int = 0
    native: str = "auto"
    seed: int | None = None


@dataclass
class Watched:
    """A command that has ended."""

    run: Run
    verdict: Verdict | None
    seed: int | None
    reproduce: str
    samples: SampleTable
    """Its memory over time. The laps are heartbeats."""

    @property
    def ended_by_us(self) -> bool:
        return self.run.ending.killed is not None

    @property
    def status(self) -> int:
        """As a shell gives it: 128 and the number of the signal that ended it."""
        signal = parse_dump(self.run.ending.dump).signal
        if signal:
            return 128 + signal_number(signal)
        status = None if self.run.ending.exit is None else self.run.ending.exit.status
        return 1 if status is None else status if status >= 0 else 128 - status

    def finished(self) -> Finished:
        run, ending = self.run, self.run.ending
        failed = self.verdict is not None or self.status != 0
        return Finished(
            test=run.spec.nodeid,
            outcome=Outcome.FAILED if failed else Outcome.PASSED,
            duration=run.seconds,
            phases={"call": run.seconds},
            backend=run.spec.backend,
            seed=self.seed,
            laps=run.seen.lap,
            peak_memory=run.peak_memory,
            leftovers=() if ending.exit is None else ending.exit.strays,
            stages=[*run.seen.stages_done, *run.seen.stages_open],
            verdict=self.verdict,
            reproduce=self.reproduce if failed else None,
            report=f"exit status {self.status}" if failed and self.verdict is None else "",
        )


class ScriptWatch:
    """``watch(words)`` runs a command and gives what came of it. Every event goes to *emit* on the way."""

    def __init__(
        self,
        settings: WatchSettings,
        emit: Callable[[Event], None],
        reproduce: Sequence[str] = (),
        on_level: Callable[[Judged], None] = lambda judged: None,
    ) -> None:
        self._settings = settings
        self._host = socket.gethostname()
        self._handle = emit
        self._on_level = on_level
        """Called when a probe has crossed one of its levels."""
        self._reproduce = reproduce
        self._samples = SampleTable(_ROWS)

    def watch(self, words: Sequence[str]) -> Watched:
        """Raises ``CannotStartError``."""
        settings, connections = self._settings, Connections().open()
        process = connections.expect()
        hold = settings.native != "off"
        try:
            environment = environment_for(process, connections, hold=hold, seed=settings.seed)
            command = Command(words, connections, environment)
            process.pid = command.pid
            spec = RunSpec(join_command(words, own_shell()), SCRIPT, settings.seed or 0, settings.memory or None)
            run = Run(spec, Observed(command.pid))
            self._emit(
                Session(
                    pid=os.getpid(),
                    root=os.getcwd(),
                    platform=platform_line(),
                    versions=versions_line(),
                    seed=settings.seed,
                    arguments=[*words],
                )
            )
            self._emit(Started(test=run.spec.nodeid, pid=command.pid, backend=SCRIPT, seed=settings.seed))
            self._follow(command, process, run, connections, hold=hold)
            run.seen.pid = process.pid
            for pid, worker in dead_workers(connections.directory, process.pid).items():
                run.seen.dead_workers.setdefault(pid, worker)
        finally:
            connections.close()
        reproduce = join_command([*self._reproduce, "--", *words], own_shell())
        watched = Watched(run, judge_script(run), settings.seed, reproduce, self._samples)
        self._emit(watched.finished())
        return watched

    def _follow(
        self, command: Command, process: TestProcess, run: Run, connections: Connections, *, hold: bool
    ) -> None:
        """Watch the command until it has ended."""
        supervisor = Supervisor(connections, self._settings.native, self._emit_sample)
        second_interrupt = SecondInterrupt(connections.directory)
        watched = WatchedRun(owner=command, process=process, run=run)
        watched.kill_conditions = [second_interrupt, *self._limits(run, connections, supervisor)]
        watched.observers = [MemorySamples(command), *([HeldCrash()] if hold else [])]
        command.follow(process)
        try:
            with command.forwarding_signals():
                while not supervisor.is_over(watched):
                    supervisor.wait_for_news([watched], at_most=_LONGEST_WAIT)
                    if command.interrupts > 1:
                        second_interrupt.due = time.monotonic()
        finally:
            if process.exit is None or process.killed:
                command.end(process)
                command.end_rest()

    def _limits(self, run: Run, connections: Connections, supervisor: Supervisor) -> list[KillCondition]:
        settings, directory = self._settings, connections.directory
        conditions: list[KillCondition] = []
        if settings.limit:
            conditions.append(HardLimit("limit (--limit)", settings.limit, directory))
        if settings.memory:
            conditions.append(MemoryCap(settings.memory))
        if settings.stall_after:
            conditions.append(
                ScriptStall(
                    settings.stall_after,
                    directory,
                    lambda text: self._emit(Slow(test=run.spec.nodeid, text=text)),
                    supervisor.sample,
                    native=settings.native,
                    strangers=connections.pids,
                )
            )
        return conditions

    def _emit(self, event: Event) -> None:
        self._handle(replace(event, host=self._host, worker="main"))

    def _emit_sample(self, watched: WatchedRun, sample: Sampled) -> None:
        self._samples.add(sample.lap, sample.seconds, sample.values)
        event = Sample.of(watched.run.spec.nodeid, sample)
        if event.judged or watched.thinning.keeps(sample.seconds):
            self._emit(event)
        for judged in event.judged or ():
            self._on_level(judged)


def dead_workers(directory: Path, script: int) -> dict[int, WorkerDied]:
    """The Python processes of a script that wrote their stacks because a signal killed them."""
    found = {}
    for path in sorted(directory.glob("*.fault")):
        dump = path.read_text(errors="replace")
        pid, signal = int(path.stem), parse_dump(dump).signal
        if signal and pid != script:
            found[pid] = WorkerDied("python", pid, signal, dump)
    return found
