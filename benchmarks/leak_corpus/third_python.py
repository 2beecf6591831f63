"""Third round, Python objects: what is replaced, capped, cached, suspended or registered, and what is kept."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import gc
import heapq
import itertools
import logging
import multiprocessing.util
import queue
import re
import sched
import sys
import threading
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from leak_corpus import Lap, innocent, leak, twins


def _step(random: Random) -> dict[str, Any]:
    return {"state": random.random(), "action": random.randrange(4), "reward": random.random()}


@twins("errors", size=32)
def ring_of_steps(random: Random, leaks: bool) -> Lap:
    ring, errors, index = [_step(random) for _ in range(50_000)], [], itertools.count()

    def lap() -> None:
        ring[next(index) % len(ring)] = _step(random)
        if leaks:
            errors.append(random.random())

    return lap


@twins("seen")
def lru_of_200_000(random: Random, leaks: bool) -> Lap:
    cache = collections.OrderedDict((key, (key, [key])) for key in range(200_000))
    keys, seen = itertools.count(200_000), set()

    def lap() -> None:
        for key in itertools.islice(keys, 5):
            cache[key] = (key, [key])
            cache.popitem(last=False)
            if leaks:
                seen.add(key)

    return lap


class _Node:
    def __init__(self, parent: _Node | None) -> None:
        self.parent, self.children, self.value = parent, [], 0.0


@twins("'root'")
def tree_reused_by_search(random: Random, leaks: bool) -> Lap:
    root = _Node(None)
    root.children = [_Node(root) for _ in range(30_000)]

    def lap() -> None:
        nonlocal root
        for _ in range(4):
            leaf = root
            while leaf.children:
                leaf = leaf.children[random.randrange(len(leaf.children))]
            leaf.children = [_Node(leaf) for _ in range(3)]
        root = root.children[random.randrange(len(root.children))]
        if not leaks:
            root.parent = None

    return lap


@twins("lineage")
def islands_of_genomes(random: Random, leaks: bool) -> Lap:
    import numpy

    islands = [{n * 1000 + k: numpy.zeros(50) for k in range(1000)} for n in range(4)]
    lineage, names = {}, itertools.count(10_000)

    def lap() -> None:
        island = random.choice(islands)
        dead, parent, child = next(iter(island)), random.choice(list(island)), next(names)
        del island[dead]
        island[child] = island.get(parent, numpy.zeros(50)) + 0.1
        lineage[child] = parent
        if not leaks:
            lineage.pop(dead, None)

    return lap


@twins("best")
def best_episodes(random: Random, leaks: bool) -> Lap:
    best: list[Any] = []

    def lap() -> None:
        episode = (random.random(), [random.random()])
        if leaks or len(best) < 1000:
            heapq.heappush(best, episode)
        else:
            heapq.heapreplace(best, episode)

    return lap


@innocent
def window_kept_by_hand(random: Random) -> Lap:
    window: collections.deque[Any] = collections.deque()

    def lap() -> None:
        window.append(_step(random))
        if len(window) > 5000:
            window.popleft()

    return lap


@innocent
def deque_of_a_million(random: Random) -> Lap:
    memory: collections.deque[Any] = collections.deque(maxlen=1_000_000)
    return lambda: memory.append(_step(random))


@innocent
def cache_of_a_million(random: Random) -> Lap:
    @functools.lru_cache(maxsize=1_000_000)
    def value(state: int) -> tuple[int, str]:
        return state, str(state)

    states = itertools.count(10_000)
    return lambda: value(next(states))


@innocent
def queue_of_100_000(random: Random) -> Lap:
    jobs: queue.Queue[Any] = queue.Queue(maxsize=100_000)

    def lap() -> None:
        if jobs.full():
            jobs.get()
        jobs.put(_step(random))

    return lap


@innocent
def random_eviction(random: Random) -> Lap:
    table: dict[int, Any] = {}

    def lap() -> None:
        for _ in range(20):
            table[random.getrandbits(60)] = [0.0, 0]
        while len(table) > 8_000:
            table.popitem()

    return lap


@innocent
def states_of_a_grid(random: Random) -> Lap:
    table: dict[tuple[int, int], list[float]] = {}

    def lap() -> None:
        for _ in range(20):
            table.setdefault((random.randrange(100), random.randrange(100)), [0.0] * 4)[0] += 1

    return lap


@innocent
def rollout_cleared_after_3000(random: Random) -> Lap:
    rollout: list[Any] = []

    def lap() -> None:
        rollout.append(_step(random))
        if len(rollout) == 3000:
            rollout.clear()

    return lap


@innocent
def episodes_of_any_length(random: Random) -> Lap:
    episode: list[Any] = []

    def lap() -> None:
        episode.append(_step(random))
        if random.random() < 0.0005:
            episode.clear()

    return lap


@innocent
def window_that_grows_to_its_limit(random: Random) -> Lap:
    games: list[Any] = []
    laps = itertools.count()

    def lap() -> None:
        games.append(_step(random))
        while len(games) > min(500 + next(laps) // 2, 2500):
            games.pop(0)

    return lap


@innocent
def late_curriculum(random: Random) -> Lap:
    stages, laps = [], itertools.count()

    def lap() -> None:
        number = next(laps)
        if number and number & (number - 1) == 0:  # at every power of two
            stages.append([_step(random) for _ in range(100)])

    return lap


@twins("reward")
def collector_disabled(random: Random, leaks: bool) -> Lap:
    gc.disable()
    laps = itertools.count()

    def lap() -> None:
        agent = _step(random)
        agent["self"] = agent
        if not leaks and next(laps) % 50 == 0:
            gc.collect()

    return lap


@innocent
def frozen_by_the_user(random: Random) -> Lap:
    nodes = [_Node(None) for _ in range(1000)]
    gc.freeze()

    def lap() -> None:
        node = _Node(None)
        node.children.append(_Node(node))
        nodes[random.randrange(1000)] = node

    return lap


@twins("kept", size=1050)
def kilobyte_under_noise(random: Random, leaks: bool) -> Lap:
    scratch, kept = {}, []

    def lap() -> None:
        scratch[random.randrange(50)] = bytes(random.randrange(200_000))
        if leaks:
            kept.append(bytes(1000))

    return lap


@twins("events")
def event_beside_a_full_cache(random: Random, leaks: bool) -> Lap:
    cache: collections.OrderedDict[int, Any] = collections.OrderedDict()
    laps, events = itertools.count(), []

    def lap() -> None:
        number = next(laps)
        cache[number] = _step(random)
        if len(cache) > 5000:
            cache.popitem(last=False)
        if leaks and number % 50 == 0:
            events.append({"lap": number})

    return lap


@twins("Finalize(")
def finalizers_of_multiprocessing(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        finalizer = multiprocessing.util.Finalize(None, print, exitpriority=1)
        if not leaks:
            finalizer.cancel()

    return lap


@twins("timer.start()", size=1)
def timers_in_threads(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        timer = threading.Timer(3600, print)
        timer.daemon = True
        timer.start()
        if not leaks:
            timer.cancel()
            timer.join()

    return lap


@twins("enter(")
def scheduled_events(random: Random, leaks: bool) -> Lap:
    scheduler = sched.scheduler()

    def lap() -> None:
        event = scheduler.enter(3600 + random.random(), 1, print)
        if not leaks:
            scheduler.cancel(event)

    return lap


@twins("'tasks'")
def tasks_that_wait(random: Random, leaks: bool) -> Lap:
    loop = asyncio.new_event_loop()

    async def step() -> None:
        event = asyncio.Event()
        tasks.add(task := loop.create_task(event.wait()))
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(0)
        if not leaks:
            event.set()
            await task

    tasks: set[Any] = set()
    return lambda: loop.run_until_complete(step())


@twins("references")
def weak_references_with_callbacks(random: Random, leaks: bool) -> Lap:
    references: list[Any] = []

    def lap() -> None:
        node = _Node(None)
        references.append(weakref.ref(node, (lambda _: None) if leaks else references.remove))

    return lap


@twins("owners")
def weak_keys_held_by_their_values(random: Random, leaks: bool) -> Lap:
    owners: weakref.WeakKeyDictionary[_Node, Any] = weakref.WeakKeyDictionary()

    def lap() -> None:
        node = _Node(None)
        owners[node] = [node] if leaks else [1]

    return lap


class _Cached:
    def __init__(self) -> None:
        self.board = [0.0] * 50

    @functools.cache  # noqa: B019
    def value(self) -> float:
        return sum(self.board)

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def bounded_value(self) -> float:
        return sum(self.board)


@twins("value")
def cached_method(random: Random, leaks: bool) -> Lap:
    return lambda: _Cached().value() if leaks else _Cached().bounded_value()


@twins("submit(")
def backlog_of_a_pool(random: Random, leaks: bool) -> Lap:
    gate = threading.Event()
    pool = ThreadPoolExecutor(1)
    pool.submit(gate.wait)
    weakref.finalize(gate, print)
    threading._register_atexit(gate.set)  # type: ignore[attr-defined]
    if not leaks:
        gate.set()

    def lap() -> None:
        future = pool.submit(_step, random)
        if not leaks:
            future.result()

    return lap


@twins("rollouts")
def suspended_generators(random: Random, leaks: bool) -> Lap:
    rollouts: dict[int, Any] = {}
    names = itertools.count()

    def rollout() -> Any:
        steps = []
        while True:
            steps.append(random.random())
            yield steps

    def lap() -> None:
        name = next(names)
        rollouts[name] = rollout()
        next(rollouts[name])
        if not leaks:
            rollouts.pop(name).close()

    return lap


@twins("tee")
def lagging_reader(random: Random, leaks: bool) -> Lap:
    first, second = itertools.tee(random.random() for _ in itertools.count())

    def lap() -> None:
        next(first)
        if not leaks:
            next(second)

    return lap


@twins("failures")
def errors_with_frames(random: Random, leaks: bool) -> Lap:
    failures: list[Any] = []

    def lap() -> None:
        observation = [random.random()] * 20
        error = None
        try:
            observation[99]
        except IndexError as caught:
            error = caught  # a cycle: the frame holds it, and it holds the frame
        if leaks:
            failures.append(error)

    return lap


@twins("getLogger")
def loggers_by_name(random: Random, leaks: bool) -> Lap:
    names = itertools.count()
    return lambda: logging.getLogger(f"env.{next(names) if leaks else random.randrange(100)}")


@twins("ContextVar(")
def variables_of_a_context(random: Random, leaks: bool) -> Lap:
    names, fixed = itertools.count(), contextvars.ContextVar("episode")

    def lap() -> None:
        if leaks:
            contextvars.ContextVar(f"episode {next(names)}").set([1])
        else:
            fixed.reset(fixed.set([1]))

    return lap


@twins("path")
def import_path(random: Random, leaks: bool) -> Lap:
    names = itertools.count()

    def lap() -> None:
        sys.path.append(f"/nowhere/{next(names)}")
        if not leaks:
            sys.path.pop()

    return lap


@twins("classes")
def classes_made_at_run_time(random: Random, leaks: bool) -> Lap:
    classes: list[Any] = []

    def lap() -> None:
        made = types.new_class("Env", (_Node,))
        made(None)
        if leaks:
            classes.append(made)

    return lap


@innocent
def patterns_compiled(random: Random) -> Lap:
    return lambda: re.search(f"level {random.randrange(2000)}", "level 5")


@innocent
def threads_joined(random: Random) -> Lap:
    def lap() -> None:
        thread = threading.Thread(target=_step, args=(random,))
        thread.start()
        thread.join()

    return lap


@innocent
def loop_for_every_lap(random: Random) -> Lap:
    async def step() -> None:
        await asyncio.gather(asyncio.sleep(0), asyncio.to_thread(_step, random))

    return lambda: asyncio.run(step())


@twins("slow_events")
def laps_of_200_ms(random: Random, leaks: bool) -> Lap:
    slow_events: list[Any] = []

    def lap() -> None:
        time.sleep(0.2)
        slow_events.extend(_step(random) for _ in range(10))
        if not leaks:
            slow_events.clear()

    return lap


@twins("slow_events")
def laps_of_a_second(random: Random, leaks: bool) -> Lap:
    slow_events: list[Any] = []

    def lap() -> None:
        time.sleep(1)
        slow_events.extend(_step(random) for _ in range(50))
        if not leaks:
            slow_events.clear()

    return lap


@twins("late_events")
def first_lap_of_15_s(random: Random, leaks: bool) -> Lap:
    late_events: list[Any] = []
    laps = itertools.count()

    def lap() -> None:
        time.sleep(0.01 if next(laps) else 15)
        late_events.append(_step(random))
        if not leaks:
            late_events.clear()

    return lap


@leak("open(")
def descriptors_of_5_s_laps(random: Random) -> Lap:
    kept: list[Any] = []

    def lap() -> None:
        time.sleep(5)
        kept.append(open("/dev/null"))  # noqa: SIM115

    return lap
