"""``forked_pyboy`` with real emulators: PyBoy's API, deaths, stalls, threads, and nothing left behind."""

from __future__ import annotations

import copy
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyboy")
import numpy
from pyboy import PyBoy

from pytest_rlstability import EmulatorCrashed, EmulatorStalled
from pytest_rlstability.kits.pyboy.client import ForkedPyBoy
from pytest_rlstability.kits.pyboy.rom import BUTTONS, COUNTER, FRAMES, JOYPAD, RANDOM, build_rom

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forked_pyboy needs a POSIX system")

Start = Callable[..., ForkedPyBoy]
BOOTED = 80


def directories() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("pyboy-rlstability-*"))


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other tests run emulators at the same time; a short path, because sockets are made in it.

    pytest makes the parent of every tmp_path once, and must do so before this directory is the temporary one.
    """
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield


@pytest.fixture
def rom(tmp_path: Path) -> Path:
    path = tmp_path / "game.gb"
    path.write_bytes(build_rom())
    return path


# PyBoy's API


@pytest.mark.parametrize("cgb", [False, True])
def test_it_is_the_same_emulator_as_in_process(forked_pyboy: Start, tmp_path: Path, cgb: bool) -> None:
    path = tmp_path / "game.gb"
    path.write_bytes(build_rom(cgb=cgb))
    inside, forked = PyBoy(str(path), window="null", log_level="ERROR"), forked_pyboy(path)
    for boy in (inside, forked):
        boy.tick(BOOTED)
        boy.button_press("left")
        boy.button("a", 3)
        for _ in range(10):
            boy.tick()
    assert numpy.array_equal(inside.screen.ndarray, forked.screen.ndarray)
    assert inside.memory[0xC000:0xC100] == forked.memory[0xC000:0xC100]
    assert forked.frame == forked.frame_count == inside.frame_count == BOOTED + 10
    assert forked.screen.image.tobytes() == inside.screen.image.tobytes()
    assert bytes(forked.screen.raw_buffer) == bytes(inside.screen.raw_buffer)
    inside.stop(save=False)


def test_homebrew_shows_the_joypad_and_moves(forked_pyboy: Start) -> None:
    boy = forked_pyboy()
    boy.tick(BOOTED)
    before, frames = boy.screen.ndarray.copy(), boy.memory[FRAMES]
    for bit, name in enumerate(BUTTONS):
        boy.button_press(name)
        boy.tick(2)
        assert boy.memory[JOYPAD] == 1 << bit
        boy.button_release(name)
        boy.tick(2)
        assert boy.memory[JOYPAD] == 0
    assert boy.memory[FRAMES] == frames + 4 * len(BUTTONS)
    assert not numpy.array_equal(before, boy.screen.ndarray)


def test_homebrew_counter_depends_on_the_inputs_and_on_nothing_else(forked_pyboy: Start) -> None:
    def play(pressed: str | None) -> list[int]:
        boy = forked_pyboy()
        boy.tick(BOOTED)
        if pressed:
            boy.button(pressed)
        boy.tick(200)
        return [boy.memory[COUNTER], *boy.memory[RANDOM : RANDOM + 2]]

    idle = play(None)
    assert idle == play(None)
    assert idle[0] > 5
    assert idle != play("b")


def test_memory_slices_banks_and_writes(forked_pyboy: Start) -> None:
    boy = forked_pyboy()
    boy.memory[0xC100] = 7
    boy.memory[0xC101:0xC104] = [1, 2, 3]
    boy.memory[0xC110:0xC114] = 9
    assert boy.memory[0xC100] == 7
    assert boy.memory[0xC101:0xC104] == [1, 2, 3]
    assert boy.memory[0xC110:0xC114] == [9] * 4
    assert bytes(boy.memory[0, 0x134:0x13F]) == b"RLSTABILITY"
    boy.memory[0, 0x200] = 0x42
    assert boy.memory[0, 0x200] == 0x42


def test_states_go_through_files(forked_pyboy: Start) -> None:
    boy = forked_pyboy()
    boy.tick(BOOTED)
    state, here = io.BytesIO(), boy.memory[FRAMES]
    boy.save_state(state)
    boy.tick(30)
    assert boy.memory[FRAMES] == here + 30
    state.seek(0)
    boy.load_state(state)
    assert boy.memory[FRAMES] == here


def test_everything_else_is_forwarded(forked_pyboy: Start) -> None:
    boy = forked_pyboy()
    boy.tick(BOOTED)
    assert boy.cartridge_title == "RLSTABILITY"
    assert boy.game_area().shape == (32, 32)
    assert boy.tilemap_background[0:4, 0] == [0, 1, 2, 3]
    assert boy.get_sprite(3).on_screen is False
    assert boy.get_sprite(3).tiles[0].shape == (8, 8)
    assert [tile.tile_identifier for tile in boy.get_sprite(3).tiles] == [0]
    assert boy.get_tile(1).image().size == (8, 8)
    boy.register_file.B = 0x55
    assert boy.register_file.B == 0x55
    assert boy.screen.get_tilemap_position()[0][0] == boy.memory[0xFF43]
    assert boy.memory_scanner.scan_memory(0x52, start_addr=0x134, end_addr=0x134) == [0x134]
    assert {"game_area", "tick", "pid", "frame"} <= set(dir(boy))
    with pytest.raises(AttributeError, match="no public attribute 'nonsense'"):
        _ = boy.nonsense


def test_errors_are_pyboys_own_with_the_far_traceback(forked_pyboy: Start) -> None:
    from pyboy.utils import PyBoyInvalidInputException

    boy = forked_pyboy()
    with pytest.raises(PyBoyInvalidInputException) as caught:
        boy.button("no such button")
    assert "PyBoy.button" in "".join(caught.value.__notes__)
    assert boy.tick()


def test_an_empty_rom_is_refused_at_once(forked_pyboy: Start) -> None:
    from pyboy.utils import PyBoyException

    before = directories()
    with pytest.raises(PyBoyException, match="Empty ROM"):
        forked_pyboy(b"")
    with pytest.raises(FileNotFoundError):
        forked_pyboy("no-such-file.gb")
    assert directories() == before


def test_hooks_run_here_and_may_use_the_emulator(forked_pyboy: Start) -> None:
    boy, seen = forked_pyboy(), []
    boy.hook_register(
        0, 0x100, lambda context: seen.append((context, boy.register_file.PC, boy.memory[0x101])), "hello"
    )
    boy.tick(BOOTED)
    assert seen == [("hello", 0x100, 0xC3)]


def test_a_hook_that_fires_in_every_loop_is_a_stall_and_one_finding() -> None:
    rom, calls = build_rom(), []
    halt = rom.index(b"\x76\x00\xaf")  # a hook on a halt fires again and again, and the frame never ends

    def fail(context: object) -> None:
        calls.append(boy.memory[0xFF44])
        raise ValueError(f"call {len(calls)}")

    boy = ForkedPyBoy(rom, stall_after="500ms")
    boy.hook_register(0, halt, fail, None)
    with pytest.raises(EmulatorStalled, match=r"no frame passed for 0\.5 s"):
        boy.tick(BOOTED)
    boy.close()
    assert len(calls) > 5
    assert ["call 1" in text for text in boy.notices.values()] == [True]


def test_the_time_that_a_hook_takes_here_is_not_a_stall(forked_pyboy: Start) -> None:
    boy = forked_pyboy(stall_after="1s")
    boy.hook_register(0, 0x100, lambda context: time.sleep(1.2), None)
    boy.tick(BOOTED)
    assert boy.frame == BOOTED


@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy, copy.deepcopy])
def test_copying_an_emulator_says_why_not(forked_pyboy: Start, copying: Callable[[object], object]) -> None:
    boy = forked_pyboy()
    for part in (boy, boy.screen, boy.memory):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied: .* save_state\(\) here"):
            copying(part)


def test_cartridge_ram_never_touches_the_users_files(forked_pyboy: Start, tmp_path: Path) -> None:
    path = tmp_path / "battery.gb"
    path.write_bytes(build_rom(battery=True))
    saved = io.BytesIO()
    first, second = forked_pyboy(path), forked_pyboy(path)
    first.memory[0x0000] = 0x0A  # enables the cartridge's RAM
    first.memory[0xA000] = 0x77
    first.stop(ram_file=saved)
    second.stop()
    assert [entry.name for entry in tmp_path.iterdir()] == ["battery.gb"]
    assert saved.getvalue()[0] == 0x77
    saved.seek(0)
    third = forked_pyboy(path, ram_file=saved)
    third.memory[0x0000] = 0x0A
    assert third.memory[0xA000] == 0x77


def test_use_after_stop_raises_and_a_second_stop_does_not(forked_pyboy: Start) -> None:
    boy = forked_pyboy()
    view = boy.screen.ndarray
    boy.stop()
    boy.stop()
    with pytest.raises(RuntimeError, match="Emulator is stopped"):
        boy.tick()
    assert view.shape == (144, 160, 4)
    assert int(view.sum()) >= 0  # still mapped


def test_pixels_are_shared_not_sent(forked_pyboy: Start) -> None:
    boy = forked_pyboy()
    view = boy.screen.ndarray
    boy.tick(BOOTED)
    before = view.copy()
    boy.tick(5)
    assert numpy.shares_memory(view, boy.screen.ndarray)
    assert not numpy.array_equal(view, before)


# Several at once


def test_instances_do_not_know_each_other(forked_pyboy: Start) -> None:
    boys = [forked_pyboy() for _ in range(2)]
    for number, boy in enumerate(boys):
        boy.tick(BOOTED + number)
    assert len({boy.pid for boy in boys}) == 2
    assert [boy.frame for boy in boys] == [BOOTED, BOOTED + 1]


def test_any_thread_may_use_it(forked_pyboy: Start) -> None:
    boy, errors = forked_pyboy(), list[BaseException]()

    def work() -> None:
        try:
            for _ in range(50):
                boy.tick()
                assert boy.memory[0, 0x134] == ord("R")
                assert boy.screen.ndarray.copy().shape == (144, 160, 4)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert boy.frame == 200


def test_a_forked_child_of_the_test_is_refused(forked_pyboy: Start) -> None:
    boy = forked_pyboy()
    child = os.fork()
    if child == 0:
        try:
            boy.tick()
        except RuntimeError as error:
            os._exit(42 if "belongs to process" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert boy.tick()


# Deaths and stalls


@pytest.mark.parametrize("signal_number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_dead_emulator_says_how_it_died(forked_pyboy: Start, signal_number: signal.Signals) -> None:
    boy = forked_pyboy()
    boy.tick(12)
    boy.button("start")
    os.kill(boy.pid, signal_number)
    with pytest.raises(EmulatorCrashed) as caught:
        boy.tick(3)
    crash = caught.value
    assert crash.signal == signal_number.name
    assert crash.frame == 12
    assert crash.seen.inputs == ("frame 12: button('start')",)
    assert str(crash).startswith(
        f"CRASH: PyBoy's process died of {signal_number.name} in tick(3, True, True) at frame 12"
    )
    assert crash.verdict.word == "CRASH"
    if signal_number != signal.SIGKILL:
        assert "most recent call first" in str(crash)
    with pytest.raises(EmulatorCrashed):
        _ = boy.screen.ndarray


def test_a_look_at_the_screen_is_a_use_too(forked_pyboy: Start) -> None:
    boy = forked_pyboy()
    os.kill(boy.pid, signal.SIGKILL)
    os.waitid(os.P_PID, boy.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(EmulatorCrashed):
        _ = boy.screen.image


def test_an_emulator_that_hangs_is_killed_and_named(forked_pyboy: Start) -> None:
    boy = forked_pyboy(stall_after="300ms")
    boy.tick(5)
    os.kill(boy.pid, signal.SIGSTOP)
    with pytest.raises(EmulatorStalled) as caught:
        boy.tick(7)
    assert str(caught.value).startswith(
        "STALL: PyBoy did not return from tick(7, True, True) and no frame passed for 0.3 s"
    )
    with pytest.raises(ProcessLookupError):
        os.kill(boy.pid, 0)


@pytest.mark.skipif(not version("pyboy").startswith("2.8."), reason="the corrupt byte is found for this PyBoy")
def test_an_endless_native_loop_is_a_stall_with_its_stack(forked_pyboy: Start) -> None:
    boy = forked_pyboy(stall_after="500ms")
    boy.tick(BOOTED)
    state = io.BytesIO()
    boy.save_state(state)
    corrupt = bytearray(state.getvalue())
    corrupt[30] ^= 0xFF  # in a cycle counter: the frame that it belongs to never ends
    boy.load_state(io.BytesIO(bytes(corrupt)))
    with pytest.raises(EmulatorStalled) as caught:
        boy.tick()
    assert "in _perform" in caught.value.seen.stack
    assert caught.value.seen.inputs == (f"frame {BOOTED}: load_state({len(corrupt)} bytes)",)


def test_a_long_call_that_makes_frames_is_not_a_stall(forked_pyboy: Start) -> None:
    boy = forked_pyboy(stall_after="300ms")
    boy.tick(BOOTED)
    frames, longest = 4000, 0.0
    while longest < 1.0:  # whatever the machine's speed, in the end one call takes longer than the limit
        begun = time.monotonic()
        boy.tick(frames, False, False)
        longest, frames = time.monotonic() - begun, frames * 2
    assert boy.tick()


# Nothing is left behind


def test_the_process_and_its_files_go_with_the_emulator() -> None:
    before = directories()
    boy = ForkedPyBoy()
    assert len(directories() - before) == 1
    assert boy.close() is None
    assert directories() == before
    with pytest.raises(ProcessLookupError):
        os.kill(boy.pid, 0)


def test_stop_releases_everything_and_the_last_screen_stays() -> None:
    boy = ForkedPyBoy()
    boy.tick(BOOTED)
    before = len(os.listdir("/dev/fd"))
    last = boy.screen.ndarray.copy()
    boy.stop()
    assert len(os.listdir("/dev/fd")) == before - 2  # the socket, and the mapping's own
    assert numpy.array_equal(boy.screen.ndarray, last)
    assert boy.frame == BOOTED


@pytest.mark.slow
def test_an_emulator_per_lap_does_not_leak(run_pytest: Any) -> None:
    outcome = run_pytest(
        """
        import pytest

        @pytest.mark.rl_no_leak
        def test_laps(forked_pyboy, rl_laps):
            for _ in rl_laps:
                boy = forked_pyboy()
                boy.tick(2)
                boy.screen.ndarray.copy()
                boy.stop()
        """
    )
    assert outcome.tests == {"test_laps": "passed"}, outcome.details


def test_the_emulator_ends_when_its_test_is_killed(tmp_path: Path) -> None:
    before = directories()
    source = (
        "import os, sys\n"
        "from pytest_rlstability.kits.pyboy.client import ForkedPyBoy\n"
        "boy = ForkedPyBoy()\n"
        "print(boy.pid, flush=True)\n"
        "boy.tick(50_000_000, False, False)\n"
    )
    test = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert test.stdout is not None
    pid = int(test.stdout.readline())
    test.kill()
    test.wait()
    test.stdout.close()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(pid)
    assert directories() == before


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


# The test's verdict

DEATHS = """
    import os, signal, threading
    import pytest
    from pytest_rlstability import EmulatorCrashed, EmulatorStalled

    def kill(boy):
        boy.tick(4)
        boy.button("b")
        os.kill(boy.pid, signal.SIGSEGV)

    def test_uncaught(forked_pyboy):
        boy = forked_pyboy()
        kill(boy)
        boy.tick()

    def test_swallowed(forked_pyboy):
        boy = forked_pyboy()
        kill(boy)
        try:
            boy.tick()
        except Exception:
            pass

    def test_swallowed_before_another_was_started(forked_pyboy):
        boy = forked_pyboy()
        kill(boy)
        try:
            boy.tick()
        except Exception:
            pass
        with forked_pyboy() as second:
            second.tick()

    def test_never_used_again(forked_pyboy):
        boy = forked_pyboy()
        kill(boy)
        os.waitid(os.P_PID, boy.pid, os.WEXITED | os.WNOWAIT)

    def test_killed_just_before_the_end(forked_pyboy):
        boy = forked_pyboy()
        boy.tick()
        os.kill(boy.pid, signal.SIGKILL)

    def test_stalled_and_swallowed(forked_pyboy):
        boy = forked_pyboy(stall_after="200ms")
        os.kill(boy.pid, signal.SIGSTOP)
        try:
            boy.tick()
        except BaseException:
            pass

    def test_hook_raises(forked_pyboy):
        boy = forked_pyboy()
        boy.hook_register(0, 0x100, lambda context: 1 / 0, None)
        boy.tick(80)

    def test_hook_raises_before_another_was_started(forked_pyboy):
        with forked_pyboy() as boy:
            boy.hook_register(0, 0x100, lambda context: 1 / 0, None)
            boy.tick(80)
        forked_pyboy().tick()

    def test_observations_not_copied(forked_pyboy):
        boy, history = forked_pyboy(), []
        for _ in range(5):
            boy.tick()
            history.append(boy.screen.ndarray[::2, ::2])

    def test_images_not_copied(forked_pyboy):
        with forked_pyboy() as boy:
            history = []
            for _ in range(5):
                boy.tick()
                history.append(boy.screen.image)
        forked_pyboy().tick()

    def test_expected(forked_pyboy):
        boy = forked_pyboy()
        kill(boy)
        with pytest.raises(EmulatorCrashed):
            boy.tick()

    def test_expected_by_hand(forked_pyboy):
        boy = forked_pyboy()
        kill(boy)
        try:
            boy.tick()
        except EmulatorCrashed as error:
            error.expected = True

    def test_innocent(forked_pyboy):
        boy = forked_pyboy()
        boy.hook_register(0, 0x100, lambda context: None, None)
        boy.tick(80)

    def test_innocent_stopped(forked_pyboy):
        with forked_pyboy() as boy:
            boy.tick()

    def test_innocent_observations(forked_pyboy):
        boy, copies = forked_pyboy(), []
        live = boy.screen.ndarray
        for _ in range(8):
            boy.tick()
            observation = boy.screen.ndarray
            copies.append(observation.copy())
        assert [boy.screen.ndarray for _ in range(8)]
        boy.tick()

    def test_innocent_watchers(forked_pyboy):
        boy, turns = forked_pyboy(), threading.Barrier(4)

        def watch():
            for _ in range(8):
                view = boy.screen.ndarray
                turns.wait(30)

        watchers = [threading.Thread(target=watch) for _ in range(3)]
        for watcher in watchers:
            watcher.start()
        for _ in range(8):
            boy.tick()
            turns.wait(30)
        for watcher in watchers:
            watcher.join()
