"""``rl_no_leak`` in a real pytest: what leaks fails with its holder's name, what does not passes, and odd loops."""

from __future__ import annotations

import re
import sys

import pytest
from conftest import RunPytest

LAPS = """
    import os, logging, threading, warnings
    from collections import deque
    import pytest

    pytestmark = pytest.mark.rl_no_leak
    KEPT = []

    def test_list(rl_laps):
        for lap in rl_laps:
            KEPT.append(bytearray(200))

    def test_descriptor(rl_laps):
        for lap in rl_laps:
            os.open(os.devnull, os.O_RDONLY)

    def test_thread(rl_laps):
        never = threading.Event()
        for lap in rl_laps:
            threading.Thread(target=never.wait, daemon=True).start()

    def test_until_the_stack_is_full(rl_laps):
        def wrap(inner):
            return lambda: inner()
        step = int
        for lap in rl_laps:
            step = wrap(step)
            step()

    def test_buffer(rl_laps):
        frames = deque(maxlen=300)
        for lap in rl_laps:
            frames.append(bytearray(900))

    def test_logs_and_warns(rl_laps):
        for lap in rl_laps:
            logging.getLogger("trainer").warning("reward %d", lap)
            warnings.warn("old API")
            print("lap", lap)

    def test_prints_into_capsys(rl_laps, capsys):
        for lap in rl_laps:
            print("episode", lap)
        lines = capsys.readouterr().out.splitlines()
        assert lines == [f"episode {number}" for number in range(1, lap + 1)]

    def test_leaks_beside_capsys(rl_laps, capsys):
        for lap in rl_laps:
            print("episode", lap)
            KEPT.append(bytearray(600))

    def test_numbers_from_one(rl_laps):
        seen = 0
        for lap in rl_laps:
            seen += 1
            assert lap == seen
        assert seen > 100
"""


def test_laps_are_a_leak_check(run_pytest: RunPytest) -> None:
    outcome = run_pytest(LAPS)
    assert outcome.tests == {
        "test_list": "failed",
        "test_descriptor": "failed",
        "test_thread": "failed",
        "test_until_the_stack_is_full": "failed",
        "test_buffer": "passed",
        "test_logs_and_warns": "passed",
        "test_prints_into_capsys": "passed",
        "test_leaks_beside_capsys": "failed",
        "test_numbers_from_one": "passed",
    }, outcome.text
    assert all(message.startswith("LEAK: ") for message in outcome.messages.values()), outcome.messages
    assert "KEPT.append(bytearray(200))" in outcome.messages["test_list"]
    assert "held by test_it.KEPT" in outcome.messages["test_list"]
    assert "os.open(os.devnull, os.O_RDONLY)" in outcome.messages["test_descriptor"]
    assert "-> /dev/null" in outcome.messages["test_descriptor"]
    assert "threading.Thread(target=never.wait" in outcome.messages["test_thread"]
    assert "RecursionError" in outcome.details["test_until_the_stack_is_full"]
    assert re.search(r"Python memory blocks +\d+ +\d+ +2 +[▁-█]+ +LEAK", outcome.details["test_list"])


def test_a_verdict_has_its_facts_and_samples(run_pytest: RunPytest) -> None:
    outcome = run_pytest(LAPS, "-k", "test_descriptor")
    facts = outcome.properties["test_descriptor"]
    assert facts["rl_stability.verdict"] == "LEAK"
    assert float(facts["rl_stability.per_lap"]) == 1
    assert float(facts["rl_stability.limit"]) == 0
    assert int(facts["rl_stability.laps"]) >= 190
    samples = [event for event in outcome.events if event["event"] == "sample"]
    assert 2 <= len(samples) <= 400


BOUNDED = """
    import ctypes, functools, time
    from collections import deque
    import pytest

    pytestmark = pytest.mark.rl_no_leak
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p

    def test_deque(rl_laps):
        replay = deque(maxlen=100_000)
        for lap in rl_laps:
            frame = bytearray(900)
            replay.append((frame, {"lap": [lap]}))
            time.sleep(0.0001)

    def test_deque_and_list(rl_laps):
        replay, infos = deque(maxlen=100_000), []
        for lap in rl_laps:
            replay.append(bytearray(300))
            infos.append({"episode": lap})
            time.sleep(0.0001)

    def test_cache_and_list(rl_laps):
        @functools.lru_cache(maxsize=100_000)
        def value(state):
            return bytearray(300)

        infos = []
        for lap in rl_laps:
            value(lap)
            infos.append([lap])
            time.sleep(0.0001)

    def test_deque_and_malloc(rl_laps):
        replay = deque(maxlen=100_000)
        for lap in rl_laps:
            replay.append(bytearray(300))
            libc.malloc(256)
            time.sleep(0.0001)
"""


