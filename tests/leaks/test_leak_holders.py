"""Which container grows, and the path from something with a name to it."""

from __future__ import annotations

import ctypes
import functools
import gc
import sysconfig
import weakref
from collections import deque
from collections.abc import Callable

import pytest

from pytest_rlstability.leaks.growers import Grower, census, growers, grown_since
from pytest_rlstability.leaks.lines import LineMeter, show_line
from pytest_rlstability.leaks.paths import is_referred_to, path_to
from pytest_rlstability.leaks.survivors import is_own

KEPT: list[object] = []


class Trainer:
    seen: list[object] = []

    def __init__(self) -> None:
        self.events: list[object] = []
        self.table: dict[str, list[object]] = {"rewards": []}


def grow(lap: Callable[[int], object], laps: int = 30) -> list[Grower]:
    before = census()
    for number in range(laps):
        lap(number)
    grown = grown_since(before)
    for number in range(laps, 2 * laps):
        lap(number)
    return growers(grown, laps)


def test_a_growing_list_is_found_with_its_rate() -> None:
    found = grow(lambda number: KEPT.append(str(number)))
    assert found[0].container is KEPT
    assert found[0].per_lap == 1


def test_a_dict_of_plain_values_is_found_though_the_collector_does_not_track_it() -> None:
    trainer = Trainer()
    cache: dict[int, float] = {}
    trainer.cache = cache  # type: ignore[attr-defined]
    found = grow(lambda number: cache.__setitem__(number, 0.5))
    assert any(grower.container is cache for grower in found)


def test_plain_bytes_and_values_in_a_local_variable_are_found() -> None:
    log, seen = bytearray(), {0: 0.5}
    before, grown = census(), []
    for number in range(60):
        if number == 30:
            grown = grown_since(before)
        log += b"step"
        seen[number] = 0.5
    found = [grower.container for grower in growers(grown, 30)]
    # a comprehension that named them would make them a closure's, which the collector lists
    kinds = [type(container) for container in found if len(container) in (60, 240)]  # type: ignore[arg-type]
    assert sorted(kind.__name__ for kind in kinds) == ["bytearray", "dict"]
    assert (len(log), len(seen)) == (240, 60)


def test_what_grew_once_is_not_a_grower() -> None:
    trainer = Trainer()
    found = grow(lambda number: trainer.events.append(number) if number == 3 else None)
    assert not any(grower.container is trainer.events for grower in found)


def test_a_deque_and_a_cache_know_their_room() -> None:
    frames: deque[object] = deque(maxlen=100)

    @functools.lru_cache(maxsize=500)
    def value(state: int) -> list[int]:
        return [state]

    def lap(number: int) -> None:
        frames.append([number])
        value(number)

    rooms = {grower.kind: grower.room() for grower in grow(lap) if grower.length == 60}
    assert rooms == {"deque": 40, "dict": 440}


def test_a_list_has_no_limit() -> None:
    assert Grower([1], 1, 1, 1).room() is None


@pytest.fixture(autouse=True)
def collected() -> None:
    gc.unfreeze()
    gc.collect()


def test_a_module_is_a_root() -> None:
    assert path_to(KEPT) == f"{__name__}.KEPT"


def test_a_class_is_a_root() -> None:
    assert "Trainer" in path_to(Trainer.seen)
    assert "seen" in path_to(Trainer.seen)


def test_a_local_variable_is_a_root() -> None:
    trainer = Trainer()
    path = path_to(trainer.events)
    assert "local variable 'trainer' of test_a_local_variable_is_a_root" in path
    assert path.endswith(".events")


def test_a_step_through_a_dict_names_the_key() -> None:
    trainer = Trainer()
    assert path_to(trainer.table["rewards"]).endswith(".table['rewards']")


def test_a_closure_names_its_variable() -> None:
    def make() -> Callable[[], None]:
        hidden: list[object] = []
        return lambda: hidden.append(1)

    lap = make()
    assert path_to(lap.__closure__[0].cell_contents).startswith("closure variable 'hidden' of ")  # type: ignore[index]


def test_what_only_native_code_holds_has_no_path() -> None:
    increase, decrease = ctypes.pythonapi.Py_IncRef, ctypes.pythonapi.Py_DecRef
    increase.argtypes = decrease.argtypes = [ctypes.py_object]
    lost = [0.0]
    increase(lost)
    address = id(lost)
    del lost
    try:
        assert path_to(ctypes.cast(address, ctypes.py_object).value) == ""
    finally:
        decrease(ctypes.cast(address, ctypes.py_object).value)


class Sulking:
    """As PyBoy's sound is when it is switched off: whatever one asks of it, it raises."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("Sound is not enabled!")


def test_objects_that_raise_at_every_question_are_held_like_others() -> None:
    sulking, dead = Sulking(), weakref.proxy(Trainer())
    KEPT[:] = [{"sound": sulking}, [dead]]
    ours = [is_own(sulking), is_own(dead)]
    KEPT[:] = [{"sound": [sulking]}, [[dead]]]
    paths = [path_to(KEPT[0]["sound"]), path_to(KEPT[1][0])]  # type: ignore[index]
    KEPT.clear()
    assert ours == [False, False]
    assert paths == ["test_leak_holders.KEPT[...]['sound']", "test_leak_holders.KEPT[...][...]"]


def test_whether_anything_refers_to_it() -> None:
    held, lost = Trainer(), [Trainer()]
    KEPT[:] = [held]
    found = is_referred_to(held), is_referred_to(lost[0], hidden=[lost])
    KEPT.clear()
    assert found == (True, False)


def test_what_a_library_does_after_it_has_called_back_is_the_callers_doing() -> None:
    code = compile(
        "def make(call, kept):\n    call()\n    kept.append(1)\n", f"{sysconfig.get_path('stdlib')}/x.py", "exec"
    )
    library: dict[str, Callable[..., None]] = {}
    exec(code, library)
    kept: list[int] = []
    with LineMeter(lambda: float(len(kept))) as meter:
        for _ in range(8):
            library["make"](lambda: None, kept)
    best = meter.best(1.0, 8)
    assert best is not None
    assert 'library["make"]' in show_line(*best)
