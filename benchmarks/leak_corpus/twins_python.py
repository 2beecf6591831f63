"""Python objects: what is replaced, what has a limit, and what is kept. Each case is a leak and its innocent twin."""

from __future__ import annotations

import array
import asyncio
import atexit
import contextvars
import copy
import functools
import gc
import heapq
import io
import itertools
import linecache
import logging
import os
import queue
import sys
import threading
import types
import warnings
import weakref
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random

from leak_corpus import Lap, twins


@twins("spilled")
def ring_full_before_the_loop(random: Random, leaks: bool) -> Lap:
    ring: list[object] = [(random.random(), [0.0] * 4, False) for _ in range(5000)]
    spilled: list[object] = []
    steps = itertools.count()

    def lap() -> None:
        number = next(steps)
        old, ring[number % 5000] = ring[number % 5000], (random.random(), [1.0] * 4, True)
        if leaks and number % 7 == 0:
            spilled.append(old)

    return lap


class Node:
    def __init__(self, parent: Node | None) -> None:
        self.parent, self.children, self.visits = parent, [], 0
        if parent:
            parent.children.append(self)


@twins("pruned")
def search_tree(random: Random, leaks: bool) -> Lap:
    root = Node(None)
    for _ in range(300):
        child = Node(root)
        for _ in range(8):
            Node(child)
    pruned: list[Node] = []

    def lap() -> None:
        dropped = root.children.pop(random.randrange(len(root.children)))
        dropped.parent = None
        if leaks:
            pruned.append(dropped)
        fresh = Node(root)
        for _ in range(8):
            Node(fresh)

    return lap


@twins("table")
def transposition_table(random: Random, leaks: bool) -> Lap:
    table: OrderedDict[int, tuple[float, int]] = OrderedDict((-i, (0.0, i)) for i in range(200_000))
    keys = itertools.count(1)

    def lap() -> None:
        table[next(keys)] = (random.random(), 1)
        if not leaks:
            table.popitem(last=False)

    return lap


@twins("table")
def table_nearly_full(random: Random, leaks: bool) -> Lap:
    table: OrderedDict[int, tuple[float, int]] = OrderedDict((-i, (0.0, i)) for i in range(20_000))
    keys = itertools.count(1)

    def lap() -> None:
        table[next(keys)] = (random.random(), 1)
        if not leaks and len(table) > 23_000:
            table.popitem(last=False)

    return lap


@twins("jobs")
def queue_of_jobs(random: Random, leaks: bool) -> Lap:
    jobs: queue.Queue[object] = queue.Queue(0 if leaks else 3000)

    def lap() -> None:
        if jobs.full():
            jobs.get()
        jobs.put({"seed": random.random()})

    return lap


@twins("graveyard")
def births_and_deaths(random: Random, leaks: bool) -> Lap:
    alive = [{"energy": random.random(), "age": i} for i in range(3000)]
    graveyard: list[object] = []

    def lap() -> None:
        for _ in range(random.randrange(6)):
            dead = alive.pop(random.randrange(len(alive)))
            if leaks:
                graveyard.append(dead)
        while len(alive) < 3000 + random.randrange(-3, 3):
            alive.append({"energy": random.random(), "age": 0})

    return lap


@twins("transitions")
def deque_with_a_far_limit(random: Random, leaks: bool) -> Lap:
    transitions: deque[object] = deque(maxlen=None if leaks else 5_000_000)
    return lambda: transitions.append((random.random(), random.random(), 1.0))


@twins("frontier")
def priority_queue(random: Random, leaks: bool) -> Lap:
    frontier: list[tuple[float, str]] = []

    def lap() -> None:
        heapq.heappush(frontier, (random.random(), f"state {random.random()}"))
        if not leaks and len(frontier) > 2500:
            heapq.heappop(frontier)

    return lap