@pytest.mark.slow
def test_a_limit_allows_only_what_it_limits(run_pytest: RunPytest) -> None:
    outcome = run_pytest(BOUNDED)
    assert outcome.tests == {
        "test_deque": "passed",
        "test_deque_and_list": "failed",
        "test_cache_and_list": "failed",
        "test_deque_and_malloc": "failed",
    }, outcome.text
    assert "held by local variable 'infos'" in outcome.messages["test_deque_and_list"]
    assert "held by local variable 'infos'" in outcome.messages["test_cache_and_list"]
    assert "libc.malloc(256)" in outcome.messages["test_deque_and_malloc"]


UNSEEN = """
    import ctypes, mmap, multiprocessing, os
    import pytest

    pytestmark = pytest.mark.rl_no_leak
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]

    def work(pipe, leaks):
        while pipe.recv():
            opened = os.open(os.devnull, os.O_RDONLY)
            if not leaks:
                os.close(opened)
            pipe.send(True)

    @pytest.mark.parametrize("leaks", [True, False], ids=["leaks", "closes"])
    def test_worker(rl_laps, leaks):
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        worker = context.Process(target=work, args=(there, leaks), daemon=True)
        worker.start()
        try:
            for lap in rl_laps:
                here.send(True)
                here.recv()
        finally:
            here.send(False)
            worker.join()

    def test_file_mapped(rl_laps, tmp_path):
        (tmp_path / "rom").write_bytes(bytes(4096))
        for lap in rl_laps:
            rom = os.open(tmp_path / "rom", os.O_RDONLY)
            libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE, rom, 0)
            os.close(rom)

    def test_file_unmapped(rl_laps, tmp_path):
        (tmp_path / "rom").write_bytes(bytes(4096))
        for lap in rl_laps:
            with open(tmp_path / "rom", "rb") as rom:
                mmap.mmap(rom.fileno(), 0, prot=mmap.PROT_READ).close()

    def test_bytes_log(rl_laps):
        log = bytearray()
        for lap in rl_laps:
            log += b"step %d reward 0.5" % lap
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux has all of it")
def test_what_no_object_stands_for_is_seen(run_pytest: RunPytest) -> None:
    outcome = run_pytest(UNSEEN)
    assert outcome.tests == {
        "test_worker[leaks]": "failed",
        "test_worker[closes]": "passed",
        "test_file_mapped": "failed",
        "test_file_unmapped": "passed",
        "test_bytes_log": "failed",
    }, outcome.text
    assert "descriptors of child processes grow by 1 per lap" in outcome.messages["test_worker[leaks]"]
    assert "-> /dev/null of process" in outcome.messages["test_worker[leaks]"]
    assert "mappings of files grow by 1 per lap, made at test_it.py" in outcome.messages["test_file_mapped"]
    assert "libc.mmap(" in outcome.messages["test_file_mapped"]
    assert "held by local variable 'log'" in outcome.messages["test_bytes_log"]


ODD_LOOPS = """
    import pytest

    @pytest.mark.rl_no_leak
    def test_raises(rl_laps):
        for lap in rl_laps:
            if lap == 30:
                raise ValueError("the lap's own")

    @pytest.mark.rl_no_leak
    def test_never_laps(rl_laps):
        pass

    @pytest.mark.rl_no_leak
    def test_skips(rl_laps):
        pytest.skip("no emulator")

    @pytest.mark.rl_no_leak
    def test_leaves(rl_laps):
        for lap in rl_laps:
            if lap == 20:
                break

    KEPT = []

    @pytest.mark.rl_no_leak
    def test_leaves_late(rl_laps):
        for lap in rl_laps:
            KEPT.append([lap])
            if lap == 20000:
                break

    @pytest.mark.rl_no_leak(warmup=5, laps=40)
    def test_as_many_as_asked(rl_laps):
        assert len(list(rl_laps)) == 45

    def test_not_judged(rl_laps):
        assert list(rl_laps) == list(range(1, 21))
