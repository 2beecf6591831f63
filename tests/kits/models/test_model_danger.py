"""Calls that a pickle makes while it is loaded: those that build a model pass, those that do anything else do not."""

from __future__ import annotations

import abc
import argparse
import collections
import dataclasses
import datetime
import enum
import functools
import itertools
import logging
import math
import operator
import os
import pickle
import pydoc
import random
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, Optional, TypeVar

import pytest

from pytest_rlstability.kits.models.archive import RefusedError
from pytest_rlstability.kits.models.judge import Trust, judge
from pytest_rlstability.kits.models.pickles import TORCH_MAGIC, Call, Name, read_pickle

cloudpickle = pytest.importorskip("cloudpickle")


class Reduces:
    """Pickles as whatever *reduced* says."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.fixture(autouse=True)
def _as_in_a_script() -> Any:
    """What this file defines is pickled by value, as a training script's own functions and classes are."""
    import sys

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def judge_value(value: Any, protocol: int = 5) -> tuple[str, ...]:
    return judge(read_pickle(cloudpickle.dumps(value, protocol)), "value")


def carried(*arguments: Any) -> Any:
    return arguments


T = TypeVar("T")


class Runs:
    def __init__(self, *_: Any) -> None:
        raise AssertionError("nothing may be run")

    def __call__(self) -> None: ...


class SetsState:
    def __getstate__(self) -> Any:
        return {"a": 1}

    def __setstate__(self, state: Any) -> None: ...


class Inherits(SetsState):
    pass


class MakesItself:
    def __new__(cls, *_: Any) -> Any:
        return super().__new__(cls)


class Stores(dict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)


class Iterates:
    def __iter__(self) -> Any:
        return iter([])


class Borrows:
    """Its state would be set by a function of the standard library."""

    __setstate__ = threading.settrace

    def __getstate__(self) -> Any:
        return {"a": 1}


