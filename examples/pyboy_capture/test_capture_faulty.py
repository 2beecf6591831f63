"""A capture thread films a PyBoy game and the run dies of SIGSEGV, one time in three and mostly at the very end.

    pytest --rl-stability examples/pyboy_capture/test_capture_faulty.py

``pyboy_guard`` makes each of these fail in every run, with both threads' lines, before anything crashes.
"""

from __future__ import annotations

import io

from capture import CarefulRecorder, CarelessRecorder, stack_of_views


def test_filming(pyboy_guard, tmp_path) -> None:
    recorder = CarelessRecorder(pyboy_guard(), tmp_path)
    try:
        for _ in range(60):
            recorder.step()
    finally:
        recorder.done.set()
        recorder.thread.join()


def test_closing_while_filming(pyboy_guard, tmp_path) -> None:
    recorder = CarefulRecorder(pyboy_guard(), tmp_path)
    while not list(tmp_path.iterdir()):
        recorder.step()
    try:
        CarelessRecorder.close(recorder)
    finally:
        recorder.done.set()
        recorder.thread.join()


def test_saving_a_frame(pyboy_guard, tmp_path) -> None:
    boy = pyboy_guard()
    boy.tick()
    boy.screen.image.save(tmp_path / "frame.jpg")


def test_frame_stack(pyboy_guard) -> None:
    boy = pyboy_guard()
    boy.tick(80)
    stack_of_views(boy)


def test_last_frame_outlives_the_game(pyboy_guard) -> None:
    boy = pyboy_guard()
    boy.tick()
    last = boy.screen.ndarray
    boy.stop()
    assert last.shape == (144, 160, 4)


def test_a_broken_state_is_loaded(forked_pyboy) -> None:
    boy = forked_pyboy(stall_after="1s")
    boy.tick(80)
    state = io.BytesIO()
    boy.save_state(state)
    broken = bytearray(state.getvalue())
    broken[30] ^= 0xFF
    boy.load_state(io.BytesIO(broken))
    boy.tick()  # in-process, this would never come back