"""


@pytest.mark.slow
def test_odd_loops(run_pytest: RunPytest) -> None:
    outcome = run_pytest(ODD_LOOPS)
    assert outcome.tests == {
        "test_raises": "failed",
        "test_never_laps": "failed",
        "test_skips": "skipped",
        "test_leaves": "passed",
        "test_leaves_late": "failed",
        "test_as_many_as_asked": "passed",
        "test_not_judged": "passed",
    }, outcome.text
    assert outcome.messages["test_raises"] == "ValueError: the lap's own"
    assert "never iterated" in outcome.messages["test_never_laps"]
    assert "the loop was left after 20 laps" in outcome.text
    assert outcome.messages["test_leaves_late"].startswith("LEAK: ")


def test_off_gives_three_laps_and_no_verdict(run_pytest: RunPytest) -> None:
    source = """
        import pytest

        KEPT = []

        @pytest.mark.rl_no_leak
        def test_laps(rl_laps):
            for lap in rl_laps:
                KEPT.append(lap)
            assert KEPT == [1, 2, 3]

        @pytest.mark.rl_no_leak
        def test_never_laps(rl_laps):
            pass

        @pytest.mark.rl_no_leak
        def test_whole():
            KEPT.append(bytes(100))
    """
    outcome = run_pytest(source, on=False)
    assert set(outcome.tests.values()) == {"passed"}, outcome.text


LIMITS = """
    import os
    import pytest

    KEPT = []

    @pytest.mark.rl_no_leak(limit="4KiB")
    def test_below(rl_laps):
        for lap in rl_laps:
            KEPT.append(bytearray(1000))

    @pytest.mark.rl_no_leak(limit="1KiB")
    def test_above(rl_laps):
        for lap in rl_laps:
            KEPT.append(bytearray(4000))

    @pytest.mark.rl_no_leak(limit=64)
    def test_small_objects_above(rl_laps):
        for lap in rl_laps:
            KEPT.append([lap] * 20)

    @pytest.mark.rl_no_leak(signals=["fds"])
    def test_not_looked_at(rl_laps):
        for lap in rl_laps:
            KEPT.append(bytearray(1000))

    @pytest.mark.rl_no_leak(signals="fds", limit=1)
    def test_one_descriptor_allowed(rl_laps):
        for lap in rl_laps:
            if lap < 600:
                os.open(os.devnull, os.O_RDONLY)
"""


@pytest.mark.slow
def test_limits_and_signals(run_pytest: RunPytest) -> None:
    outcome = run_pytest(LIMITS)
    assert outcome.tests == {
        "test_below": "passed",
        "test_above": "failed",
        "test_small_objects_above": "failed",
        "test_not_looked_at": "passed",
        "test_one_descriptor_allowed": "passed",
    }, outcome.text
    assert "limit 1.0 KiB)" in outcome.messages["test_above"]


@pytest.mark.parametrize("arguments", ['limit="banana"', "laps=-3", "lapse=10", "signals=['rss']"])
def test_a_wrong_marker_is_a_usage_error(run_pytest: RunPytest, arguments: str) -> None:
    outcome = run_pytest(f"""
        import pytest

        @pytest.mark.rl_no_leak({arguments})
        def test_laps(rl_laps):
            pass
    """)
    assert outcome.code == 4
    assert arguments.partition("=")[0] in outcome.text or "charted but never judged" in outcome.text


WHOLE = """
    import pytest

    KEPT, MADE = [], []

    @pytest.fixture(scope="module")
    def wide():
        MADE.append("wide")
        yield MADE
        assert MADE == ["wide"]

    @pytest.fixture
    def env(wide, tmp_path, request):
        yield [0] * 50
        if request.node.name == "test_tear_down_leaks":
            KEPT.append(bytearray(300))

    @pytest.mark.rl_no_leak
    def test_clean(env, wide):
        print("lap")
        assert wide == ["wide"]

    @pytest.mark.rl_no_leak
    def test_leaks(env):
        KEPT.append(env)

    @pytest.mark.rl_no_leak
    def test_tear_down_leaks(env):
        pass

    @pytest.mark.rl_no_leak
    def test_fails_in_some_lap():
        KEPT.append(1)
        assert len(KEPT) < 9

    @pytest.mark.rl_no_leak
    @pytest.mark.xfail(strict=True)
    def test_expected_to_fail():
        assert False