@twins("visits")
def state_visits(random: Random, leaks: bool) -> Lap:
    visits: Counter[object] = Counter()

    def lap() -> None:
        x, y = random.uniform(0, 60), random.uniform(0, 60)
        visits[(x, y) if leaks else (int(x), int(y))] += 1

    return lap


@twins("finalize")
def finalizers(random: Random, leaks: bool) -> Lap:
    class Env:
        pass

    forever = Env()
    return lambda: weakref.finalize(forever if leaks else Env(), abs, -1)


@twins("wrapped")
def reward_function_wrapped(random: Random, leaks: bool) -> Lap:
    def reward(value: float) -> float:
        return value

    wrapped = [reward]

    def lap() -> None:
        inner = wrapped[0] if leaks else reward
        wrapped[0] = functools.partial(lambda inner, value: inner(value) * 0.99, inner)

    return lap


@twins("transcript")
def text_buffer(random: Random, leaks: bool) -> Lap:
    transcript = io.StringIO()

    def lap() -> None:
        transcript.write(f"step {random.random()} reward {random.random()}\n" * 3)
        if not leaks and transcript.tell() > 60_000:
            transcript.seek(0)
            transcript.truncate()

    return lap


@twins("packets")
def byte_buffer(random: Random, leaks: bool) -> Lap:
    packets = bytearray()

    def lap() -> None:
        packets.extend(random.randbytes(300))
        if not leaks and len(packets) > 100_000:
            packets.clear()

    return lap


@twins("returns")
def numbers_in_array(random: Random, leaks: bool) -> Lap:
    returns = array.array("d", bytes(800))

    def lap() -> None:
        returns.extend([random.random()] * 16)
        if not leaks:
            del returns[:16]

    return lap


@twins("trajectory")
def rolling_concatenation(random: Random, leaks: bool) -> Lap:
    import numpy

    trajectory = [numpy.zeros((200, 12))]

    def lap() -> None:
        joined = numpy.concatenate([trajectory[0], numpy.full((1, 12), random.random())])
        trajectory[0] = joined if leaks else joined[1:]

    return lap


@twins("last_error")
def chained_errors(random: Random, leaks: bool) -> Lap:
    last_error: list[BaseException | None] = [None]

    def lap() -> None:
        try:
            raise ConnectionError(f"lost {random.random()}")
        except ConnectionError as error:
            if leaks:
                error.__cause__ = last_error[0]
            last_error[0] = error

    return lap


@twins("subscribers")
def subscribers(random: Random, leaks: bool) -> Lap:
    class Bus:
        def __init__(self) -> None:
            self.subscribers: dict[str, list[object]] = defaultdict(list)

    class Agent:
        def on_event(self) -> None: ...

    bus = Bus()

    def lap() -> None:
        agent = Agent()
        bus.subscribers["step"].append(agent.on_event)
        if not leaks:
            bus.subscribers["step"].remove(agent.on_event)

    return lap


@twins("collected")
def mutable_default(random: Random, leaks: bool) -> Lap:
    def rollout(collected: list[float] = []) -> list[float]:  # noqa: B006
        collected.append(random.random())
        return collected

    return lambda: rollout() if leaks else rollout([])


