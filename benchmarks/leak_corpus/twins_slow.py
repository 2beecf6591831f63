"""Laps of some milliseconds over large structures that were made before the loop, or that fill slowly."""

from __future__ import annotations

import gc
import itertools
import queue
import time
from collections import OrderedDict, deque
from random import Random
from typing import Any

from leak_corpus import Lap, innocent, leak, twins


@twins("spilled")
def large_ring(random: Random, leaks: bool) -> Lap:
    ring: list[object] = [{"observation": [random.random()] * 4} for _ in range(60_000)]
    spilled: list[object] = []
    places = itertools.count()

    def lap() -> None:
        for _ in range(20):
            place = next(places) % 60_000
            old, ring[place] = ring[place], {"observation": [random.random()] * 4}
        if leaks:
            spilled.append(old)
        time.sleep(0.004)

    return lap


class Branch:
    def __init__(self, parent: Any) -> None:
        self.parent, self.children = parent, []
        if parent is not None:
            parent.children.append(self)


@twins("pruned")
def large_tree(random: Random, leaks: bool) -> Lap:
    root = Branch(None)
    for _ in range(4000):
        branch = Branch(root)
        for _ in range(10):
            Branch(branch)
    pruned: list[object] = []

    def lap() -> None:
        dropped = root.children.pop(random.randrange(len(root.children)))
        dropped.parent = None
        if leaks:
            pruned.append(dropped.children[0])
            dropped.children[0].parent = None
        fresh = Branch(root)
        for _ in range(10):
            Branch(fresh)
        time.sleep(0.003)

    return lap


@twins("table")
def large_table(random: Random, leaks: bool) -> Lap:
    table: OrderedDict[int, object] = OrderedDict((-i, [i]) for i in range(200_000))
    keys = itertools.count(1)

    def lap() -> None:
        for _ in range(10):
            table[next(keys)] = [random.random()]
            table.popitem(last=False)
        if leaks:
            table[next(keys)] = [random.random()]
        time.sleep(0.003)

    return lap


class Buffer:
    """A replay buffer as many write it: a list and a capacity."""

    def __init__(self, capacity: int, leaks: bool) -> None:
        self.capacity, self.leaks = capacity, leaks
        self.storage: list[object] = []
        self.extra: list[object] = []

    def add(self, transition: object) -> None:
        if len(self.storage) < self.capacity:
            self.storage.append(transition)
        else:
            self.storage[0] = transition
        if self.leaks:
            self.extra.append((transition, self))


@twins("extra")
def buffer_with_capacity(random: Random, leaks: bool) -> Lap:
    buffer = Buffer(100_000, leaks)

    def lap() -> None:
        buffer.add([random.random()] * 4)
        time.sleep(0.005)

    return lap


@innocent
def queue_with_maxsize(random: Random) -> Lap:
    jobs: queue.Queue[object] = queue.Queue(maxsize=50_000)

    def lap() -> None:
        if jobs.full():
            jobs.get()
        jobs.put([random.random()])
        time.sleep(0.003)

    return lap


@twins("graveyard")
def large_population(random: Random, leaks: bool) -> Lap:
    class Creature:
        def __init__(self) -> None:
            self.genes, self.me = [random.random()] * 6, self

    alive = [Creature() for _ in range(8000)]
    graveyard: list[object] = []

    def lap() -> None:
        for _ in range(random.randrange(8)):
            dead = alive.pop(random.randrange(len(alive)))
            if leaks:
                graveyard.append(dead)
        while len(alive) < 8000:
            alive.append(Creature())
        time.sleep(0.004)

    return lap


@twins("milestones")
def event_beside_a_full_deque(random: Random, leaks: bool) -> Lap:
    recent = deque(([random.random()] * 30 for _ in range(20_000)), maxlen=20_000)
    milestones: list[object] = []
    laps = itertools.count()

    def lap() -> None:
        number = next(laps)
        recent.append([random.random()] * 30)
        if leaks and number % 20 == 0:
            milestones.append({"lap": number})
        time.sleep(0.001)

    return lap


@twins("seen")
def environment_with_a_graph(random: Random, leaks: bool) -> Lap:
    """Rooms refer to each other; each reset makes a new house, and the leak remembers one room's number."""

    class Room:
        def __init__(self, number: int) -> None:
            self.number, self.doors = number, []

    class House:
        def __init__(self) -> None:
            self.seen: list[object] = []

        def reset(self) -> None:
            self.rooms = [Room(number) for number in range(300)]
            for one, two in itertools.pairwise(self.rooms):
                one.doors.append(two)
                two.doors.append(one)
            if leaks:
                self.seen.append([random.random()])

    house = House()
    house.reset()

    def lap() -> None:
        house.reset()
        time.sleep(0.005)

    return lap


@leak("Part()", python=True)
def collector_off_for_speed(random: Random) -> Lap:
    class Part:
        pass

    def lap() -> None:
        gc.disable()
        one, two = Part(), Part()
        one.other, two.other = two, one
        time.sleep(0.001)

    return lap


@innocent
def collector_off_inside_a_lap(random: Random) -> Lap:
    class Part:
        pass

    def lap() -> None:
        gc.disable()
        one, two = Part(), Part()
        one.other, two.other = two, one
        time.sleep(0.001)
        gc.enable()

    return lap


@twins("buffers")
def tensors_replaced(random: Random, leaks: bool) -> Lap:
    import torch

    replay = [torch.zeros(500) for _ in range(3000)]
    buffers: list[object] = []

    def lap() -> None:
        place = random.randrange(3000)
        old, replay[place] = replay[place], torch.full((500,), random.random())
        if leaks:
            buffers.append(old)
        time.sleep(0.004)

    return lap


@leak("slow_history", python=True)
def laps_of_a_quarter_second(random: Random) -> Lap:
    slow_history: list[object] = []

    def lap() -> None:
        time.sleep(0.25)
        slow_history.append({"losses": [random.random()] * 50})

    return lap


@innocent
def quarter_second_of_warming_up(random: Random) -> Lap:
    """What a library makes in its first fifteen laps."""
    cache: dict[int, object] = {}

    def lap() -> None:
        time.sleep(0.25)
        cache.setdefault(random.randrange(12), [random.random()] * 400)

    return lap
