"""What a pickle would build, read opcode by opcode; nothing is imported and nothing is called.

The unpickler's stack machine is followed with stand-ins: a global is a `Name`, a call is a `Call`.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, Any

from pytest_rlstability.compat.cpython import modern_name
from pytest_rlstability.kits.models.archive import Budget, RefusedError

_KEPT_BYTES = 2**20
_KEPT_HEAD = 2**16
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle of an old torch file; four more follow, and then raw weights."""
_MOST_REMEMBERED = 5_000_000
_LONGEST_NAME = 1000


@dataclass(frozen=True)
class Name:
    """A global the pickle refers to: ``Name("builtins", "float")``."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Group:
    """A tuple, list, set or dict (whose items are keys and values by turns)."""

    kind: str
    items: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Call:
    """A call the pickle would make, with the states that BUILD would set on the result, and the items added to it.

    With *new*, only ``function.__new__`` is called, as for most objects. *item_kind* is the kind of container that
    the opcodes take the result for: ``list``, ``dict`` or ``set``, and ``mixed`` if they do not agree.
    """

    function: Any
    arguments: Any
    states: list[Any] = field(default_factory=list)
    new: bool = False
    items: list[Any] = field(default_factory=list)
    item_kind: str = ""


@dataclass(eq=False)
class External:
    """An object kept outside the pickle, such as a tensor's storage."""

    reference: Any


@dataclass
class Reading:
    """One pickle, read: the value it would build, and every stand-in met on the way (in order, also if unused)."""

    value: Any = None
    names: list[Name] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    externals: list[External] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)


def read_pickle(data: bytes, budget: Budget | None = None) -> Reading:
    """Read the one pickle that *data* is; `RefusedError` when it is malformed or asks for the impossible."""
    (reading,) = read_pickles(BytesIO(data), budget)
    return reading


def read_pickles(stream: IO[bytes], budget: Budget | None = None) -> list[Reading]:
    """Read the one pickle that fills *stream*, or the five of an old torch file up to where its weights begin."""
    readings = [_read_one(stream, budget)]
    if readings[0].value == TORCH_MAGIC:
        return readings + [_read_one(stream, budget) for _ in range(4)]
    if stream.read(1):
        raise RefusedError("a pickle with other bytes behind it: readers disagree on them")
    return readings


def _read_one(stream: IO[bytes], budget: Budget | None) -> Reading:
    machine = _Machine(budget or Budget())
    machine.run(stream)
    return machine.reading


def items(group: Any) -> list[Any]:
    """The items of a tuple or list stand-in, or nothing."""
    return group.items if isinstance(group, Group) else []


def pairs(group: Any) -> list[tuple[Any, Any]]:
    """Keys and values of a dict stand-in, or nothing."""
    taken = group.items if isinstance(group, Group) and group.kind == "dict" else []
    return list(zip(taken[::2], taken[1::2], strict=False))


def maker(node: Any) -> Name | None:
    """The global that made *node*, if it is a call of one."""
    return node.function if isinstance(node, Call) and isinstance(node.function, Name) else None


def _below(node: Group | Call | External) -> list[Any]:
    """What a stand-in is directly made of, in reverse order."""
    match node:
        case Group():
            return node.items[::-1]
        case Call():
            return [*reversed(node.items), *reversed(node.states), node.arguments, node.function]
    return [node.reference]


def walk(value: Any, states: Mapping[int, list[Any]] | None = None) -> Iterator[Any]:
    """Every stand-in and constant below *value*, each shared one once, without recursion (pickles nest deeply).

    *states* are found below the stand-in whose identity they have too.
    """
    waiting, seen = [value], set[int]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, (Group, Call, External)):
            if id(node) in seen:
                continue
            seen.add(id(node))
            waiting += [*(states or {}).get(id(node), []), *_below(node)]
        yield node


_MARK = object()


