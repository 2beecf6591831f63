"""Functions and classes that a pickle carries by value, bytecode and all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_rlstability.kits.models.bytecode import Version, writers
from pytest_rlstability.kits.models.pickles import Call, Name, Reading, items, maker, pairs, walk

_FUNCTION_MAKERS = frozenset({"_make_function", "_make_skel_func", "_create_function"})
_CLASS_MAKERS = frozenset({"_make_skeleton_class", "_make_skeleton_enum", "_rehydrate_skeleton_class"})
_STATE_SETTERS = frozenset({"_function_setstate", "_class_setstate"})
_CODE_MAKERS = (Name("types", "CodeType"), Name("builtins", "code"), Name("new", "code"))
_FREE_VARIABLES = {16: 14, 18: 16}

States = Mapping[int, list[Any]]
"""What cloudpickle's own setters give to each function and class, by the identity of its stand-in."""


@dataclass(frozen=True)
class CodeObject:
    """One code object in a pickle: its name and which Pythons could have compiled it."""

    name: str
    argument_count: int
    writers: tuple[Version, ...]


@dataclass(frozen=True)
class Carried:
    """A function or class that a pickle holds by value; *cells* are the plain values in a closure, by variable."""

    kind: str  # lambda, closure, function, class or code
    name: str
    module: str
    codes: tuple[CodeObject, ...]
    cells: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def carried_by(reading: Reading) -> tuple[Carried, ...]:
    """Every function and class that *reading* holds by value, outermost first; methods are left to their class."""
    states = states_of(reading)
    classes = [call for call in reading.calls if is_class(call)]
    of_classes = {id(node) for call in classes for node in walk(call, states) if isinstance(node, Call)}
    found = []
    for call in reading.calls:
        if is_class(call):
            found.append(_class(call, states))
        elif is_function(call) and id(call) not in of_classes:
            found.append(_function(call, states))
    loose = [_code(call) for call in reading.calls if is_code(call)] if not found else []
    return (*found, *(Carried("code", code.name, "", (code,)) for code in loose))


def is_of_cloudpickle(name: Name) -> bool:
    return name.module in ("cloudpickle", "cloudpickle.cloudpickle", "cloudpickle.cloudpickle_fast")


def is_function(node: Any) -> bool:
    name = maker(node)
    if name is None:
        return False
    return (is_of_cloudpickle(name) and name.name in _FUNCTION_MAKERS) or name == Name("types", "FunctionType")


def is_class(node: Any) -> bool:
    name = maker(node)
    return name is not None and is_of_cloudpickle(name) and name.name in _CLASS_MAKERS


def is_code(node: Any) -> bool:
    """Whether *node* is a call of ``types.CodeType``, by any of the ways a pickle can name it."""
    return isinstance(node, Call) and (node.function in _CODE_MAKERS or unnamed_type(node.function) == "CodeType")


def unnamed_type(node: Any) -> str:
    """The type that *node* asks cloudpickle for because no module has a name for it, or ``""``."""
    name = maker(node)
    taken = items(node.arguments) if name is not None and name.name == "_builtin_type" else []
    return _text(taken[0]) if len(taken) == 1 else ""


def states_of(reading: Reading) -> States:
    states: dict[int, list[Any]] = {}
    for call in reading.calls:
        taken, name = items(call.arguments), maker(call)
        if len(taken) == 2 and name is not None and name.name in _STATE_SETTERS:
            states.setdefault(id(taken[0]), []).append(taken[1])
    return states


def attributes_of(call: Call, states: States) -> dict[str, Any]:
    """The attributes that cloudpickle would set on a function or class, whose state is ``(attributes, slots)``."""
    found: dict[str, Any] = {}
    for state in [*call.states, *states.get(id(call), [])]:
        for part in items(state):
            found.update((key, value) for key, value in pairs(part) if isinstance(key, str))
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _codes(call: Call, states: States) -> tuple[CodeObject, ...]:
    return tuple(_code(node) for node in walk(call, states) if is_code(node))


def _code(call: Call) -> CodeObject:
    arguments = items(call.arguments)
    count = len(arguments)
    body = arguments[6] if count > 6 and isinstance(arguments[6], bytes) else None
    name, qualified, *_ = [*map(_text, arguments[11:13]), "", ""]
    return CodeObject(qualified or name or "?", count, writers(count, body))


def _function(call: Call, states: States) -> Carried:
    attributes = attributes_of(call, states)
    own = next((node for node in items(call.arguments) if is_code(node)), None)
    name = _text(attributes.get("__qualname__")) or (_code(own).name if own is not None else "?")
    cells = _cells(own, attributes.get("__closure__"))
    kind = "closure" if cells or "<locals>" in name else "function"
    if name.endswith("<lambda>"):
        kind = "lambda"
    return Carried(kind, name, _text(attributes.get("__module__")), _codes(call, states), cells)


def _cells(code: Call | None, closure: Any) -> dict[str, object]:
    arguments = items(code.arguments) if code is not None else []
    position = _FREE_VARIABLES.get(len(arguments))
    names = items(arguments[position]) if position is not None else []
    values = [items(cell.arguments) for cell in items(closure) if isinstance(cell, Call)]
    return {
        str(name): value[0]
        for name, value in zip(names, values, strict=False)
        if value and isinstance(value[0], (str, int, float, bool, type(None)))
    }


def _class(call: Call, states: States) -> Carried:
    attributes = attributes_of(call, states)
    name = next((value for value in items(call.arguments) if isinstance(value, str)), "?")
    qualified = _text(attributes.get("__qualname__")) or name
    return Carried("class", qualified, _text(attributes.get("__module__")), _codes(call, states))
