"""The same game, filmed safely: under a lock in this process, or with the emulator in one of its own.

pytest --rl-stability examples/pyboy_capture/test_capture_fixed.py
"""

from __future__ import annotations

from capture import CarefulRecorder, stack_of_copies


def play(recorder: CarefulRecorder, directory) -> None:
    steps = 0
    while steps < 60 or not list(directory.iterdir()):
        recorder.step()
        steps += 1
    recorder.close()


def test_filming_under_a_lock(pyboy_guard, tmp_path, rl_stage) -> None:
    with rl_stage("start"):
        recorder = CarefulRecorder(pyboy_guard(), tmp_path)
    with rl_stage("play"):
        play(recorder, tmp_path)


def test_filming_an_emulator_of_its_own(forked_pyboy, tmp_path, rl_stage) -> None:
    with rl_stage("start"):
        recorder = CarefulRecorder(forked_pyboy(), tmp_path)
    with rl_stage("play"):
        play(recorder, tmp_path)


def test_frame_stack(pyboy_guard) -> None:
    boy = pyboy_guard()
    boy.tick(80)
    frames = stack_of_copies(boy)
    boy.stop()
    assert (frames[0] != frames[-1]).any()
