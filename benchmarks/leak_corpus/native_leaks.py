"""Memory that no Python object owns."""

from __future__ import annotations

import ctypes
import mmap
from random import Random

from leak_corpus import Lap, leak

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


@leak("malloc(64)")
def malloc_64_bytes(random: Random) -> Lap:
    return lambda: _libc.malloc(64)


@leak("malloc(200)")
def malloc_in_churn(random: Random) -> Lap:
    def lap() -> None:
        buffers = [bytearray(random.randrange(600, 30000)) for _ in range(10)]
        _libc.malloc(200)
        random.shuffle(buffers)

    return lap


@leak("mmap(")
def raw_pages(random: Random) -> Lap:
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return lambda: _libc.mmap(None, 4096, protection, flags, -1, 0)


@leak("mmap.mmap")
def shared_pages(random: Random) -> Lap:
    kept: list[mmap.mmap] = []
    return lambda: kept.append(mmap.mmap(-1, 8192))


@leak("increase", python=True)
def reference_lost(random: Random) -> Lap:
    increase = ctypes.pythonapi.Py_IncRef
    increase.argtypes = [ctypes.py_object]
    return lambda: increase({"action": random.random()})


@leak("CreateStaticBody")
def box2d_terrain(random: Random) -> Lap:
    from Box2D import b2World

    world = b2World()
    return lambda: world.CreateStaticBody(position=(random.random(), 0)).CreateEdgeFixture(vertices=[(0, 0), (1, 1)])


@leak("CreateDynamicBody")
def box2d_agents(random: Random) -> Lap:
    from Box2D import b2World

    world = b2World()

    def lap() -> None:
        world.CreateDynamicBody(position=(random.random(), 0))
        world.Step(1 / 60, 2, 2)

    return lap
