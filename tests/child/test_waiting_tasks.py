"""The coroutines that wait are found with their awaits, whatever stands between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import Any

from pytest_rlstability.child.waiting_tasks import waiting_tasks


def seen_while(*coroutines: Any, name: str = "") -> list[dict[str, Any]]:
    """What is found while *coroutines* wait, each in a task; the first one has the *name*."""

    async def main() -> list[dict[str, Any]]:
        tasks = [asyncio.create_task(one, name=name if not number else None) for number, one in enumerate(coroutines)]
        await asyncio.sleep(0.01)
        found = waiting_tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found

    return asyncio.run(main())


def functions(task: dict[str, Any]) -> list[str]:
    return [function for _, _, function in task["frames"]]


async def reply() -> None:
    await asyncio.get_running_loop().create_future()


async def client() -> None:
    await reply()


def test_the_awaits_of_a_task_newest_first() -> None:
    (task,) = seen_while(client(), name="client-7")
    assert (task["name"], functions(task), task["awaits"]) == ("client-7", ["reply", "client"], [])
    file, line, _ = task["frames"][0]
    assert (file, line) == (__file__, reply.__code__.co_firstlineno + 1)


async def parts() -> AsyncIterator[int]:
    await reply()
    yield 1


class Connection:
    def __await__(self) -> Generator[Any, None, None]:
        return reply().__await__()


class Handshake:
    def __await__(self) -> Generator[Any, None, None]:
        yield from reply().__await__()


async def reads_parts() -> None:
    async for _ in parts():
        pass


async def connects() -> None:
    await Connection()


async def shakes_hands() -> None:
    await Handshake()


def test_what_stands_between_two_coroutines() -> None:
    found = seen_while(reads_parts(), connects(), shakes_hands())
    assert sorted(map(functions, found)) == [
        ["reply", "__await__", "shakes_hands"],
        ["reply", "connects"],
        ["reply", "parts", "reads_parts"],
    ]


async def waits_for(*others: Any) -> None:
    if len(others) == 1:
        await asyncio.create_task(others[0], name="inner")
    await asyncio.gather(*others)


async def ticks() -> None:
    await asyncio.sleep(60)


def test_a_task_that_waits_for_others_or_the_time_does_not_come_first() -> None:
    for outer in (waits_for(client()), waits_for(client(), ticks())):
        first, *rest = seen_while(ticks(), outer)
        assert functions(first) == ["reply", "client"]
        assert any(task["awaits"] for task in rest)
