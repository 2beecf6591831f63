"""``python corruption.py NAME``: damages memory, goes on for a while, and dies in innocent code."""

from __future__ import annotations

import ctypes
import gc
import os
import sys

POINTER, INT, LONG, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_char_p
native = ctypes.CDLL(os.environ["FAULTS"])
native.block.restype = POINTER
for name, arguments in {
    "drop": [POINTER], "overrun_heap": [POINTER, INT], "underrun_heap": [POINTER], "write_freed": [POINTER],
    "read_freed": [POINTER], "release_twice": [POINTER], "free_inside": [POINTER], "copy_name": [POINTER, TEXT],
    "clear_board": [POINTER, INT], "copy_frame": [POINTER, POINTER, INT], "smash_stack": [TEXT],
    "use_unset": [POINTER], "poke_far": [POINTER, LONG], "append_stale": [INT], "format_score": [POINTER, LONG],
}.items():  # fmt: skip
    getattr(native, name).argtypes = arguments


def later(blocks=()):
    """Innocent work, in which the damage shows."""
    for block in blocks:
        native.drop(block)
    for _ in range(50):
        native.churn()
        gc.collect()
        [str(number) * 3 for number in range(300)]


def blocks(size=24, count=200):
    return [native.block(size) for _ in range(count)]


def overrun_heap():
    made = blocks()
    for block in made:
        native.overrun_heap(block, 3)
    later(made)


def underrun_heap():
    made = blocks()
    for block in made:
        native.underrun_heap(block)
    later(made)


def write_freed():
    made = blocks()
    for block in made:
        native.drop(block)
        native.write_freed(block)
    later()


def read_freed():
    for block in blocks():
        native.drop(block)
        native.read_freed(block)


def release_twice():
    made = blocks(count=20)
    for block in made:
        native.drop(block)
    for block in made:
        native.release_twice(block)
    later()


def free_inside():
    native.free_inside(native.block(128))
    later()


def copy_name():
    made = blocks()
    for block in made:
        native.copy_name(block, b"a name that is much too long for so small a block of memory")
    later(made)


def clear_board():
    made = blocks()
    for block in made:
        native.clear_board(block, 24)
    later(made)


def copy_frame():
    source, made = native.block(80), blocks(40)
    for block in made:
        native.copy_frame(block, source, 10)
    later(made)


def smash_stack():
    native.smash_stack(b"a text that is longer than the array on the stack of the function")


def use_unset():
    for _ in range(50):
        dirty = native.block(56)
        ctypes.memset(dirty, 0x41, 56)
        native.drop(dirty)
        native.use_unset(native.block(56))


def poke_far():
    native.poke_far(native.block(64), 1 << 40)


def append_stale():
    for _ in range(100):
        native.append_stale(1)
    later()


def format_score():
    made = blocks()
    for block in made:
        native.format_score(block, 12345)
    later(made)


def race():
    for _ in range(3):
        native.race()
    later()


def drop_borrowed():
    import native_module

    for _ in range(30):
        items = [["an", "object"]]
        native_module.drop_borrowed(items)
        native_module.drop_borrowed(items)
        later()


def give_borrowed():
    import native_module

    items = [["an", "object"]]
    for _ in range(5):
        native_module.give_borrowed(items)
    later()
    print(items)


def fill_bytes():
    import native_module

    made = [bytes(200 + number) for number in range(200)]
    for one in made:
        native_module.fill_bytes(one)
    del made
    later()


def set_beyond():
    import native_module

    made = [[None] * 70 for _ in range(200)]
    for one in made:
        native_module.set_beyond(one)
    del made
    later()


def box2d_joint():
    import Box2D

    world = Box2D.b2World()
    one, other = world.CreateDynamicBody(), world.CreateDynamicBody()
    joint = world.CreateDistanceJoint(bodyA=one, bodyB=other, anchorA=(0, 0), anchorB=(1, 1))
    world.DestroyBody(one)
    world.DestroyJoint(joint)


def box2d_body():
    import Box2D

    world = Box2D.b2World()
    body = world.CreateDynamicBody()
    del world
    gc.collect()
    for _ in range(20):
        body.CreateCircleFixture(radius=1)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