CALLED: dict[str, tuple[Any, str]] = {
    "pager": (Reduces(pydoc.pipepager, ("text", "true")), r"(pydoc\.pipepager|_pyrepl\.pager)"),
    "thread": (Reduces(threading.Thread, (None, carried)), r"threading\.Thread"),
    "substitution": (Reduces(re.sub, ("a", carried, "a")), r"re\.sub"),
    "reduce": (Reduces(functools.reduce, (carried, [1, 2])), r"_?functools\.reduce"),
    "map": (Reduces(list, (Reduces(map, (carried, [1])),)), r"builtins\.map"),
    "filter": (Reduces(filter, (carried, [1])), r"builtins\.filter"),
    "starmap": (Reduces(itertools.starmap, (carried, [(1,)])), r"itertools\.starmap"),
    "accumulate": (Reduces(itertools.accumulate, ([1, 2], carried)), r"itertools\.accumulate"),
    "method by name": (Reduces(operator.methodcaller, ("x",)), r"operator\.methodcaller"),
    "item": (Reduces(operator.itemgetter, (1,)), r"operator\.itemgetter"),
    "default item": (Reduces(operator.getitem, (collections.defaultdict(carried), 1)), r"collections\.defaultdict"),
    "sorted": (Reduces(sorted, ([2, 1],)), r"builtins\.sorted"),
    "calling iterator": (Reduces(iter, (carried, 1)), r"builtins\.iter"),
    "made class": (Reduces(type, ("Made", (), {})), r"builtins\.type"),
    "finalizer": (Reduces(weakref.finalize, (Iterates, carried)), r"weakref\.finalize"),
    "harmless but called": (Reduces(os.getcwd, ()), r"os\.getcwd"),
    "carried function": (Reduces(carried, (1,)), "call a function it carries"),
    "partial": (Reduces(functools.partial(carried, 1), ()), "call what functools.partial gave"),
    "bound method": (Reduces(types.MethodType(carried, 1), ()), "call what .* gave"),
    "instance": (Reduces(object.__new__(Runs), ()), "call what .* gave"),
    "__init__": (Reduces(Runs, ()), "call __init__ of a class it carries"),
    "__setstate__": (SetsState(), "call __setstate__ of a class it carries"),
    "__setstate__ of a base": (Inherits(), "call __setstate__ of a class it carries"),
    "borrowed __setstate__": (Borrows(), "call __setstate__ of a class it carries"),
    "__new__": (MakesItself(), "call __new__ of a class it carries"),
    "__setitem__": (Stores(a=1), "call __setitem__ of a class it carries"),
    "__iter__": (Reduces(list, (Iterates(),)), "call __iter__ of a class it carries"),
    "metaclass": (Reduces(cloudpickle.cloudpickle._make_skeleton_class, (carried, "X", (), {}, "1", None)),
                  "_make_skeleton_class"),
    "changed module": (Reduces(cloudpickle.cloudpickle.subimport, ("json",), {"loads": carried}),
                       "subimport"),
    "changed method": (Reduces(getattr, (argparse.Namespace, "__init__"), (None, {"__code__": 1})),
                       r"builtins\.getattr"),
    "changed class": (Reduces(cloudpickle.cloudpickle._class_setstate, (collections.OrderedDict, ({}, {}))),
                      "_class_setstate"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLED)
@pytest.mark.parametrize("protocol", [2, 5])
def test_calls_that_build_nothing_are_refused_by_name(name: str, protocol: int) -> None:
    value, reason = CALLED[name]
    with pytest.raises(RefusedError, match=f"value would .*{reason}"):
        judge_value(value, protocol)


def _text(value: bytes) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (b"cpipes\nquote\n(tR.", "pipes.quote"),
        (b"cgymnasium.envs.registration\nload_env_creator\n(" + _text(b"os:system") + b"tR.", "load_env_creator"),
        (b"cstable_baselines3.common.save_util\nload_from_pkl\n(" + _text(b"x") + b"tR.", "load_from_pkl"),
        (b"cstable_baselines3.common.vec_env.dummy_vec_env\nDummyVecEnv\n(]tR.", "DummyVecEnv"),
        (b"cstable_baselines3.common.vec_env.base_vec_env\nCloudpickleWrapper\n)\x81.", "CloudpickleWrapper"),
        (b"cnumpy\napply_along_axis\n(tR.", "numpy.apply_along_axis"),
        (b"ctorch.utils._pytree\ntree_map\n(tR.", "tree_map"),
        (b"ctorch.fx.graph_module\nreduce_graph_module\n(tR.", "reduce_graph_module"),
        (b"ctorch._tensor\n_rebuild_from_type_v2\n(cglob\nglob\nctorch\nTensor\n)}tR.", "_rebuild_from_type_v2"),
        (b"ccopyreg\n_reconstructor\n(clogging\nFileHandler\nclogging\nFileHandler\n" + _text(b"x") + b"tR.",
         "copyreg._reconstructor"),
        (b"cmine\nutils.pydoc.locate\n.", "mine.utils.pydoc.locate"),
        (b"ccloudpickle.cloudpickle\nsubimport\n(" + _text(b"antigravity") + b"tR.", "subimport"),
        (b"cvenv.__main__\nx\n.", "venv.__main__"),
        (b"csympy.core.sympify\nsympify\n(" + _text(b"1") + b"tR.", "sympify"),
        (b"cthreading\nThread\n)\x81.", "threading.Thread"),
        (b"(cthreading\nThread\no.", "threading.Thread"),
        (b"(ithreading\nThread\n.", "threading.Thread"),
        (b"cmine\nfind\n(" + _text(b"x") + b"tR(" + _text(b"y") + b"tR.", "mine.find"),
    ],
)  # fmt: skip
def test_libraries_are_not_made_to_run_things(call: bytes, name: str) -> None:
    with pytest.raises(RefusedError, match=f"value (would|names) .*{name}"):
        judge(read_pickle(b"\x80\x04" + call), "value")


