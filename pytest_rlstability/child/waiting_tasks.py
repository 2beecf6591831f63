"""Which coroutines of this process wait, and for what. Only the process itself can say: an event loop that waits looks
the same from outside whatever it waits for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from gc import get_objects, get_referents  # bound here: a test may replace them
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from pytest_rlstability.compat.cpython import tasks_awaited_by
from pytest_rlstability.model.messages import Json

_MOST_TASKS = 20
_LONGEST_CHAIN = 100
_PARTS: dict[type, tuple[str, str]] = {
    CoroutineType: ("cr_frame", "cr_await"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
}
"""Where each kind of coroutine keeps its frame, and what it waits for."""


def waiting_tasks() -> list[Json]:
    """The awaits of every coroutine that no other one awaits, as ``StallDescribed`` has them, most telling first."""
    objects = get_objects()
    chains = {id(one): list(_chain(one)) for one in objects if type(one) is CoroutineType and one.cr_suspended}
    inner = {id(part) for chain in chains.values() for part in chain[1:]}
    tasks = {id(coroutine): task for task, coroutine in _asyncio_tasks(objects)}
    found = [_describe(chain, tasks.get(root)) for root, chain in chains.items() if root not in inner]
    return sorted((task for task in found if task["frames"]), key=_is_telling, reverse=True)[:_MOST_TASKS]


def _asyncio_tasks(objects: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Each task with its coroutine. Other libraries' tasks have no names here."""
    found = [getattr(sys.modules.get(module), "Task", None) for module in ("_asyncio", "asyncio.tasks")]
    kinds = tuple(kind for kind in found if isinstance(kind, type))
    for one in objects:
        if issubclass(type(one), kinds):
            yield one, one.get_coro()


def _chain(coroutine: Any) -> Iterator[Any]:
    """*coroutine*, what it awaits, what that awaits, and so on."""
    thing, length = coroutine, 0
    while type(thing) in _PARTS and length < _LONGEST_CHAIN:
        yield thing
        awaited = getattr(thing, _PARTS[type(thing)][1])
        # Before an asynchronous generator, and after an ``__await__``, stands an iterator without a frame.
        behind = [] if awaited is None or type(awaited) in _PARTS else get_referents(awaited)
        thing = next((one for one in behind if type(one) in _PARTS), awaited)
        length += 1


def _describe(chain: list[Any], task: Any) -> Json:
    frames = [getattr(part, _PARTS[type(part)][0]) for part in reversed(chain)]
    return {
        "name": "" if task is None else str(task.get_name()),
        "frames": [(one.f_code.co_filename, one.f_lineno, one.f_code.co_name) for one in frames if one is not None],
        "awaits": [] if task is None else [str(other.get_name()) for other in tasks_awaited_by(task)],
    }


def _is_telling(task: Json) -> bool:
    """Whether it waits for neither tasks, which have awaits of their own, nor the time."""
    file, _, function = task["frames"][0]
    return not (task["awaits"] or file.endswith("taskgroups.py") or (function == "sleep" and "asyncio" in file))
