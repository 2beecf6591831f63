"""What is replaced, trimmed or switched off: growth that is not the test's, and a leak that hides behind it."""

from __future__ import annotations

import atexit
import functools
import gc
import re
import sys
from collections import deque
from collections.abc import Callable
from itertools import count
from random import Random
from weakref import WeakSet

import pytest

from pytest_rlstability.leaks import outcome
from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.growers import census, growers, grown_since
from pytest_rlstability.leaks.probes import Probes
from pytest_rlstability.leaks.settings import LeakSettings
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.leaks.signals.registry import Signals, shipped_signals
from pytest_rlstability.model.series import Series
from pytest_rlstability.osinfo import UnavailableError
from pytest_rlstability.verdicts.leak import Evidence, LeakState, judge

MEMORY = ("python", "objects")


class Node:
    def __init__(self) -> None:
        self.me = self


def check_laps(lap: Callable[[], object], laps: int = 300) -> LeakCheck:
    catalog = Signals(shipped_signals())
    check = LeakCheck(LeakSettings(signals=MEMORY, warmup=20, laps=laps, budget=20.0, checking=True, catalog=catalog))
    try:
        for laps_now in outcome.run(check):
            for _ in range(laps_now):
                lap()
    finally:
        check.close()
    return check


def test_cycles_that_were_there_before_and_are_replaced_do_not_grow() -> None:
    nodes = deque((Node() for _ in range(5000)), maxlen=5000)
    check = check_laps(lambda: nodes.extend(Node() for _ in range(10)))
    assert check.verdict is None
    assert not check.warning


def test_a_leak_beside_cycles_that_are_replaced_is_found_with_its_size() -> None:
    nodes = deque((Node() for _ in range(5000)), maxlen=5000)
    spilled: list[object] = []

    def lap() -> None:
        spilled.append(nodes[0])
        nodes.extend(Node() for _ in range(10))

    check = check_laps(lap)
    assert check.verdict is not None
    assert "'spilled'" in check.verdict.headline
    blocks = next(entry for entry in check.watched if entry.signal.name == "python")
    assert 1 <= blocks.judgement.per_lap <= 4, "a node has two blocks, and ten are replaced in each lap"


def test_what_dropped_cycles_refer_to_does_not_pile_up_during_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_rlstability.leaks.check.SAMPLING_SHARE", 1.0)  # as in a check that takes long

    class Root(Node):
        next: Root | None = None

    newest, most = Root(), 0

    def lap() -> None:
        nonlocal newest, most
        newest.next = newest = Root()  # the oldest is garbage that was frozen, and refers to all others
        most = max(most, sys.getallocatedblocks())

    before = sys.getallocatedblocks()
    check = check_laps(lap, laps=40_000)
    assert check.verdict is None
    assert not check.warning
    assert most - before < 15_000, "each lap makes two blocks"


def test_blocks_that_are_replaced_at_random_are_no_part_of_a_leak_beside_them() -> None:
    scratch, kept, random = {}, [], Random(1)

    def lap() -> None:
        scratch[random.randrange(50)] = bytes(random.randrange(20_000))
        kept.append(bytes(1000))

    headline = headline_of(check_laps(lap))
    assert "kept.append(bytes(1000))" in headline
    assert re.search(r" per lap \(1\.\d KiB\)", headline)


def test_a_line_that_adds_is_named_where_python_reuses_freed_memory() -> None:
    cache, events, laps = deque({"lap": number} for number in range(200)), [], count()

    def lap() -> None:
        number = next(laps)
        cache.popleft()
        if number % 10 == 0:
            # takes the memory of the one that was dropped
            events.append({"lap": number})
        cache.append({"lap": number})

    headline = headline_of(check_laps(lap, laps=12_000))
    assert 'events.append({"lap": number}), held by local variable' in headline


def test_a_weak_set_is_not_the_holder() -> None:
    everyone: WeakSet[Wrapper] = WeakSet()
    waiting: list[Wrapper] = []

    def lap() -> None:
        everyone.add(thing := Wrapper(None)), waiting.append(thing)

    assert "'waiting'" in headline_of(check_laps(lap))


def test_a_cache_with_a_limit_is_bounded_though_it_was_there_before() -> None:
    value = functools.lru_cache(maxsize=10**6)(lambda state: [state])
    states = count(1000)
    check = check_laps(lambda: value(next(states)))
    assert check.verdict is None
    assert not check.warning


def test_a_class_that_is_made_in_every_lap_is_held_by_the_list_it_is_in() -> None:
    made: list[type] = []
    headline = headline_of(check_laps(lambda: made.append(type("Env", (Wrapper,), {}))))
    assert "held by local variable 'made'" in headline or "closure variable 'made'" in headline


def test_an_object_holds_the_class_that_was_made_for_it() -> None:
    envs: list[object] = []
    headline = headline_of(check_laps(lambda: envs.append(type("Env", (), {})())))
    assert "variable 'envs'" in headline


class Move:
    def __init__(self, parent: Move | None) -> None:
        self.parent, self.children = parent, []


def test_a_tree_that_refers_both_ways_is_held_by_the_name_of_its_root() -> None:
    root, random = Move(None), Random(1)

    def lap() -> None:
        nonlocal root
        for _ in range(4):
            leaf = root
            while leaf.children:
                leaf = random.choice(leaf.children)
            leaf.children = [Move(leaf) for _ in range(3)]
        root = random.choice(root.children)  # and what it came from stays

    headline = headline_of(check_laps(lap, laps=1000))
    assert re.search(r"allocated at .*Move\(leaf\).*, held by (local|closure) variable 'root'", headline)