"""


GUILTY = {
    "test_uncaught": "CRASH: PyBoy's process died of SIGSEGV in tick(1, True, True) at frame 4",
    "test_swallowed": "CRASH: PyBoy's process died of SIGSEGV in tick(1, True, True) at frame 4",
    "test_swallowed_before_another_was_started": "CRASH: PyBoy's process died of SIGSEGV in tick(1, True, True)",
    "test_never_used_again": "CRASH: PyBoy's process died of SIGSEGV",
    "test_killed_just_before_the_end": "CRASH: PyBoy's process died of SIGKILL",
    "test_stalled_and_swallowed": "STALL: PyBoy did not return from tick",
    "test_hook_raises": "an exception was swallowed in a PyBoy hook",
    "test_hook_raises_before_another_was_started": "an exception was swallowed in a PyBoy hook",
    "test_observations_not_copied": "observations of 3 different frames share the same memory",
    "test_images_not_copied": "observations of 3 different frames share the same memory",
}
INNOCENT = {
    "test_expected",
    "test_expected_by_hand",
    "test_innocent",
    "test_innocent_stopped",
    "test_innocent_observations",
    "test_innocent_watchers",
}


def test_verdicts(run_pytest: Any) -> None:
    outcome = run_pytest(DEATHS, on=False)
    assert {name for name, word in outcome.tests.items() if word == "passed"} == INNOCENT
    for name, message in GUILTY.items():
        assert message in outcome.messages[name]
    for name in ("test_uncaught", "test_swallowed"):
        assert "frame 4: button('b')" in outcome.details[name]
        assert outcome.text.count(f"test_it.py::{name} - ") == 1  # told once, not again at tear-down
    assert "ZeroDivisionError" in outcome.details["test_hook_raises"]


@pytest.mark.slow
def test_verdicts_in_isolated_tests(run_pytest: Any) -> None:
    outcome = run_pytest(DEATHS, "-k", "uncaught or swallowed or expected")
    assert {name for name, word in outcome.tests.items() if word == "passed"} == {
        "test_expected",
        "test_expected_by_hand",
    }
    for name in outcome.tests.keys() & GUILTY.keys():
        assert outcome.messages[name].startswith(GUILTY[name])
