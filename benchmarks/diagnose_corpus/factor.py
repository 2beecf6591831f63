"""``python factor.py NAME``: dies under some conditions only."""

from __future__ import annotations

import atexit
import ctypes
import gc
import multiprocessing
import os
import random
import sys
import threading
import time

from pytest_rlstability import stage

native = ctypes.CDLL(os.environ["FAULTS"])


def threads():
    native.with_threads()


def _use_owned():
    native.use_owned()


def fork():
    native.own()
    process = multiprocessing.get_context("fork").Process(target=_use_owned)
    process.start()
    process.join()
    sys.exit(process.exitcode != 0)


def simd():
    native.vector_path()


def hash_order():
    first = next(iter({f"name {number}" for number in range(16)}))
    if first != os.environ["FIRST_OF_HASH_0"]:
        native.die()


class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        if not sys.is_finalizing():
            native.die()


def gc_timing():
    Cycle()
    kept = [[number] for number in range(20000)]
    gc.disable()
    del kept
    os._exit(0)


def switch_timing():
    state, ends = [0], time.perf_counter() + 0.15

    def pause():
        pass

    def check():
        while time.perf_counter() < ends:
            before = state[0]
            pause()
            after = state[0]
            if before != after:
                native.die()

    def change():
        while time.perf_counter() < ends:
            state[0] += 1

    workers = [threading.Thread(target=work) for work in (check, change)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


_loaded = []


def _spawned():
    if not _loaded:
        native.die()


def start_method():
    _loaded.append(1)
    process = multiprocessing.get_context("spawn").Process(target=_spawned)
    process.start()
    process.join()
    sys.exit(process.exitcode != 0)


def seed():
    if random.random() > 0.3:
        native.die()


def memory_limit():
    native.big_buffer()


def stages():
    native.block.restype = ctypes.c_void_p
    native.overrun_heap.argtypes = [ctypes.c_void_p, ctypes.c_int]
    native.drop.argtypes = [ctypes.c_void_p]
    with stage("make env"):
        pass
    with stage("load"):
        blocks = [native.block(24) for _ in range(50)]
        for block in blocks:
            native.overrun_heap(block, 3)
        atexit.register(lambda: [native.drop(block) for block in blocks])
    with stage("learn"):
        for block in blocks:
            native.drop(block)
        native.churn()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
