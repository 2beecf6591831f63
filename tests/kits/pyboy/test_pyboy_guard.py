"""``pyboy_guard``: misuse fails in every run, whatever the threads' timing; correct use passes."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyboy")

from pytest_rlstability.kits.pyboy.guard import GuardFactory

RUNS = 3

CULPRITS = """
    import threading, time
    import pytest

    pytestmark = pytest.mark.parametrize("run", range(RUNS))

    def capture(boy, done, *, lock=None, pause=0.0):
        while not done.is_set():
            if lock is None:
                boy.screen.image.copy()
            else:
                with lock:
                    boy.screen.image.copy()
            time.sleep(pause)

    def start(function, *arguments, **keywords):
        thread = threading.Thread(target=function, args=arguments, kwargs=keywords, name="capture")
        thread.start()
        return thread

    # The field report: a capture thread looks at the screen while the game runs.

    def test_capture_without_lock(pyboy_guard, run):
        boy, done = pyboy_guard(), threading.Event()
        thread = start(capture, boy, done)
        try:
            for _ in range(20):
                boy.tick()
        finally:
            done.set()
            thread.join()

    def test_capture_that_never_meets_a_tick(pyboy_guard, run):
        boy, looked = pyboy_guard(), []
        thread = start(lambda: looked.append(boy.screen.ndarray.copy()))
        while not looked:
            time.sleep(0.001)
        boy.tick()
        thread.join()

    def test_capture_that_looks_before_the_first_tick_only(pyboy_guard, run):
        boy, gate = pyboy_guard(), []
        thread = start(lambda: (boy.memory[0xC000], gate.append(1)))
        while not gate:
            time.sleep(0.001)
        boy.button("a")
        thread.join()

    def test_only_one_side_locks(pyboy_guard, run):
        boy, done, lock = pyboy_guard(), threading.Event(), threading.Lock()
        thread = start(capture, boy, done, lock=lock)
        try:
            for _ in range(20):
                boy.tick()
        finally:
            done.set()
            thread.join()

    def test_each_side_has_a_lock_of_its_own(pyboy_guard, run):
        boy, done, mine, yours = pyboy_guard(), threading.Event(), threading.Lock(), threading.Lock()
        thread = start(capture, boy, done, lock=yours)
        try:
            for _ in range(20):
                with mine:
                    boy.tick()
        finally:
            done.set()
            thread.join()

    def test_swallowed_in_the_capture_thread(pyboy_guard, run):
        boy, done, refused = pyboy_guard(), threading.Event(), threading.Event()

        def careless():
            while not done.is_set():
                try:
                    boy.screen.image.copy()
                except Exception:
                    refused.set()

        boy.tick()
        thread = start(careless)
        try:
            boy.tick()
        except Exception:
            pass
        refused.wait(5)
        done.set()
        thread.join()

    # Shutting down in the wrong order.

    def test_stopped_before_the_thread_is_joined(pyboy_guard, run):
        boy, done, lock = pyboy_guard(), threading.Event(), threading.Lock()
        thread = start(capture, boy, done, lock=lock, pause=0.001)
        time.sleep(0.01)
        with lock:
            boy.tick()
        try:
            boy.stop()
        finally:
            done.set()
            thread.join()

    def test_ended_with_the_thread_still_running(pyboy_guard, run, request):
        boy, done, lock, looked = pyboy_guard(), threading.Event(), threading.Lock(), threading.Event()

        def look():
            with lock:
                boy.memory[0xC000]
            looked.set()
            capture(boy, done, lock=lock, pause=0.001)

        threading.Thread(target=look, daemon=True).start()
        looked.wait()
        time.sleep(0.01)
        request.config.add_cleanup(done.set)

    def test_used_after_stop(pyboy_guard, run):
        boy = pyboy_guard()
        boy.stop()
        try:
            boy.memory[0xC000]
        except Exception:
            pass

    # Views of the one screen buffer.

    def test_view_kept_after_stop(pyboy_guard, run):
        boy = pyboy_guard()
        red = boy.screen.ndarray[..., 0]
        boy.stop()

    def test_image_kept_after_stop(pyboy_guard, run):
        boy = pyboy_guard()
        last = boy.screen.image
        boy.stop()

    def test_observations_not_copied(pyboy_guard, run):
        boy, history = pyboy_guard(), []
        for _ in range(5):
            boy.tick()
            history.append(boy.screen.ndarray[::2, ::2])
        history.clear()

    # Lost exceptions.

    def test_rgba_as_jpeg(pyboy_guard, run, tmp_path):
        boy = pyboy_guard()
        boy.screen.image.save(tmp_path / "frame.jpg")

    def test_rgba_as_jpeg_swallowed(pyboy_guard, run, tmp_path):
        boy = pyboy_guard()
        try:
            boy.screen.image.copy().save(tmp_path / "frame.jpg")
        except OSError:
            pass

    def test_rgba_as_jpeg_ends_a_thread(pyboy_guard, run, tmp_path):
        boy = pyboy_guard()
        image = boy.screen.image.copy()
        thread = start(image.save, tmp_path / "frame.jpg")
        thread.join()

    def test_hook_raises(pyboy_guard, run):
        boy = pyboy_guard()
        boy.hook_register(0, 0x100, lambda context: 1 / 0, None)
        boy.tick(80)

    def test_thread_dies(pyboy_guard, run):
        boy = pyboy_guard()
        thread = start(lambda: boy.memory[0xC000] + "x")
        thread.join()