@twins("warn")
def warnings_of_many_texts(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        text = f"reward {random.random()} out of range" if leaks else "reward out of range"
        warnings.warn(text, UserWarning, stacklevel=1)

    warnings.simplefilter("default")
    return lap


@twins("andler")
def logging_handlers(random: Random, leaks: bool) -> Lap:
    log = logging.getLogger("corpus.handlers")
    log.propagate = False

    def lap() -> None:
        handler = logging.NullHandler()
        log.addHandler(handler)
        if not leaks:
            log.removeHandler(handler)
            handler.close()

    return lap


@twins("linecache")
def generated_code(random: Random, leaks: bool) -> Lap:
    numbers = itertools.count()

    def lap() -> None:
        name = f"<policy {next(numbers) if leaks else 0}>"
        source = "def act(observation): return observation * 2\n"
        linecache.cache[name] = (len(source), None, [source], name)
        exec(compile(source, name, "exec"), {})

    return lap


@twins("Cell()")
def collector_switched_off(random: Random, leaks: bool) -> Lap:
    class Cell:
        pass

    gc.disable()

    def lap() -> None:
        cell = Cell()
        cell.me = cell if leaks else None  # a cycle that nobody collects

    return lap


@twins("Cell()")
def collector_called_now_and_then(random: Random, leaks: bool) -> Lap:
    class Cell:
        pass

    gc.disable()
    laps = itertools.count()
    kept: list[object] = []

    def lap() -> None:
        cell = Cell()
        cell.me = cell
        if leaks:
            kept.append(cell)
        if next(laps) % 100 == 0:
            gc.collect()

    return lap


@twins("milestones")
def one_event_in_fifty_laps(random: Random, leaks: bool) -> Lap:
    recent = deque(((random.random(), i) for i in range(1000)), maxlen=1000)
    milestones: list[object] = []
    laps = itertools.count()

    def lap() -> None:
        number = next(laps)
        recent.append((random.random(), number))
        if number % 50 == 0:
            milestones.append({"lap": number, "best": random.random()})
        if not leaks and len(milestones) > 10:
            milestones.clear()

    return lap


@twins("kept")
def under_retained_noise(random: Random, leaks: bool) -> Lap:
    noise = [bytearray(random.randrange(200_000)) for _ in range(40)]
    kept: list[bytearray] = []

    def lap() -> None:
        noise[random.randrange(40)] = bytearray(random.randrange(200_000))
        if leaks:
            kept.append(bytearray(1024))

    return lap


@twins("steps")
def tuples_of_what_is_there(random: Random, leaks: bool) -> Lap:
    names = ("left", "right", "stay")
    steps: list[object] = []

    def lap() -> None:
        steps.append((random.choice(names), random.choice(names), random.choice(names)))
        if not leaks and len(steps) >= 500:
            del steps[:250]

    return lap


@twins("chained")
def iterators_chained(random: Random, leaks: bool) -> Lap:
    chained = [iter([0.0])]

    def lap() -> None:
        fresh = iter([random.random(), random.random()])
        chained[0] = itertools.chain(chained[0], fresh) if leaks else itertools.chain(iter([0.0]), fresh)

    return lap


@twins("copies")
def copies_with_memo(random: Random, leaks: bool) -> Lap:
    state = {"board": [[0] * 8 for _ in range(8)], "player": 1}
    copies: dict[int, object] = {}
    numbers = itertools.count()

    def lap() -> None:
        copies[next(numbers) if leaks else 0] = copy.deepcopy(state)

    return lap


@twins("self.infos")
def rebuilt_at_every_reset(random: Random, leaks: bool) -> Lap:
    class Env:
        def __init__(self) -> None:
            self.infos: list[object] = []

        def reset(self) -> None:
            self.grid = {(x, y): [random.random()] for x in range(20) for y in range(20)}
            if leaks:
                self.infos.append({"start": random.random()})

    env = Env()
    return env.reset


@twins("atexit")
def exit_callbacks(random: Random, leaks: bool) -> Lap:
    class Env:
        def close(self) -> None: ...

    def lap() -> None:
        close = Env().close
        if leaks:
            atexit.register(close)

    return lap


@twins("environ")
def variables(random: Random, leaks: bool) -> Lap:
    numbers = itertools.count()

    def lap() -> None:
        os.environ[f"CORPUS_{next(numbers) if leaks else 0}"] = "x" * 40

    return lap


@twins("modules")
def modules_made_at_run_time(random: Random, leaks: bool) -> Lap:
    numbers = itertools.count()

    def lap() -> None:
        name = f"corpus_plugin_{next(numbers) if leaks else 0}"
        sys.modules[name] = types.ModuleType(name)

    return lap


@twins("tasks")
def tasks_of_a_loop(random: Random, leaks: bool) -> Lap:
    loop = asyncio.new_event_loop()
    tasks: set[object] = set()

    async def step() -> None:
        await asyncio.sleep(0)

    async def play() -> None:
        task = loop.create_task(step())
        tasks.add(task)
        if not leaks:
            task.add_done_callback(tasks.discard)
        await task
        await asyncio.sleep(0)

    return lambda: loop.run_until_complete(play())


@twins("call_later")
def timers_of_a_loop(random: Random, leaks: bool) -> Lap:
    loop = asyncio.new_event_loop()

    def lap() -> None:
        handle = loop.call_later(3600, print)
        if not leaks:
            handle.cancel()
        loop.run_until_complete(asyncio.sleep(0))

    return lap


@twins("inbox")
def mailbox_of_a_task(random: Random, leaks: bool) -> Lap:
    loop = asyncio.new_event_loop()
    inbox: asyncio.Queue[object] = asyncio.Queue()

    async def play() -> None:
        await inbox.put({"action": random.random()})
        if not leaks:
            await inbox.get()

    return lambda: loop.run_until_complete(play())


@twins("futures")
def futures_of_a_pool(random: Random, leaks: bool) -> Lap:
    pool = ThreadPoolExecutor(2)
    futures: list[Future[float]] = []

    def lap() -> None:
        futures.append(pool.submit(random.random))
        futures[-1].result()
        if not leaks:
            futures.pop()

    return lap


@twins("scopes")
def context_copies(random: Random, leaks: bool) -> Lap:
    current: contextvars.ContextVar[object] = contextvars.ContextVar("current")
    scopes: list[contextvars.Context] = []

    def lap() -> None:
        context = contextvars.copy_context()
        context.run(current.set, [random.random()] * 10)
        scopes.append(context)
        if not leaks and len(scopes) > 100:
            scopes.clear()

    return lap


@twins("by_thread")
def state_by_thread(random: Random, leaks: bool) -> Lap:
    by_thread: dict[object, list[float]] = {}

    def work() -> None:
        by_thread[object() if leaks else threading.current_thread().name] = [random.random()] * 20
        if not leaks:
            del by_thread[threading.current_thread().name]

    def lap() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    return lap


@twins("settings")
def layered_settings(random: Random, leaks: bool) -> Lap:
    settings = [ChainMap({"gamma": 0.99})]

    def lap() -> None:
        child = settings[0].new_child({"lr": random.random()})
        settings[0] = child if leaks else child.parents

    return lap


@twins("episodes")
def generations_of_episodes(random: Random, leaks: bool) -> Lap:
    """Batches are dropped whole every 300 laps; the leak keeps one episode of each batch."""
    episodes: list[object] = []
    batch: list[object] = []

    def lap() -> None:
        batch.append([random.random() for _ in range(12)])
        if len(batch) == 30:
            if leaks:
                episodes.append(batch[0])
            batch.clear()

    return lap


@twins("names")
def interned_names(random: Random, leaks: bool) -> Lap:
    names: dict[str, int] = {}
    return lambda: names.setdefault(sys.intern(f"agent-{random.randrange(10**12 if leaks else 3000)}"), 1)


@twins("history")
def after_a_slow_start(random: Random, leaks: bool) -> Lap:
    """The first lap takes four seconds, as that of a lazy import does."""
    import time

    history: deque[object] = deque(maxlen=None if leaks else 30)
    first = [True]

    def lap() -> None:
        if first.pop() if first else False:
            time.sleep(4)
        time.sleep(0.003)
        history.append([random.random()] * 8)

    return lap


@twins("evaluations")
def laps_of_fifty_milliseconds(random: Random, leaks: bool) -> Lap:
    import time

    evaluations: list[object] = []

    def lap() -> None:
        time.sleep(0.05)
        evaluations.append({"reward": random.random(), "lengths": [0] * 10})
        if not leaks and len(evaluations) > 20:
            evaluations.clear()

    return lap
