"""Pickles read without being loaded: what they build, what they carry, what they would do."""

from __future__ import annotations

import collections
import io
import operator
import os
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.kits.models.archive import RefusedError
from pytest_rlstability.kits.models.carried import carried_by
from pytest_rlstability.kits.models.judge import judge
from pytest_rlstability.kits.models.pickles import (
    TORCH_MAGIC,
    Call,
    External,
    Group,
    Name,
    pairs,
    read_pickle,
    read_pickles,
    walk,
)

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Reduces:
    """Pickles as a call of *function* with *arguments*."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_of_every_protocol(protocol: int) -> None:
    value = {"a": [1, 2.5, True, None], "b": ("x", b"y", 2**70), "c": {1, 2}}
    read = pairs(read_pickle(pickle.dumps(value, protocol)).value)
    assert [key for key, _ in read] == ["a", "b", "c"]
    assert read[0][1].items == [1, 2.5, True, None]
    assert read[1][1].items[0] == "x"
    assert read[1][1].items[2] == 2**70


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_calls_and_names(protocol: int) -> None:
    reading = read_pickle(pickle.dumps(collections.OrderedDict(a=1), protocol))
    assert isinstance(reading.value, Call)
    assert reading.value.function == Name("collections", "OrderedDict")


def test_objects_outside_the_pickle() -> None:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return ("storage", "cuda:0") if value == "tensor" else None

    stream = io.BytesIO()
    Pickler(stream).dump(["tensor"])
    reading = read_pickle(stream.getvalue())
    assert [one.reference.items for one in reading.externals] == [["storage", "cuda:0"]]
    assert isinstance(reading.value.items[0], External)


@pytest.mark.parametrize("more", [pickle.dumps(2), b"\x00\x00weights", b"cos\nsystem\n(S'true'\ntR", b"."])
def test_bytes_behind_a_pickle_are_refused(more: bytes) -> None:
    with pytest.raises(RefusedError, match="other bytes behind it"):
        read_pickles(io.BytesIO(pickle.dumps(1) + more))


def test_weights_behind_an_old_torch_file_are_no_pickle() -> None:
    stream = io.BytesIO(b"".join(map(pickle.dumps, [TORCH_MAGIC, 1001, {}, [1.5], ["0"]])) + b"cos\nsystem\n\x85R\xff")
    assert len(read_pickles(stream)) == 5
    assert stream.read(4) == b"cos\n"


def test_deep_nesting_is_read_without_recursion() -> None:
    depth = 200_000
    reading = read_pickle(b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b".")
    assert sum(isinstance(node, Group) for node in walk(reading.value)) == depth


def test_a_value_that_holds_itself_is_walked_once() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert len(list(walk(read_pickle(pickle.dumps(loop)).value))) == 1


def test_memo_index_that_takes_gigabytes_is_refused() -> None:
    assert read_pickle(b"\x80\x04K\x01r\xff\xff\x00\x00.").value == 1
    with pytest.raises(RefusedError, match="remembers 2147483647 objects"):
        read_pickle(b"\x80\x04K\x01r\xff\xff\xff\x7f.")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a pickle at all",
        pickle.dumps([1, 2, 3])[:-3],
        b"\x80\x04.",
        b"\x80\x04a.",
        b"\x80\x04h\x05.",
        b"\x80\x04t.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x04\x82\x01.",
        b"\x80\x04K\x01K\x02\x93.",
        b"\x80\x04ctorch\nload\n}b.",
    ],
    ids=["empty", "text", "cut", "nothing", "append", "memo", "mark", "huge", "extension", "computed name", "changed"],
)
def test_malformed_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(RefusedError):
        read_pickle(data)


HOSTILE = {
    "os.system": Reduces(os.system, "true"),
    "builtins.eval": Reduces(eval, "1"),
    "builtins.exec": Reduces(exec, "pass"),
    "subprocess.Popen": Reduces(subprocess.Popen, "true"),
    "builtins.__import__": Reduces(__import__, "os"),
    "operator.attrgetter": Reduces(operator.attrgetter, "x"),
    "loads": Reduces(pickle.loads, b""),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_hostile_pickles_are_refused_by_name(name: str, protocol: int) -> None:
    reading = read_pickle(pickle.dumps([HOSTILE[name]], protocol))
    with pytest.raises(RefusedError, match=rf"weights would run \S*{name}"):
        judge(reading, "weights")


@pytest.mark.parametrize(
    "data",
    [
        b"cnumpy\nos.system\n(S'true'\ntR.",
        b"cstable_baselines3.common.save_util\nos\n.",
        b"cbuiltins\ngetattr\n(ccollections\nOrderedDict\nS'__globals__'\ntR.",
        b"cbuiltins\ngetattr\n(ccollections\nOrderedDict\nS'fromkeys'\ntR(S'x'\ntR.",
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x04cbuiltins\nprint.__self__.eval\n(S'1'\ntR.",
    ],
    ids=[
        "through another module",
        "module",
        "dunder",
        "called attribute",
        "python 2 name",
        "INST",
        "builtin's own module",
    ],
)
def test_roundabout_ways_are_refused(data: bytes) -> None:
    with pytest.raises(RefusedError):
        judge(read_pickle(data), "weights")


@pytest.mark.parametrize(
    "value",
    [
        {"mean": 1.5},
        [range(3), slice(1, 2), complex(1, 2), bytearray(b"x")],
        collections.deque([1], maxlen=5),
        "text".upper,
        Path("/tmp/x"),
    ],
    ids=["dict", "builtins", "deque", "bound method", "path"],
)
def test_innocent_pickles_are_let_through(value: Any) -> None:
    for protocol in PROTOCOLS[2:]:
        judge(read_pickle(pickle.dumps(value, protocol)), "value")


def test_reading_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    data = pickle.dumps(Reduces(os.system, f"touch {trace}"))
    read_pickle(data)
    assert not trace.exists()
    pickle.loads(data)
    assert trace.exists()  # so the pickle did have teeth


def _schedule(initial: float, minimum: float = 0.0) -> Any:
    def func(progress: float) -> float:
        return max(minimum, progress * initial)

    return func


def test_carried_code() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    (closure,) = carried_by(read_pickle(cloudpickle.dumps(_schedule(0.5, 0.25))))
    assert str(closure) == "closure _schedule.<locals>.func"
    assert closure.module == __name__
    assert closure.cells == {"initial": 0.5, "minimum": 0.25}
    assert sys.version_info[:2] in closure.codes[0].writers
    (anonymous,) = carried_by(read_pickle(cloudpickle.dumps(lambda progress: progress)))
    assert anonymous.kind == "lambda"


def test_carried_class_names_its_methods_once() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("class Decay:\n def __init__(self): self.x = 1\n def __call__(self, progress): return 1\n", namespace)
    (found,) = carried_by(read_pickle(cloudpickle.dumps(namespace["Decay"]())))
    assert str(found) == "class Decay"
    assert {code.name.rpartition(".")[2] for code in found.codes} == {"__init__", "__call__"}


def test_function_that_would_be_called_while_loading_is_refused() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    reading = read_pickle(cloudpickle.dumps(Reduces(_schedule(1.0), 0.5)))
    with pytest.raises(RefusedError, match="call a function it carries"):
        judge(reading, "value")


@pytest.mark.parametrize("value", [max, collections.OrderedDict, 3e-4, [1, "a"]], ids=str)
def test_values_by_reference_carry_nothing(value: Any) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    assert carried_by(read_pickle(cloudpickle.dumps(value))) == ()


_REFUSED = {"EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"}


def test_our_machine_knows_every_opcode() -> None:
    """Fails when a new pickle protocol adds an opcode that would be refused for want of knowing it."""
    from pytest_rlstability.kits.models import pickles

    tables = (pickles._PLAIN, pickles._BYTES, pickles._CONSTANTS, pickles._GROUPS, pickles._ADDED, pickles._ACTIONS)
    assert {code.name for code in pickletools.opcodes} == {*pickles._IGNORED, *_REFUSED}.union(*tables)