def headline_of(check: LeakCheck) -> str:
    assert check.verdict is not None
    return check.verdict.headline


def test_a_test_that_switches_the_collector_off_leaks_its_cycles() -> None:
    try:
        check = check_laps(lambda: (gc.disable(), Node(), Node()))  # one block each since Python 3.13
        assert check.verdict is not None
        assert "Node()" in check.verdict.headline
    finally:
        gc.enable()
    assert check_laps(lambda: (gc.disable(), Node(), gc.enable())).verdict is None


def test_a_container_that_is_rebuilt_is_not_a_grower() -> None:
    class Env:
        def reset(self, size: int) -> None:
            self.grid = list(range(size))

    env, kept = Env(), []
    before = census()
    env.reset(10)
    kept.append(1)
    grown = grown_since(before)
    env.reset(20)
    kept.append(2)
    found = [grower.container for grower in growers(grown, 1)]
    assert any(container is kept for container in found)
    assert not any(container is env.grid for container in found)


class Wrapper:
    def __init__(self, inner: object) -> None:
        self.inner = inner


def test_a_chain_is_held_by_the_name_that_leads_to_its_newest_link() -> None:
    outermost: list[object] = [None]

    def lap() -> None:
        outermost[0] = Wrapper(outermost[0])

    check = check_laps(lap)
    assert check.verdict is not None
    assert "variable 'outermost' of " in check.verdict.headline


def test_callbacks_at_exit_hold_what_they_call() -> None:
    check = check_laps(lambda: atexit.register(Wrapper(None).__str__))
    assert check.verdict is not None
    assert "held by atexit (+1 callbacks per lap)" in check.verdict.headline


class Buffer:
    def __init__(self, capacity: int) -> None:
        self.capacity, self.storage = capacity, []


def test_a_list_within_its_owners_capacity_is_undecided() -> None:
    buffer = Buffer(10**6)
    check = check_laps(lambda: buffer.storage.append([1.0]))
    assert check.verdict is None
    assert "Buffer has a limit of 1000000, which was not reached" in check.warning
    exceeded = Buffer(5)
    assert check_laps(lambda: exceeded.storage.append([1.0])).verdict is not None


class Unreadable(Signal):
    name = "card"
    title = "memory of a card"

    def __init__(self) -> None:
        raise UnavailableError("no card")


def test_a_signal_that_is_named_and_cannot_be_read_is_not_clean() -> None:
    catalog = Signals([*shipped_signals(), Unreadable])
    settings = LeakSettings(signals=("python", "card"), laps=40, checking=True, catalog=catalog)
    check = LeakCheck(settings)
    for laps in outcome.run(check):
        assert laps
    check.close()
    assert check.warning == "rl_no_leak: not measured: card (no card)"


def test_growth_is_scaled_from_the_first_sample() -> None:
    series = Series.of([0, 1, 2], [100, 140, 180])
    series.scale_growth(0.25)
    assert list(series.values) == [100, 110, 120]


def test_a_growing_probe_without_a_limit_is_not_judged() -> None:
    probes, evidence = Probes(judged=True), Evidence(100, 1.0, 1.0, final=True)
    probes("free", lambda: 1)
    probes("capped", lambda: 1, limit=1000)
    laps, values = list(range(100)), list(range(100))
    states = {entry.signal.name: judge(laps, values, entry.rule, evidence).state for entry in probes.watched()}
    assert states == {"free": LeakState.NOT_JUDGED, "capped": LeakState.CLEAN}


SLOW = """
    import time
    import pytest

    @pytest.mark.rl_no_leak
    def test_training(rl_laps):
        for lap in rl_laps:
            time.sleep(0.4)
"""


def test_a_test_with_too_slow_laps_says_at_once_what_budget_it_needs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SLOW)
    result = pytester.runpytest_subprocess("--rl-stability", "--rl-leak-budget=4s", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*undecided: nothing was judged, because a lap takes *--rl-leak-budget=*"])


HANGS = """
    import atexit
    import os
    import threading
    import pytest

    @pytest.mark.rl_no_leak
    def test_never_ends(rl_laps):
        atexit.register(threading.Event().wait)
        for lap in rl_laps:
            os.open(os.devnull, os.O_RDONLY)
"""


def test_a_leak_that_keeps_the_process_from_ending_is_a_leak(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HANGS)
    result = pytester.runpytest_subprocess("--rl-stability", "--rl-stall-after=3s", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["LEAK: file descriptors grow *", "*After that the process did not end*", "STALL: *"])


KEPT_BY_PYTEST = """
    import logging
    import warnings
    import pytest

    @pytest.mark.rl_no_leak(laps=150)
    def test_warns(rl_laps, caplog, capsys, rl_probe):
        rl_probe("size", lambda: 1)
        for lap in rl_laps:
            warnings.warn(f"deprecated in lap {lap}")
            logging.getLogger("train").warning("lap %s", lap)
            print("lap", lap, "x" * 100)
"""


def test_what_pytest_keeps_of_a_test_is_not_its_leak(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(KEPT_BY_PYTEST)
    result = pytester.runpytest_subprocess("--rl-stability", "-W", "always", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, warnings=result.parseoutcomes().get("warnings", 0))
    assert "undecided" not in result.stdout.str()
