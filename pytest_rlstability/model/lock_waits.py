"""Who waits for whom, put into words from what the waiting threads told before they blocked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Waits = Mapping[int, Mapping[str, Any]]
"""The last word of each waiting thread, by its ident."""


def hear(waits: dict[int, dict[str, Any]], record: Mapping[str, Any]) -> None:
    """Take in one word of a test's process: a thread ``waits``, is ``done``, or a lock waited for was ``taken``."""
    if record["event"] == "waits":
        waits[record["thread"]] = dict(record)
    elif record["event"] == "done":
        waits.pop(record["thread"], None)
    else:
        for wait in waits.values():
            if wait["lock"] == record["lock"]:
                wait.update({key: record[key] for key in ("owner", "owner_name", "owner_site", "bound")})


def find_cycle(waits: Waits) -> list[int]:
    """Threads each of which waits, without a limit, for something the next one holds; empty when there are none."""
    for start in waits:
        way: list[int] = []
        thread = start
        while thread in waits and waits[thread]["endless"] and thread not in way:
            way.append(thread)
            thread = waits[thread]["owner"]
        if thread in way:
            return way[way.index(thread) :]
    return []


def is_certain(waits: Waits, cycle: list[int]) -> bool:
    """Whether nobody outside the cycle could let go of a lock in it."""
    return bool(cycle) and all(waits[thread]["bound"] for thread in cycle)


def leads_to(waits: Waits, start: int, cycle: list[int]) -> bool:
    """Whether thread *start* is in the cycle, or waits for one that is."""
    seen: set[int] = set()
    thread = start
    while thread in waits and thread not in seen and waits[thread]["endless"]:
        if thread in cycle:
            return True
        seen.add(thread)
        thread = waits[thread]["owner"]
    return False


def waits_text(waits: Waits) -> str:
    """One line a waiting thread, those of the cycle first, each followed by the one it waits for."""
    cycle = find_cycle(waits)
    others = [thread for thread in waits if thread not in cycle]
    return "\n".join(_line(waits[thread]) for thread in [*cycle, *others])


def _line(wait: Mapping[str, Any]) -> str:
    own = [f"{what} ({site})" for what, site in wait["holds"]]
    holds = f" holds {' and '.join(own)} and" if own else ""
    limit = "" if wait["endless"] else " for a limited time"
    return f"thread {wait['name']}{holds} waits{limit} for {wait['what']} ({wait['site']}){_holder(wait)}"


def _holder(wait: Mapping[str, Any]) -> str:
    if wait["owner"] is None:
        return ""
    if wait["what"].startswith("the end of thread"):
        return ""
    site = f" ({wait['owner_site']})" if wait["owner_site"] else ""
    if wait["owner"] == wait["thread"]:
        return f", which it holds itself{site}"
    return f", held by thread {wait['owner_name']}{site}"