""".replace("RUNS", str(RUNS))

EXPECTED = {
    "test_capture_without_lock": "PyBoy is used",
    "test_capture_that_never_meets_a_tick": "PyBoy is used by two threads without synchronization",
    "test_capture_that_looks_before_the_first_tick_only": "PyBoy is used by two threads without synchronization",
    "test_only_one_side_locks": "PyBoy is used",
    "test_each_side_has_a_lock_of_its_own": "PyBoy is used",
    "test_swallowed_in_the_capture_thread": "PyBoy is used",
    "test_stopped_before_the_thread_is_joined": "PyBoy is stopped while another thread may still use it",
    "test_ended_with_the_thread_still_running": "the test ended while another thread may still use PyBoy",
    "test_used_after_stop": "PyBoy is used after stop()",
    "test_view_kept_after_stop": "1 view(s) of the screen outlived stop()",
    "test_image_kept_after_stop": "1 view(s) of the screen outlived stop()",
    "test_observations_not_copied": "observations of 3 different frames share the same memory",
    "test_rgba_as_jpeg": "cannot write mode RGBA as JPEG: PyBoy's screen has an alpha channel",
    "test_rgba_as_jpeg_swallowed": "cannot write mode RGBA as JPEG: PyBoy's screen has an alpha channel",
    "test_rgba_as_jpeg_ends_a_thread": "cannot write mode RGBA as JPEG: PyBoy's screen has an alpha channel",
    "test_hook_raises": "an exception was swallowed in a PyBoy hook",
    "test_thread_dies": "thread 'capture' died unnoticed",
}


@pytest.mark.slow
def test_every_culprit_fails_every_run(run_pytest: Any) -> None:
    outcome = run_pytest(CULPRITS, on=False)
    assert set(outcome.tests) == {f"{name}[{run}]" for name in EXPECTED for run in range(RUNS)}
    assert {name for name, word in outcome.tests.items() if word == "passed"} == set()
    for name, text in EXPECTED.items():
        for run in range(RUNS):
            assert text in outcome.messages[f"{name}[{run}]"] + outcome.details[f"{name}[{run}]"]
            assert outcome.text.count(f"test_it.py::{name}[{run}] - ") == 1  # reported once, not again at tear-down


INNOCENTS = """
    import queue, threading, time
    from concurrent.futures import ThreadPoolExecutor
    from threading import Lock, RLock

    import numpy
    import pytest
    from pyboy import PyBoy
    from pytest_rlstability.kits.pyboy.rom import build_rom

    MODULE_LOCK = Lock()

    class Env:
        def __init__(self, boy):
            self.boy, self.lock = boy, Lock()

        def step(self):
            with self.lock:
                self.boy.tick()

        def look(self):
            with self.lock:
                return self.boy.screen.ndarray.copy()

    def in_thread(function):
        thread = threading.Thread(target=function)
        thread.start()
        return thread

    KINDS = [threading.Lock, threading.RLock, threading.Condition, Lock, RLock, lambda: MODULE_LOCK]

    @pytest.mark.parametrize("make", KINDS)
    def test_a_lock_around_every_use(pyboy_guard, make):
        boy, done, lock = pyboy_guard(), threading.Event(), make()

        def capture():
            while not done.is_set():
                with lock:
                    boy.screen.image.copy()
                time.sleep(0.0005)

        thread = in_thread(capture)
        for _ in range(40):
            with lock:
                boy.tick()
        done.set()
        thread.join()
        boy.stop()

    def test_a_lock_inside_an_object(pyboy_guard):
        env, done = Env(pyboy_guard()), threading.Event()

        def capture():
            while not done.is_set():
                env.look()

        thread = in_thread(capture)
        for _ in range(20):
            env.step()
        done.set()
        thread.join()
        env.boy.stop()

    def test_a_capture_thread_that_only_sees_copies(pyboy_guard):
        boy, frames, seen = pyboy_guard(), queue.Queue(), []

        def capture():
            while (frame := frames.get()) is not None:
                seen.append(frame.sum())

        thread = in_thread(capture)
        for _ in range(20):
            boy.tick()
            frames.put(boy.screen.ndarray.copy())
        frames.put(None)
        boy.stop()
        thread.join()
        assert len(seen) == 20

    def test_handed_to_a_worker_and_back(pyboy_guard):
        boy = pyboy_guard()
        boy.tick()
        thread = in_thread(lambda: boy.tick(3))
        thread.join()
        boy.tick()
        boy.stop()

    def test_ping_pong_through_queues(pyboy_guard):
        boy, orders, answers = pyboy_guard(), queue.Queue(), queue.Queue()

        def work():
            while orders.get():
                boy.tick()
                answers.put(True)

        thread = in_thread(work)
        for _ in range(10):
            boy.button("a")
            orders.put(True)
            answers.get()
            boy.screen.ndarray.copy()
        orders.put(False)
        thread.join()
        boy.stop()

    def test_a_pool_of_one(pyboy_guard):
        boy = pyboy_guard()
        with ThreadPoolExecutor(1) as pool:
            for _ in range(5):
                assert pool.submit(boy.tick).result()
            boy.screen.ndarray.copy()
        boy.stop()

    def test_two_threads_that_only_look(pyboy_guard):
        boy = pyboy_guard()
        boy.tick()
        threads = [in_thread(lambda: [boy.memory[0xC000:0xC010] for _ in range(20)]) for _ in range(2)]
        for thread in threads:
            thread.join()
        boy.stop()

    def test_each_thread_has_its_own(pyboy_guard):
        boys = [pyboy_guard(), pyboy_guard(cgb=True)]
        threads = [in_thread(lambda boy=boy: [boy.tick() for _ in range(20)]) for boy in boys]
        for thread in threads:
            thread.join()
        for boy in boys:
            boy.stop()

    def test_a_hand_over_by_flag(pyboy_guard):
        boy, turns = pyboy_guard(), []

        def work():
            boy.tick()
            boy.hand_over()
            turns.append(True)

        thread = in_thread(work)
        while not turns:
            time.sleep(0.001)
        boy.tick()
        thread.join()

    @pytest.mark.parametrize("threads", [0, 1])
    def test_observations_replaced_or_copied(pyboy_guard, threads):
        boy, done = pyboy_guard(), threading.Event()
        for _ in range(threads):
            in_thread(done.wait)
        live = boy.screen.ndarray
        copies, observation = [], None
        for _ in range(8):
            boy.tick()
            observation = boy.screen.ndarray
            copies.append(observation.copy())
            stacked = numpy.stack([observation, live])
        assert not numpy.shares_memory(copies[0], live)
        del live, observation
        boy.stop()
        done.set()

    def test_images_saved_as_they_should_be(pyboy_guard, tmp_path):
        boy = pyboy_guard()
        boy.screen.image.save(tmp_path / "frame.png")
        boy.screen.image.convert("RGB").save(tmp_path / "frame.jpg")
        try:
            boy.screen.image.save(tmp_path / "second.jpg")
        except OSError:
            boy.screen.image.convert("RGB").save(tmp_path / "second.jpg")

    def test_an_emulator_of_ones_own(pyboy_guard, tmp_path):
        path = tmp_path / "game.gb"
        path.write_bytes(build_rom())
        with pyboy_guard(PyBoy(str(path), window="null")) as boy:
            assert boy.tick(80)
            assert boy.cartridge_title == "RLSTABILITY"
            assert boy.tilemap_background[0:4, 0] == [0, 1, 2, 3]
            boy.memory[0xC200] = 4
            assert boy.memory[0xC200] == 4
            boy.register_file.B = 3
            assert boy.register_file.B == 3
            assert boy.get_sprite(0).on_screen is False
            assert boy.game_area().shape == (32, 32)
            boy.hook_register(0, 0x150, lambda context: None, None)

    def test_never_stopped(pyboy_guard):
        pyboy_guard().tick()
