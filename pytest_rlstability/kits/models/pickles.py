"""What a pickle would build, read opcode by opcode; nothing is imported and nothing is called.

The unpickler's stack machine is followed with stand-ins: a global is a `Name`, a call is a `Call`. The result is a
tree that shows every function and class the pickle refers to, every call it would make, and the code it carries.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, Any

from pytest_rlstability.compat.cpython import modern_name
from pytest_rlstability.kits.models.archive import Budget, RefusedError

_MAX_PICKLES = 16
_KEPT_BYTES = 2**20
_KEPT_HEAD = 2**16
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle of an old torch file; four more follow, and then raw weights."""
_TORCH_PICKLES = 5


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


@dataclass(frozen=True)
class Reading:
    """One pickle, read: the value it would build, and every stand-in met on the way (in order, also if unused)."""

    value: Any
    names: tuple[Name, ...]
    calls: tuple[Call, ...]
    externals: tuple[External, ...]
    groups: tuple[Group, ...]


def read_pickle(data: bytes, budget: Budget | None = None) -> Reading:
    """Read the first pickle in *data*; `RefusedError` when it is malformed or asks for the impossible."""
    return next(read_pickles(BytesIO(data), budget))


def read_pickles(stream: IO[bytes], budget: Budget | None = None) -> Iterator[Reading]:
    """Read the pickles that stand one after another in *stream*, up to its end, a zero byte or torch's raw weights.

    One that breaks off is given as far as it goes, because a loader would run it as far, and then refused.
    """
    most = _MAX_PICKLES
    for index in range(_MAX_PICKLES + 1):
        if index and stream.read(1) in (b"", b"\x00"):
            return
        if index:
            stream.seek(-1, 1)
        if index == most:
            raise RefusedError(f"more than {most} pickles in one file are not read")
        machine = _Machine(budget or Budget())
        try:
            reading = machine.run(stream)
        except RefusedError as error:
            if not index:
                raise
            yield machine.reading(None)
            raise RefusedError(f"what follows pickle {index} is {error}") from error
        yield reading
        if not index and reading.value == TORCH_MAGIC:
            most = _TORCH_PICKLES
        if index + 1 == most == _TORCH_PICKLES:
            return


def items(group: Any) -> list[Any]:
    """The items of a tuple or list stand-in, or nothing."""
    return group.items if isinstance(group, Group) else []


def pairs(group: Any) -> list[tuple[Any, Any]]:
    """Keys and values of a dict stand-in, or nothing."""
    if not isinstance(group, Group) or group.kind != "dict":
        return []
    return list(zip(group.items[::2], group.items[1::2], strict=False))


def below(node: Any) -> list[Any]:
    """What a stand-in is directly made of, in reverse order; nothing for a constant or a name."""
    match node:
        case Group():
            return node.items[::-1]
        case Call():
            return [*reversed(node.items), *reversed(node.states), node.arguments, node.function]
        case External():
            return [node.reference]
    return []


def walk(value: Any) -> Iterator[Any]:
    """Every stand-in and constant below *value*, each shared one once, without recursion (pickles nest deeply)."""
    waiting, seen = [value], set[int]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, (Group, Call, External)):
            if id(node) in seen:
                continue
            seen.add(id(node))
            waiting += below(node)
        yield node


_MARK = object()