class _Machine:
    """The unpickler's stack and memo, with stand-ins for everything it would import, call or build."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.protocol = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.reading = Reading()

    def run(self, stream: IO[bytes]) -> None:
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                self.budget.take_opcode()
                self.step(opcode.name, argument)
            self.reading.value = self.stack.pop()
        # genops and the stack raise whatever the bytes lead them to; every one means the same thing here.
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, EOFError) as error:
            raise RefusedError(f"not a whole pickle: {error or type(error).__name__}") from error
        except MemoryError as error:
            raise RefusedError("a pickle that claims more bytes than there is memory is not read") from error

    def step(self, name: str, argument: Any) -> None:
        if name in _PLAIN:
            self.stack.append(argument)
        elif name in _BYTES:
            # Array contents do not matter here, and a replay buffer has gigabytes of them.
            self.stack.append(bytes(argument if len(argument) <= _KEPT_BYTES else argument[:_KEPT_HEAD]))
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _GROUPS:
            self.push_group(*_GROUPS[name])
        elif name in _ADDED:
            self.add_items(_ADDED[name], self.take_to_mark())
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        elif name not in _IGNORED:
            raise RefusedError(f"pickle opcode {name} is not used by any saved model")

    def take(self, count: int) -> list[Any]:
        first = len(self.stack) - count
        if first < 0:
            raise IndexError("stack underflow")
        taken = self.stack[first:]
        del self.stack[first:]
        return taken

    def take_to_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                return self.take(len(self.stack) - index)[1:]
        raise IndexError("no mark on the stack")

    def push_name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise RefusedError("a pickle that computes the name of what it imports is not read further")
        if len(module) + len(name) > _LONGEST_NAME:
            raise RefusedError(f"a pickle that imports {f'{module}.{name}'[:80]!r}..., which is not a name")
        if not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
            raise RefusedError(f"a pickle that imports {f'{module}.{name}'!r}, which is not a name")
        if self.protocol < 3:  # written for Python 2: the unpickler translates the names it used
            module, name = modern_name(module, name)
        self.reading.names.append(Name(module, name))
        self.stack.append(self.reading.names[-1])

    def push_call(self, function: Any, arguments: Any, *, new: bool = False) -> None:
        taken = items(arguments)
        if function == _ENCODE and len(taken) == 2 and isinstance(taken[0], str) and taken[1] == "latin1":
            self.budget.take_unpacked(len(taken[0]))  # the text can be remembered, and encoded again and again
            self.stack.append(taken[0].encode("latin-1"))  # as protocols before 3 write bytes
        elif function == _NO_BYTES and not taken:
            self.stack.append(b"")
        else:
            self.reading.calls.append(Call(function, arguments, new=new))
            self.stack.append(self.reading.calls[-1])

    def push_group(self, kind: str, count: int | None) -> None:
        self.reading.groups.append(Group(kind, self.take_to_mark() if count is None else self.take(count)))
        self.stack.append(self.reading.groups[-1])

    def push_external(self, reference: Any) -> None:
        self.reading.externals.append(External(reference))
        self.stack.append(self.reading.externals[-1])

    def add_items(self, kind: str, taken: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Call):
            target.item_kind = kind if target.item_kind in ("", kind) else "mixed"
        elif not isinstance(target, Group) or target.kind != kind:
            raise TypeError(f"items for something that is not a {kind}")
        target.items += taken

    def build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Name):
            raise RefusedError(f"a pickle that would change {self.stack[-1]}, which it only imports", "code found")
        if not isinstance(self.stack[-1], Call):
            raise TypeError("a state for something that has none")
        self.stack[-1].states.append(state)

    def call_with_keywords(self) -> None:
        self.push_group("tuple", 2)  # arguments and keywords: no row of the table has that shape
        self.push_call(*self.take(2), new=True)

    def call_to_mark(self, name: str | None) -> None:
        """OBJ, where the function is the first above the mark, and INST, where its name is the opcode's argument."""
        taken = self.take_to_mark()
        if name is not None:
            self.push_name(*name.split(" ", 1))
            taken.insert(0, self.stack.pop())
        function, *arguments = taken
        self.stack += [function, _MARK, *arguments]
        self.push_group("tuple", None)
        self.push_call(*self.take(2))

    def remember(self, index: Any) -> None:
        if self.stack[-1] is _MARK:
            raise IndexError("a mark to be remembered")
        place = len(self.memo) if index is None else int(index)
        if place > _MOST_REMEMBERED:  # the unpickler makes room for every place below it
            raise RefusedError(f"a pickle that remembers {place} objects is not read")
        self.memo[place] = self.stack[-1]


_ENCODE, _NO_BYTES = Name("_codecs", "encode"), Name("builtins", "bytes")
_IGNORED = frozenset({"FRAME", "STOP"})
_PLAIN = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
})  # fmt: skip
_BYTES = frozenset({"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"})
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}
# What a group is made of: so many from the top of the stack, or all above the mark.
_GROUPS: dict[str, tuple[str, int | None]] = {
    "EMPTY_TUPLE": ("tuple", 0), "TUPLE1": ("tuple", 1), "TUPLE2": ("tuple", 2), "TUPLE3": ("tuple", 3),
    "EMPTY_LIST": ("list", 0), "EMPTY_DICT": ("dict", 0), "EMPTY_SET": ("set", 0),
    "TUPLE": ("tuple", None), "LIST": ("list", None), "DICT": ("dict", None), "FROZENSET": ("set", None),
}  # fmt: skip
_ADDED = {"APPENDS": "list", "ADDITEMS": "set", "SETITEMS": "dict"}
_ACTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    "PROTO": lambda machine, argument: setattr(machine, "protocol", argument),
    "POP": lambda machine, _: machine.take(1),
    "POP_MARK": lambda machine, _: machine.take_to_mark(),
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "GLOBAL": lambda machine, argument: machine.push_name(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.push_name(*machine.take(2)),
    "REDUCE": lambda machine, _: machine.push_call(*machine.take(2)),
    "NEWOBJ": lambda machine, _: machine.push_call(*machine.take(2), new=True),
    "NEWOBJ_EX": lambda machine, _: machine.call_with_keywords(),
    **dict.fromkeys(("OBJ", "INST"), _Machine.call_to_mark),
    "BUILD": lambda machine, _: machine.build(),
    "PERSID": _Machine.push_external,
    "BINPERSID": lambda machine, _: machine.push_external(*machine.take(1)),
    "APPEND": lambda machine, _: machine.add_items("list", machine.take(1)),
    "SETITEM": lambda machine, _: machine.add_items("dict", machine.take(2)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.remember),
    **dict.fromkeys(
        ("GET", "BINGET", "LONG_BINGET"), lambda machine, index: machine.stack.append(machine.memo[int(index)])
    ),
}