"""


@pytest.mark.slow
def test_a_test_without_laps_is_repeated_whole(run_pytest: RunPytest) -> None:
    outcome = run_pytest(WHOLE, "--rl-leak-budget=8s")
    assert outcome.tests == {
        "test_clean": "passed",
        "test_leaks": "failed",
        "test_tear_down_leaks": "failed",
        "test_fails_in_some_lap": "failed",
        "test_expected_to_fail": "xfailed",
    }, outcome.text
    assert outcome.messages["test_leaks"].startswith("LEAK: ")
    assert "KEPT" in outcome.messages["test_leaks"]
    assert "KEPT.append(bytearray(300))" in outcome.messages["test_tear_down_leaks"]
    assert not outcome.messages["test_fails_in_some_lap"].startswith("LEAK")


PROBES = """
    import pytest

    class World:
        def __init__(self):
            self.food = []

    def test_limit(rl_probe):
        world = World()
        rl_probe("food_sources", lambda: len(world.food), limit=3)
        world.food.extend(range(5))

    def test_within(rl_probe, rl_laps):
        world = World()
        rl_probe("food_sources", lambda: len(world.food), limit=3, per_lap=0, per_minute=5)
        for lap in rl_laps:
            world.food = [lap] * (lap % 3)

    def test_per_lap(rl_probe, rl_laps):
        world = World()
        rl_probe("food_sources", lambda: len(world.food), per_lap=0.5)
        for lap in rl_laps:
            world.food.append(lap)

    def test_per_minute(rl_probe):
        world = World()
        rl_probe("food_sources", lambda: len(world.food), per_minute=5)
        world.food.extend(range(20))

    @pytest.mark.rl_no_leak
    def test_among_signals(rl_probe, rl_laps):
        world = World()
        rl_probe("food_sources", lambda: len(world.food) // 2, per_lap=0)
        for lap in rl_laps:
            world.food.append(None)

    def test_raises(rl_probe):
        rl_probe("food_sources", lambda: 1 / 0)

    def test_not_a_number(rl_probe):
        rl_probe("food_sources", lambda: "many")

    class Several:
        def __float__(self):
            raise TypeError("only one can be converted")

    def test_not_one_number(rl_probe):
        rl_probe("food_sources", Several)
"""


def test_probes(run_pytest: RunPytest) -> None:
    outcome = run_pytest(PROBES)
    assert outcome.tests == {
        "test_limit": "failed",
        "test_within": "passed",
        "test_per_lap": "failed",
        "test_per_minute": "failed",
        "test_among_signals": "failed",
        "test_raises": "failed",
        "test_not_a_number": "failed",
        "test_not_one_number": "failed",
    }, outcome.text
    assert outcome.messages["test_limit"] == "LEAK: probe food_sources reached 5 (limit 3)"
    assert outcome.messages["test_per_lap"].startswith("LEAK: probe food_sources grows by 1 per lap (limit 0.5)")
    assert outcome.messages["test_per_minute"].startswith("LEAK: probe food_sources grew by 20")
    assert outcome.messages["test_among_signals"].startswith("LEAK: probe food_sources")
    assert "'food_sources' raised ZeroDivisionError" in outcome.messages["test_raises"]
    assert "'food_sources' gave 'many'" in outcome.messages["test_not_a_number"]
    assert "rl_probe 'food_sources' gave <" in outcome.messages["test_not_one_number"]
    assert "only one can be converted" in outcome.messages["test_not_one_number"]


def test_the_memory_that_ran_out_is_not_invented(run_pytest: RunPytest) -> None:
    """An exhausted resource without growth before it is an ordinary failure."""
    outcome = run_pytest("""
        import pytest

        @pytest.mark.rl_no_leak
        def test_laps(rl_laps):
            for lap in rl_laps:
                if lap == 3000:
                    raise MemoryError("one huge array")
    """)
    assert outcome.messages["test_laps"] == "MemoryError: one huge array"