def _tensor(inner: bytes, protocol: int) -> bytes:
    """A tensor's storage outside a torch file: a torch file of its own, in bytes."""
    data = b"".join(pickle.dumps(one, 2) for one in (TORCH_MAGIC, 1001, {})) + inner + pickle.dumps(["0"]) + b"cweights"
    argument = pickle.dumps(data, protocol)[2:-1]
    return b"\x80\x02ctorch.storage\n_load_from_bytes\n(" + argument + b"tR."


@pytest.mark.parametrize("protocol", [2, 3])
def test_pickle_inside_a_tensor_is_judged(protocol: int) -> None:
    judge(read_pickle(_tensor(pickle.dumps([1.5]), protocol)), "value")
    with pytest.raises(RefusedError, match=r"a tensor in value: it would run os\.system"):
        judge(read_pickle(_tensor(pickle.dumps(Reduces(os.system, ("true",))), protocol)), "value")
    nested = _tensor(_tensor(pickle.dumps([1.5]), protocol), protocol)
    with pytest.raises(RefusedError, match="pickles inside pickles"):
        judge(read_pickle(nested), "value")


def schedule(progress: float, by: Callable[[float], float] = math.cos) -> float:
    return by(progress) * len(os.getcwd())


@dataclasses.dataclass
class Decay:
    start: float = 1.0
    steps: list[int] = dataclasses.field(default_factory=list)

    @property
    def end(self) -> float:
        return self.start / 2

    @classmethod
    def half(cls) -> Decay:
        return cls(0.5)

    @staticmethod
    def none() -> None: ...

    def __call__(self, progress: float) -> float:
        return self.start * progress


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int = 1


class Unit(enum.Enum):
    STEP = "step"


class Flags(enum.Flag):
    A = 1
    B = 2


class Abstract(abc.ABC, Generic[T]):
    @abc.abstractmethod
    def learn(self) -> T: ...


class Pair(NamedTuple):
    a: int
    b: float = 1.0


class Outer:
    class Inner:
        def __init__(self) -> None:
            self.x = 1


INNOCENT: dict[str, Any] = {
    "schedule": schedule,
    "forward reference": Optional["Later"],  # noqa: F821
    "annotations": [float | None, Callable[[float], float], list[int], Literal["a"], dict[str, T]],
    "partial": functools.partial(schedule, 0.5),
    "lambda": lambda progress: math.sin(progress),
    "dataclass": Decay(),
    "class method": Decay.half,
    "bound method": Decay().__call__,
    "abstract class": Abstract,
    "nested class": Outer.Inner(),
}  # fmt: skip
if sys.version_info >= (3, 15):
    INNOCENT["frozen dict"] = frozendict({"lr": 0.5})  # noqa: F821


@pytest.mark.parametrize("name", INNOCENT)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_what_people_put_into_models_is_let_through(name: str, protocol: int) -> None:
    judge_value(INNOCENT[name], protocol)


STRICTER: dict[str, tuple[Any, str]] = {
    "frozen dataclass with slots": (Frozen(), "of a class it carries"),
    "enum": (Unit.STEP, "_make_skeleton_enum"),
    "named tuple": (Pair(1), r"builtins\.getattr"),
    "random state": (random.Random(1), r"random\.Random"),
    "logger": (logging.getLogger("x"), r"logging\.getLogger"),
    "date": (datetime.timedelta(1), r"datetime\.timedelta"),
    "namespace": (types.SimpleNamespace(a=1), "call what .*_builtin_type gave|SimpleNamespace"),
    "name of a function": (math.cos, r"names math\.cos"),
    "name of a system call": (os.getcwd, r"names os\.getcwd"),
}


@pytest.mark.parametrize("name", STRICTER)
def test_what_saved_models_do_not_need_is_refused_by_name(name: str) -> None:
    value, reason = STRICTER[name]
    with pytest.raises(RefusedError, match=f"value .*({reason})"):
        judge_value(value)