"""


def test_every_innocent_passes(run_pytest: Any) -> None:
    outcome = run_pytest(INNOCENTS, on=False)
    assert outcome.tests
    assert {name: outcome.details.get(name) for name, word in outcome.tests.items() if word != "passed"} == {}


@pytest.mark.slow
def test_an_emulator_per_lap_does_not_leak(run_pytest: Any) -> None:
    outcome = run_pytest(
        """
        import pytest

        @pytest.mark.rl_no_leak
        def test_laps(pyboy_guard, rl_laps):
            for _ in rl_laps:
                boy = pyboy_guard()
                boy.tick(2)
                boy.screen.ndarray.copy()
                boy.stop()
        """,
        "--rl-leak-budget=90s",
    )
    assert outcome.tests == {"test_laps": "passed"}, outcome.details
    assert "undecided" not in outcome.text


def test_in_isolated_tests_too(run_pytest: Any) -> None:
    outcome = run_pytest(CULPRITS, "-k", "[0] and (without_lock or view_kept)")
    assert sorted(outcome.tests) == ["test_capture_without_lock[0]", "test_view_kept_after_stop[0]"]
    assert "passed" not in outcome.tests.values()


def test_one_finding_of_five_files_or_threads_is_one(tmp_path: Path) -> None:
    with GuardFactory() as guard:
        boy = guard()
        for number in range(5):
            with contextlib.suppress(OSError):
                boy.screen.image.save(tmp_path / f"frame-{number}.jpg")
        for _ in range(5):
            thread = threading.Thread(target=lambda: 1 // 0)
            thread.start()
            thread.join()
    report = guard.report()
    assert report.count("pyboy_guard: ") == report.count("(and 4 more like it)") == 2
    assert "frame-0.jpg" in report
    assert "ZeroDivisionError" in report
