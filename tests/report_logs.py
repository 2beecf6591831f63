"""Event logs for tests of reports, written as the plugin writes them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pytest_rlstability.model.events import SCHEMA, Event, from_json

HOSTILE = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"


def event(kind: str, test: str = "", **fields: Any) -> Event:
    """An event as a report gets it, from the values that the log would have."""
    found = from_json({"event": kind, "test": test, "time": time.time(), **fields})
    assert found is not None
    return found


class Log:
    """Collects the events of one run: ``log.test("t.py::test_a", "failed")``, ``log.write(path)``."""

    def __init__(self, host: str = "here", worker: str = "main") -> None:
        self.lines: list[str] = []
        self.clock = 1_790_000_000.25
        self.origin = {"host": host, "worker": worker}
        self.add("session", "", platform="Python 3.11.7, Linux", versions="pytest 9.2.0", seed=7, arguments=["-n", "2"])

    def add(self, kind: str, test: str, **fields: Any) -> None:
        self.clock += 1
        event = {"event": kind, "schema": SCHEMA, "test": test, "time": self.clock, **self.origin, **fields}
        self.lines.append(json.dumps(event) + "\n")

    def started(self, test: str, **fields: Any) -> None:
        self.add("started", test, pid=1, backend="zygote", seed=7, **fields)

    def test(self, test: str, outcome: str = "passed", word: str = "", **fields: Any) -> None:
        """A test from its start to its end; *word* gives it a verdict."""
        self.started(test)
        verdict = {"word": word, "headline": f"{word.lower()} of {test}", "sections": [], "facts": {}} if word else None
        self.add("finished", test, **{"outcome": outcome, "duration": 0.5, "verdict": verdict, **fields})

    def leak(self, test: str, laps: int = 60, slope: float = 1024.0, warmup: int = 20) -> None:
        """A leak: flat while warming up, then *slope* bytes of malloc and one file each lap."""
        self.started(test)
        for lap in range(laps):
            grown = max(0, lap - warmup)
            values = {"rss": 5e7 + slope * grown, "malloc": 1e7 + slope * grown, "fds": 20.0 + grown, "threads": 1.0}
            self.add("sample", test, lap=lap, warmup=warmup if lap >= warmup else 0, seconds=lap / 10, values=values)
        judged = [
            {
                "signal": "fds",
                "state": "leak",
                "reason": "",
                "slope": 1.0,
                "slope_limit": 0.5,
                "per": "lap",
                "most": 500,
            },
            {"signal": "malloc", "state": "leak", "reason": "", "slope": slope, "slope_limit": 0.0, "per": "lap"},
        ]
        self.add("sample", test, lap=laps, warmup=warmup, seconds=laps / 10, values={}, judged=judged)
        verdict = {"word": "LEAK", "headline": "file descriptors grow", "sections": [], "facts": {"signal": "fds"}}
        self.add("finished", test, outcome="failed", duration=6.0, laps=laps, verdict=verdict)

    def write(self, path: Path, *, cut: int = 0) -> Path:
        """The log as a file, without its last *cut* bytes."""
        data = "".join(self.lines).encode()
        path.write_bytes(data[: len(data) - cut])
        return path
