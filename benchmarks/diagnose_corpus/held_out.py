"""``python held_out.py NAME``: faults that the rules of the diagnosis had not seen when they were written."""

from __future__ import annotations

import ctypes
import gc
import os
import sys

POINTER, INT, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
native = ctypes.CDLL(os.environ["HELD_OUT"])
for name in ("buffer", "spawn", "load_sprite"):
    getattr(native, name).restype = POINTER
for name, arguments in {
    "release": [POINTER], "rename_actor": [POINTER, TEXT], "heal": [POINTER], "drop_sprite": [POINTER],
}.items():  # fmt: skip
    getattr(native, name).argtypes = arguments


def later():
    for _ in range(50):
        native.churn()
        gc.collect()
        [str(number) * 3 for number in range(300)]


def vector():
    native.make_rows(5)
    for index in range(50):
        native.blur_row(index, 5)
    native.drop_rows()
    later()


def within_block():
    actor = native.spawn()
    native.rename_actor(actor, b"a longer name..")
    later()
    native.heal(actor)


def callees_stack():
    native.step_world(14)


def load_state(target, data):
    ctypes.memmove(target, data, len(data))


def python_overrun():
    states = [native.buffer(24) for _ in range(100)]
    for state in states:
        load_state(state, b"x" * 40)
    for state in states:
        native.release(state)
    later()


def borrowed_lookup():
    import held_module

    class Env:
        def __init__(self):
            self.spaces = {"action": [1, 2], "observation": [3, 4]}

        def action(self):
            return len(held_module.lookup(self.spaces, "action"))

    env = Env()
    for _ in range(4):
        env.action()
        later()
    print(env.spaces)


def destroyed_twice():
    sprites = [native.load_sprite() for _ in range(20)]
    for sprite in sprites + sprites:
        native.drop_sprite(sprite)
    later()


def shared_frame():
    for _ in range(5):
        native.render_in_threads()
    later()


def view_of_released():
    import numpy as np

    size = 1 << 20
    screens = []
    for _ in range(4):
        memory = native.buffer(size)
        screens.append(np.ctypeslib.as_array((ctypes.c_uint64 * (size // 8)).from_address(memory)))
        native.release(memory)
    for screen in screens:
        screen += 1
    later()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