OWN = [
    b"cmine.policies\nMakePolicy\n(K\x01tR.",
    b"cmine.policies\nmake_policy\n(K\x01tR.",
    b"ctest.policies\nPolicy\n)\x81}b.",
    b"c__main__\nClip\n)\x81}b.",
    b"cmine\nschedule\n.",
]


@pytest.mark.parametrize("call", OWN)
def test_own_modules_are_let_through_if_trusted(call: bytes) -> None:
    reading = read_pickle(b"\x80\x04" + call)
    judge(reading, "value", Trust(("mine", "test", "__main__")))
    with pytest.raises(RefusedError):
        judge(reading, "value", Trust(("mine.other", "mi")))


@pytest.mark.parametrize(
    "call", [b"cmine\nos.system\n(K\x01tR.", b"cmine\nOuter.Inner\n)\x81.", b"cmine\nmake\n)R)\x81."]
)
def test_trust_does_not_reach_through_a_module(call: bytes) -> None:
    with pytest.raises(RefusedError):
        judge(read_pickle(b"\x80\x04" + call), "value", Trust(("mine",)))


def test_trusted_source_is_read_for_what_it_defines_itself(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from os import system\nimport os\nclass Outer:\n    class Inner: ...\ndef make(): ...\n"
    (tmp_path / "my_own_agents.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for name, allowed in (("Outer", True), ("Outer.Inner", True), ("make", True), ("system", False), ("os", False),
                          ("os.system", False), ("Outer.__init__", False)):  # fmt: skip
        reading = read_pickle(f"\x80\x04cmy_own_agents\n{name}\n(tR.".encode("latin-1"))
        if allowed:
            judge(reading, "value", Trust(("my_own_agents",)))
        else:
            with pytest.raises(RefusedError, match=f"would run my_own_agents.{name}"):
                judge(reading, "value", Trust(("my_own_agents",)))


@pytest.mark.parametrize(
    "call",
    [
        b"cgymnasium.utils.seeding\nRandomNumberGenerator._generator_ctor\n(tR.",
        b"cstable_baselines3.common.type_aliases\nTrainFrequencyUnit\n(" + _text(b"step") + b"tR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR.",
        b"cnumpy.random\n__RandomState_ctor\n)R.",
        b"ctorch.optim.adam\nAdam\n.",
    ],
)
def test_what_libraries_need_is_let_through(call: bytes) -> None:
    assert judge(read_pickle(b"\x80\x04" + call), "value") == ()


@pytest.mark.parametrize(
    "call",
    [
        b"ctorch.optim.adam\nAdam\n)\x81}b.",
        b"ctorch.nn.modules.linear\nLinear\n)\x81}b.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nmemmap\nK\x00\x85C\x01btR.",
        b"cnumpy.random._pickle\n__bit_generator_ctor\n(cbuiltins\nlist\ntR.",
        b"ctorch._utils\n_rebuild_tensor_v2\n.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\n)}tR.",
        b"(" + _text(b"module") + b"cmine\nNet\n" + 2 * _text(b"source") + b"tQ)\x81}b.",
    ],
)
def test_what_libraries_have_but_models_do_not_need_is_refused(call: bytes) -> None:
    with pytest.raises(RefusedError):
        judge(read_pickle(b"\x80\x04" + call), "value")


def test_long_chains_are_judged_without_recursion() -> None:
    chain = 20_000 * b"cbuiltins\ngetattr\n(" + b"cmine\na\n" + 20_000 * (_text(b"b") + b"tR")
    with pytest.raises(RefusedError):
        judge(read_pickle(b"\x80\x04" + chain + b"(tR."), "value")


def test_a_class_is_told_from_its_new() -> None:
    made, called = (read_pickle(b"\x80\x04cmine\nPolicy\n)" + opcode + b".").value for opcode in (b"\x81", b"R"))
    assert isinstance(made, Call)
    assert (made.function, made.new, called.new) == (Name("mine", "Policy"), True, False)