class _Machine:
    """The unpickler's stack and memo, with stand-ins for everything it would import, call or build."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.protocol = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.names: list[Name] = []
        self.calls: list[Call] = []
        self.externals: list[External] = []
        self.groups: list[Group] = []

    def run(self, stream: IO[bytes]) -> Reading:
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                self.budget.take_opcode()
                self.step(opcode.name, argument)
            value = self.stack.pop()
        except RefusedError:
            raise
        # genops and the stack raise whatever the bytes lead them to; every one means the same thing here.
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, EOFError) as error:
            raise RefusedError(f"not a whole pickle: {error or type(error).__name__}") from error
        except MemoryError as error:
            raise RefusedError("a pickle that claims more bytes than there is memory is not read") from error
        return self.reading(value)

    def reading(self, value: Any) -> Reading:
        return Reading(value, tuple(self.names), tuple(self.calls), tuple(self.externals), tuple(self.groups))

    def step(self, name: str, argument: Any) -> None:
        if name in _IGNORED:
            return
        action = _ACTIONS.get(name)
        if action is not None:
            action(self, argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name.startswith(("INT", "BININT", "LONG", "FLOAT", "BINFLOAT")) or "STRING" in name or "UNICODE" in name:
            self.stack.append(argument)
        elif "BYTES" in name or name == "BYTEARRAY8":
            # Array contents do not matter here, and a replay buffer has gigabytes of them.
            self.stack.append(bytes(argument if len(argument) <= _KEPT_BYTES else argument[:_KEPT_HEAD]))
        else:
            raise RefusedError(f"pickle opcode {name} is not used by any saved model")

    def pop_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                taken = self.stack[index + 1 :]
                del self.stack[index:]
                return taken
        raise IndexError("no mark on the stack")

    def push_name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise RefusedError("a pickle that computes the name of what it imports is not read further")
        if not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
            raise RefusedError(f"a pickle that imports {f'{module}.{name}'!r}, which is not a name")
        if self.protocol < 3:  # written for Python 2: the unpickler translates the names it used
            module, name = modern_name(module, name)
        found = Name(module, name)
        self.names.append(found)
        self.stack.append(found)

    def push_call(self, function: Any, arguments: Any, new: bool = False) -> None:
        taken = items(arguments)
        if function == _ENCODE and len(taken) == 2 and isinstance(taken[0], str) and taken[1] == "latin1":
            self.stack.append(taken[0].encode("latin-1"))  # as protocols before 3 write bytes
        elif function == _NO_BYTES and not taken:
            self.stack.append(b"")
        else:
            self.calls.append(Call(function, arguments, new=new))
            self.stack.append(self.calls[-1])

    def group(self, kind: str, count: int | None = None) -> None:
        taken = self.pop_mark() if count is None else self.stack[len(self.stack) - count :]
        if count:
            if len(taken) < count:
                raise IndexError("stack underflow")
            del self.stack[-count:]
        self.groups.append(Group(kind, taken))
        self.stack.append(self.groups[-1])

    def extend(self, kind: str, taken: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Call):
            target.item_kind = kind if target.item_kind in ("", kind) else "mixed"
        elif not isinstance(target, Group) or target.kind != kind:
            raise TypeError(f"items for something that is not a {kind}")
        target.items += taken

    def extend_marked(self, kind: str) -> None:
        taken = self.pop_mark()
        self.extend(kind, taken)

    def build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Name):
            raise RefusedError(f"a pickle that would change {self.stack[-1]}, which it only imports", "code found")
        if not isinstance(self.stack[-1], Call):
            raise TypeError("a state for something that has none")
        self.stack[-1].states.append(state)

    def reduce(self, new: bool = False) -> None:
        arguments = self.stack.pop()
        self.push_call(self.stack.pop(), arguments, new)

    def reduce_with_keywords(self) -> None:
        self.group("tuple", 2)  # arguments and keywords: no row of the table has that shape
        self.reduce(new=True)

    def object_from_mark(self) -> None:
        function, *arguments = self.pop_mark()
        self.stack += [function, _MARK, *arguments]
        self.group("tuple")
        self.reduce()

    def instance(self, argument: str) -> None:
        self.group("tuple")
        arguments = self.stack.pop()
        self.push_name(*argument.split(" ", 1))
        self.push_call(self.stack.pop(), arguments)

    def stack_global(self) -> None:
        name = self.stack.pop()
        self.push_name(self.stack.pop(), name)

    def external(self, reference: Any) -> None:
        found = External(reference)
        self.externals.append(found)
        self.stack.append(found)

    def remember(self, index: Any) -> None:
        if self.stack[-1] is _MARK:
            raise IndexError("a mark to be remembered")
        self.memo[len(self.memo) if index is None else int(index)] = self.stack[-1]


_ENCODE, _NO_BYTES = Name("_codecs", "encode"), Name("builtins", "bytes")
_IGNORED = {"FRAME", "STOP"}
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, argument: setattr(machine, "protocol", argument),
    "POP": lambda machine, _: _ignore(machine.stack.pop()),
    "POP_MARK": lambda machine, _: _ignore(machine.pop_mark()),
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "GLOBAL": lambda machine, argument: machine.push_name(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.stack_global(),
    "REDUCE": lambda machine, _: machine.reduce(),
    "NEWOBJ": lambda machine, _: machine.reduce(new=True),
    "NEWOBJ_EX": lambda machine, _: machine.reduce_with_keywords(),
    "OBJ": lambda machine, _: machine.object_from_mark(),
    "INST": lambda machine, argument: machine.instance(argument),
    "BUILD": lambda machine, _: machine.build(),
    "PERSID": lambda machine, argument: machine.external(argument),
    "BINPERSID": lambda machine, _: machine.external(machine.stack.pop()),
    "EMPTY_TUPLE": lambda machine, _: machine.group("tuple", 0),
    "TUPLE1": lambda machine, _: machine.group("tuple", 1),
    "TUPLE2": lambda machine, _: machine.group("tuple", 2),
    "TUPLE3": lambda machine, _: machine.group("tuple", 3),
    "TUPLE": lambda machine, _: machine.group("tuple"),
    "EMPTY_LIST": lambda machine, _: machine.group("list", 0),
    "LIST": lambda machine, _: machine.group("list"),
    "EMPTY_DICT": lambda machine, _: machine.group("dict", 0),
    "DICT": lambda machine, _: machine.group("dict"),
    "EMPTY_SET": lambda machine, _: machine.group("set", 0),
    "FROZENSET": lambda machine, _: machine.group("set"),
    "APPEND": lambda machine, _: machine.extend("list", [machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend_marked("list"),
    "ADDITEMS": lambda machine, _: machine.extend_marked("set"),
    "SETITEM": lambda machine, _: machine.extend("dict", [machine.stack.pop(), machine.stack.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.extend_marked("dict"),
    "PUT": lambda machine, argument: machine.remember(argument),
    "BINPUT": lambda machine, argument: machine.remember(argument),
    "LONG_BINPUT": lambda machine, argument: machine.remember(argument),
    "MEMOIZE": lambda machine, _: machine.remember(None),
    "GET": lambda machine, argument: machine.stack.append(machine.memo[int(argument)]),
    "BINGET": lambda machine, argument: machine.stack.append(machine.memo[argument]),
    "LONG_BINGET": lambda machine, argument: machine.stack.append(machine.memo[argument]),
}


def _ignore(_: object) -> None:
    """What the pickle throws away is nothing to us; the calls that made it were noted when they were made."""
