"""How long a report takes: an eight-hour soak's event log with a million samples, and a run of 10,000 tests.

``python benchmarks/report_speed.py [--samples 1000000] [--tests 10000] [--keep DIRECTORY] [--browser]``

The logs are simulated; the report is made by ``rlstability report`` in a process of its own, whose time and peak
memory are what the table shows. Promised: under 10 s and under 500 MB for the soak, judged by processor seconds, which
are the same on a machine that has other things to do. With ``--browser`` the pages are
then opened in headless Chromium and scrolled from top to bottom.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 8 * 3600.0
PROMISED_SECONDS, PROMISED_BYTES = 10.0, 500e6
_ORIGIN = {"host": "bench", "worker": "main"}
_VERDICT = {
    "word": "LEAK",
    "headline": "Python memory blocks grow by 0.4 per lap (28.1 B), allocated at env.py:88: self.seen.append(key)",
    "sections": [["who holds it", "env.Arena.seen (list, +1 items per 3 laps)"]],
    "facts": {"signal": "python", "class": "python", "per_lap": 0.4, "limit": 0, "laps": 2_000_000},
}


def _event(kind: str, test: str, at: float, **fields: object) -> str:
    return json.dumps({"event": kind, "schema": 1, "test": test, "time": 1.79e9 + at, **fields, **_ORIGIN}) + "\n"


def soak(samples: int) -> Iterator[str]:
    """One test that laps for eight hours, sampled again and again: sawteeth, noise and a slow leak."""
    noise = random.Random(6)
    test = "tests/test_arena.py::test_training_goes_on"
    yield _event("session", "", 0, platform="Python 3.11.7, Linux", versions="pytest 9.2.0", seed=6, arguments=[])
    yield _event("started", test, 0, pid=7, backend="zygote", seed=6)
    for number in range(samples):
        seconds = SECONDS * number / samples
        lap = 2 * number
        resident = 4e8 + 9e4 * (number % 1999) + 900 * seconds + noise.gauss(0, 2e5)
        values = {
            "fds": 24.0, "threads": 9.0, "processes": 0.0, "zombies": 0.0, "shm": 0.0, "tempfiles": 59.0,
            "python": 210678.0 + number // 3, "objects": float(noise.randrange(3)), "torch": 5e6, "cuda": 0.0,
            "cuda_driver": 0.0, "malloc": resident - 7e7, "mappings": 97775616.0, "workers": 0.0, "rss": resident,
            "uss": resident - 2.5e7,
        }  # fmt: skip
        yield _event("sample", test, seconds, lap=lap, warmup=200, seconds=round(seconds, 3), values=values)
    judged = [{"signal": "python", "state": "leak", "slope": 1 / 6, "slope_limit": None, "per": "lap", "most": None}]
    yield _event("sample", test, SECONDS, lap=2 * samples, warmup=200, seconds=SECONDS, values={}, judged=judged)
    yield _event("finished", test, SECONDS, outcome="failed", duration=SECONDS, laps=2 * samples, verdict=_VERDICT)


def suite(tests: int) -> Iterator[str]:
    """A run of many short tests, one in a hundred failing and one in fifty sampled."""
    noise = random.Random(10)
    yield _event("session", "", 0, platform="Python 3.11.7, Linux", versions="pytest 9.2.0", seed=6, arguments=[])
    for number in range(tests):
        at, test = number * 0.1, f"tests/test_part_{number // 100}.py::test_behaviour[{number % 100}-parameters]"
        yield _event("started", test, at, pid=number, backend="zygote", seed=6)
        for lap in range(60 if number % 50 == 0 else 0):
            values = {"rss": 4e7 + noise.random() * 1e6, "python": 210000.0 + lap % 7, "fds": 24.0}
            yield _event("sample", test, at, lap=lap, warmup=10, seconds=lap / 10, values=values)
        failed = number % 100 == 17
        fields = {"verdict": _VERDICT, "report": "x" * 4000, "output": {"stdout": "y" * 4000}} if failed else {}
        outcome = "failed" if failed else "passed"
        yield _event("finished", test, at + 0.05, outcome=outcome, duration=0.05, peak_memory=4e7, laps=0, **fields)


def measure(log: Path, page: Path) -> tuple[float, float, int]:
    """Seconds, processor seconds and peak bytes of one ``rlstability report``."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "pytest_rlstability", "report", str(log), "-o", str(page)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(command)} ended with {child.returncode}")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


_SCROLL = """(async () => {
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  let longest = 0, most = 0;
  for (let part = 0; part <= 60; part += 1) {
    const began = performance.now();
    scrollTo(0, (document.documentElement.scrollHeight * part) / 60);
    await frame();
    longest = Math.max(longest, performance.now() - began);
    most = Math.max(most, document.getElementsByTagName("*").length);
  }
  return [longest, most, document.documentElement.scrollHeight];
})()"""


def browse(page: Path) -> str:
    """What opening and scrolling *page* in a real browser costs."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from browser import running_browser

    with running_browser() as browser:
        browser.open(page)
        loaded = browser.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        longest, elements, height = browser.evaluate(_SCROLL)
        assert not browser.complaints, browser.complaints
    return (
        f"{page.name}: loaded in {loaded:.0f} ms; scrolled over {height:,.0f} px with at most {elements:,} elements, "
        f"longest step {longest:.0f} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--tests", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="leave the logs and pages here")
    parser.add_argument("--browser", action="store_true", help="also open and scroll the pages in Chromium")
    arguments = parser.parse_args()
    kept = True
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        print(f"{'':23} {'log':>10} {'page':>10} {'seconds':>8} {'of CPU':>7} {'peak':>10}")
        for name, what, count, lines in (
            ("soak", "samples", arguments.samples, soak(arguments.samples)),
            ("suite", "tests", arguments.tests, suite(arguments.tests)),
        ):
            log, page = directory / f"{name}.jsonl", directory / f"{name}.html"
            with open(log, "w", encoding="utf-8") as file:
                file.writelines(lines)
            seconds, busy, peak = measure(log, page)
            sizes = f"{log.stat().st_size / 1e6:>7.1f} MB {page.stat().st_size / 1e6:>7.1f} MB"
            print(
                f"{name:<5} {count:>9,} {what:<7} {sizes} {seconds:>8.2f} {busy:>7.2f} {peak / 1e6:>7.1f} MB",
                flush=True,
            )
            kept = kept and busy < PROMISED_SECONDS and peak < PROMISED_BYTES
            if arguments.browser:
                print(browse(page), flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
