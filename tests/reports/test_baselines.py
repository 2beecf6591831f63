"""Before and after, on lists of numbers: noise is innocent, changes are not; and the file they are kept in."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from report_logs import event

from pytest_rlstability.leaks.signals.registry import signal_facts
from pytest_rlstability.reports.baseline import Baseline, BaselineError, load, open_report, parse_tolerance, save
from pytest_rlstability.reports.baselines.compare import compare, excess, lap_excess, rate_excess
from pytest_rlstability.reports.baselines.measures import Gatherer, Measure, TestMeasures

MIB = 2.0**20


def measured(
    outcome: str = "passed",
    word: str = "",
    laps: list[float] | None = None,
    signals: dict[str, list[float]] | None = None,
    **end: Any,
) -> TestMeasures:
    """The measures of one test with these seconds of each lap and these values after it."""
    gatherer = Gatherer(load=lambda: 0.0)
    gatherer.handle(event("started", "t"))
    seconds = 0.0
    for number, lap in enumerate(laps or []):
        seconds += lap
        values = {name: numbers[number] for name, numbers in (signals or {}).items()}
        gatherer.handle(event("sample", "t", lap=number, seconds=seconds, values=values))
    verdict = {"word": word, "facts": end.pop("facts", {})} if word else None
    gatherer.handle(event("finished", "t", outcome=outcome, verdict=verdict, **end))
    return gatherer.tests["t"]


def judged(before: TestMeasures, after: TestMeasures, tolerance: float = 0.2) -> tuple[list[str], list[str]]:
    found = compare({"t": before}, {"t": after}, tolerance, signal_facts({}))
    return [change.line() for change in found.worse], [change.line() for change in found.better]


def noisy(generator: random.Random, center: float, share: float, count: int = 40) -> list[float]:
    """Lap times with noise, some laps that took three times as long, and a load that comes and goes."""
    load, numbers = 0.0, []
    for _ in range(count):
        load = 0.9 * load + generator.gauss(0, share / 3)
        spike = 3.0 if generator.random() < 0.05 else 1.0
        numbers.append(center * max(0.2, 1 + generator.gauss(0, share) + load) * spike)
    return numbers


# What is measured


def test_lap_time_peak_growth_and_passes_are_measured() -> None:
    test = measured(
        laps=[0.1] * 30,
        signals={
            "malloc": [1000.0 * lap for lap in range(30)],
            "fds": [7.0] * 30,
            "food": [2.0 * n for n in range(30)],
        },
        peak_memory=50 * MIB,
    )
    assert test.lap_seconds is not None
    assert test.lap_seconds.value == pytest.approx(0.1)
    assert test.peak_memory == Measure(50 * MIB)
    assert {name: growth.value for name, growth in test.growth.items()} == {"malloc": 1000.0, "fds": 0.0, "food": 2.0}
    assert (test.runs, test.passes) == (1, 1)


def test_resident_memory_and_what_others_share_is_not_measured_by_growth() -> None:
    numbers = [1e6 * lap for lap in range(30)]
    test = measured(laps=[0.1] * 30, signals={"rss": numbers, "uss": numbers, "tempfiles": numbers})
    assert test.growth == {}


def test_what_a_crash_broke_off_is_not_measured() -> None:
    crashed = measured("failed", "CRASH", laps=[0.1] * 30, signals={"malloc": [9.0] * 30}, peak_memory=5)
    assert crashed == TestMeasures(runs=1, passes=0)
    failed = measured("failed", laps=[0.1] * 30, signals={"malloc": [9.0] * 30}, peak_memory=5)
    assert failed == TestMeasures(runs=1, passes=0)
    leaked = measured("failed", "LEAK", laps=[0.1] * 30, signals={"malloc": [9.0] * 30}, peak_memory=5)
    assert leaked.growth


def test_a_skipped_test_is_not_measured() -> None:
    gatherer = Gatherer(load=lambda: 0.0)
    gatherer.handle(event("finished", "t", outcome="skipped"))
    assert gatherer.tests == {}


def test_the_runs_of_a_repeated_test_are_its_pass_rate() -> None:
    gatherer = Gatherer(load=lambda: 0.0)
    for number in range(1, 11):
        gatherer.handle(event("started", "t"))
        values = {"run_passed": float(number != 4), "run_seconds": 2.0 + number / 100, "peak_memory": 4e7 + number}
        gatherer.handle(event("sample", "t", lap=number, values=values))
    gatherer.handle(event("finished", "t", outcome="passed", peak_memory=1))
    test = gatherer.tests["t"]
    assert (test.runs, test.passes) == (10, 9)
    assert test.lap_seconds is not None
    assert test.lap_seconds.value == pytest.approx(2.055)
    assert test.peak_memory is not None
    assert test.peak_memory.value == pytest.approx(4e7, rel=1e-3)


def test_a_flaky_verdict_brings_its_own_numbers() -> None:
    test = measured("failed", "FLAKY", facts={"runs": 20, "passes": 13})
    assert (test.runs, test.passes) == (20, 13)


# Culprits


def test_worse_is_named_with_before_and_after() -> None:
    before = measured(laps=[0.10] * 30, signals={"malloc": [0.0] * 30, "food": [0.0] * 30}, peak_memory=100 * MIB)
    after = measured(
        laps=[0.15] * 30,
        signals={"malloc": [4096.0 * lap for lap in range(30)], "food": [1.0 * lap for lap in range(30)]},
        peak_memory=150 * MIB,
    )
    worse, better = judged(before, after)
    assert sorted(worse) == [
        "t: growth of food per lap 0 -> 1",
        "t: growth of malloc per lap 0 B -> 4.0 KiB",
        "t: lap time 0.1 s -> 0.15 s",
        "t: peak memory 100.0 MiB -> 150.0 MiB",
    ]
    assert better == []
    worse, better = judged(after, before)
    assert worse == []
    assert "t: lap time 0.15 s -> 0.1 s" in better
    assert len(better) == 4


def test_the_largest_change_comes_first() -> None:
    before = {"a": TestMeasures(1, 1, Measure(100 * MIB)), "b": TestMeasures(1, 1, Measure(100 * MIB))}
    after = {"a": TestMeasures(1, 1, Measure(130 * MIB)), "b": TestMeasures(1, 1, Measure(400 * MIB))}
    assert [change.test for change in compare(before, after, 0.2, signal_facts({})).worse] == ["b", "a"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1, 1), (1, 0), "worse"),
        ((1, 0), (1, 1), "better"),
        ((1, 0), (1, 0), "same"),
        ((40, 40), (40, 30), "worse"),
        ((40, 30), (40, 40), "better"),
        ((40, 39), (40, 37), "same"),
        ((6, 6), (6, 5), "same"),
        ((1, 1), (20, 19), "same"),
        ((20, 20), (1, 0), "same"),
        ((400, 400), (400, 340), "same"),  # certain, but within the tolerance
    ],
)
def test_pass_rates(before: tuple[int, int], after: tuple[int, int], expected: str) -> None:
    found = rate_excess(TestMeasures(*before), TestMeasures(*after), 0.2)
    assert ("worse" if found < 0 else "better" if found > 0 else "same") == expected


def test_new_tests_are_listed_and_not_compared() -> None:
    found = compare({"old": TestMeasures(1, 1)}, {"new": TestMeasures(1, 0)}, 0.2, signal_facts({}))
    assert (found.new, found.compared, found.worse) == (("new",), 0, ())


# Innocents


def test_the_tolerance_the_spread_and_the_floor_each_hold_a_change_back() -> None:
    assert excess(Measure(100), Measure(119), 0.2, 1) == 0
    assert excess(Measure(100), Measure(121), 0.2, 1) > 1
    assert excess(Measure(100, 15), Measure(140, 15), 0.2, 1) == 0
    assert excess(Measure(100, 15), Measure(160, 15), 0.2, 1) > 1
    assert excess(Measure(100), Measure(140), 0.2, 50) == 0
    assert excess(Measure(100), Measure(70), 0.2, 1) < -1


def test_small_numbers_are_left_alone() -> None:
    tiny = TestMeasures(1, 1, Measure(35 * MIB), Measure(1e-5), {"python": Measure(0.0)})
    twice = TestMeasures(1, 1, Measure(42 * MIB), Measure(2e-5), {"python": Measure(0.02)})
    assert judged(tiny, twice) == ([], [])


def test_laps_that_took_a_moment_together_are_not_timed() -> None:
    """A machine that is busy elsewhere for a moment slows all of them."""
    assert measured(laps=[0.01] * 90, signals={"fds": [1.0] * 90}).lap_seconds is None
    assert measured(laps=[0.012] * 90, signals={"fds": [1.0] * 90}).lap_seconds is not None


def test_what_shrinks_is_neither_worse_nor_better() -> None:
    fast = TestMeasures(1, 1, growth={"food": Measure(-9.0)})
    slow = TestMeasures(1, 1, growth={"food": Measure(-1.0)})
    assert judged(fast, slow) == judged(slow, fast) == ([], [])


def test_noise_is_rarely_called_a_change_and_a_real_one_mostly() -> None:
    """1,000 pairs of noisy runs; see benchmarks/baseline_noise.py for more of them."""
    generator = random.Random(20)
    alarms = found = 0
    for _ in range(1000):
        malloc = [[generator.gauss(5e6, 2e4) for _ in range(40)] for _ in range(3)]
        before = measured(laps=noisy(generator, 0.1, 0.1), signals={"malloc": malloc[0]})
        after = measured(laps=noisy(generator, 0.1, 0.1), signals={"malloc": malloc[1]})
        slower = measured(laps=noisy(generator, 0.2, 0.1), signals={"malloc": malloc[2]})
        alarms += bool(judged(before, after)[0])
        found += any("lap time" in line for line in judged(before, slower)[0])
    assert alarms <= 2
    assert found >= 950


@pytest.mark.parametrize(
    ("processor_after", "load_after", "expected"),
    [
        (0.1, 0.5, "worse"),  # it waits longer, on a machine that has time
        (0.1, 4.0, "same"),  # it waits longer, on a machine that has none
        (0.2, 4.0, "worse"),  # it does more, whatever the machine does
        (None, 4.0, "same"),
        (None, 0.5, "worse"),
    ],
)
def test_laps_that_wait_on_a_busy_machine_are_not_slower(
    processor_after: float | None, load_after: float, expected: str
) -> None:
    before = TestMeasures(1, 1, lap_seconds=Measure(0.1), lap_cpu_seconds=Measure(0.1), load=0.5)
    processor = None if processor_after is None else Measure(processor_after)
    after = TestMeasures(1, 1, lap_seconds=Measure(0.2), lap_cpu_seconds=processor, load=load_after)
    found = lap_excess(before, after, 0.2)
    assert ("worse" if found > 0 else "better" if found < 0 else "same") == expected
    assert (lap_excess(after, before, 0.2) < 0) == (expected == "worse")


def leak_checked(state: str, reason: str) -> TestMeasures:
    gatherer = Gatherer(load=lambda: 0.0)
    for lap in range(40):
        values = {"malloc": 1000.0 * lap, "fds": 1.0 * lap}
        gatherer.handle(event("sample", "t", lap=lap, seconds=lap, cpu_seconds=lap / 2, values=values))
    entry = {"signal": "malloc", "state": state, "reason": reason, "slope": 990.0, "per": "lap"}
    gatherer.handle(event("sample", "t", lap=40, seconds=40, values={}, judged=[entry, {**entry, "per": "minute"}]))
    gatherer.handle(event("finished", "t", outcome="passed", peak_memory=1))
    return gatherer.tests["t"]


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("clean", "does not grow", 0.0),
        ("bounded", "grows ever more slowly", 0.0),
        ("clean", "grows within its limit", 990.0),
        ("leak", "grew in every stretch", 990.0),
        ("undecided", "", None),
    ],
)
def test_what_the_leak_check_found_is_the_growth(state: str, reason: str, expected: float | None) -> None:
    test = leak_checked(state, reason)
    assert (test.growth["malloc"].value if "malloc" in test.growth else None) == expected
    assert test.growth["fds"].value == 0, "not worth a word to the leak check"
    assert test.lap_cpu_seconds is not None
    assert test.lap_cpu_seconds.value == pytest.approx(0.5)


# The file


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    tests = {
        'a.py::t[x"y\\z]': TestMeasures(
            20, 19, Measure(5e7, 1000), Measure(0.0125, 0.001), {"malloc": Measure(12.5, 0.1)}, Measure(0.01), 0.5
        ),
        "a.py::plain": TestMeasures(1, 0),
    }
    path = tmp_path / "deep" / "base.json"
    save(path, Baseline(tests, "vm: Linux"))
    loaded = load(path)
    assert (loaded.tests, loaded.machine) == (tests, "vm: Linux")
    assert list(path.parent.iterdir()) == [path]


def test_a_diff_of_two_files_is_the_measures_that_changed(tmp_path: Path) -> None:
    one, two = tmp_path / "1.json", tmp_path / "2.json"
    same = TestMeasures(1, 1, Measure(5e7), None, {"fds": Measure(0), "malloc": Measure(0)})
    save(one, Baseline({"b": same, "a": TestMeasures(1, 1, Measure(5e7))}, "", saved="then"))
    save(two, Baseline({"a": TestMeasures(1, 1, Measure(6e7)), "b": same}, "", saved="then"))
    first, second = one.read_text().splitlines(), two.read_text().splitlines()
    changed = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    assert changed == [
        ('   "peak_memory": {"value": 50000000, "spread": 0},', '   "peak_memory": {"value": 60000000, "spread": 0},')
    ]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "base.json"
    save(path, Baseline({"t": TestMeasures(1, 1)}, "before"))

    def fail(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        save(path, Baseline({}, "after"))
    assert load(path).machine == "before"
    assert list(tmp_path.iterdir()) == [path]


def good_file() -> dict[str, Any]:
    entry = {"runs": 1, "passes": 1, "peak_memory": {"value": 1, "spread": 0}}
    return {"kind": "rl-stability baseline", "schema": 1, "saved": "then", "machine": "", "tests": {"t": entry}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schema": 2}, "schema 2 and this pytest-rlstability knows 1"),
        ({"kind": "something else"}, "not a baseline"),
        ({"tests": []}, "damaged"),
        ({"tests": {"t": {"runs": 1}}}, "damaged: KeyError: 'passes'"),
        ({"tests": {"t": {"runs": 1, "passes": 2}}}, "damaged: ValueError: 2 passes in 1 runs"),
        ({"tests": {"t": {"runs": 1, "passes": 1, "peak_memory": 7}}}, "damaged"),
        ({"machine": None, "saved": None}, ""),
        ({"unknown": 1}, ""),
    ],
)
def test_a_file_that_is_damaged_or_newer_says_so(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    path = tmp_path / "base.json"
    path.write_text(json.dumps({**good_file(), **change}))
    if not expected:
        assert load(path).tests
        return
    with pytest.raises(BaselineError) as raised:
        load(path)
    assert expected in str(raised.value)


def test_a_file_cut_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    path.write_text(json.dumps(good_file())[:-9])
    with pytest.raises(BaselineError, match="damaged: not JSON"):
        load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BaselineError, match="damaged: not JSON"):
        load(path)
    with pytest.raises(BaselineError, match="there is no such file"):
        load(tmp_path / "missing.json")


# The tolerance


@pytest.mark.parametrize(
    ("text", "share"), [("20%", 0.2), ("0.2", 0.2), ("20", 0.2), (" 5 % ", 0.05), ("0", 0), ("150%", 1.5)]
)
def test_tolerances(text: str, share: float) -> None:
    assert parse_tolerance(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["much", "-1", "-5%", "", "%", "nan", "inf"])
def test_wrong_tolerances(text: str) -> None:
    with pytest.raises(ValueError):
        parse_tolerance(text)


class Config:
    """As much of pytest's as a report asks for."""

    def __init__(self, folder: Path, tolerance: str = "20%", **options: str) -> None:
        self._options = options
        self._tolerance = tolerance
        self.invocation_params = SimpleNamespace(dir=folder)
        self.rootpath = folder

    def getoption(self, name: str) -> str | None:
        return self._options.get(name)

    def getini(self, name: str) -> str:
        assert name == "rl_baseline_tolerance"
        return self._tolerance


def test_a_wrong_tolerance_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match=r"rl_baseline_tolerance=much is not a share such as 20% or 0.2"):
        open_report(Config(tmp_path, "much", rl_save_baseline="base.json"))  # type: ignore[arg-type]


def test_a_file_that_is_no_baseline_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("[project]")
    with pytest.raises(pytest.UsageError, match=r"--rl-save-baseline=.*pyproject.toml: the file is damaged: not JSON"):
        open_report(Config(tmp_path, rl_save_baseline="pyproject.toml"))  # type: ignore[arg-type]
    assert path.read_text() == "[project]"


def test_a_baseline_to_compare_with_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match=r"there is no such file; --rl-save-baseline=PATH makes one"):
        open_report(Config(tmp_path, rl_baseline="base.json"))  # type: ignore[arg-type]


def test_without_the_flags_there_is_no_report(tmp_path: Path) -> None:
    assert open_report(Config(tmp_path)) is None  # type: ignore[arg-type]
