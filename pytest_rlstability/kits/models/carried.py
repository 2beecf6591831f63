"""Functions and classes that a pickle carries by value, bytecode and all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_rlstability.kits.models.bytecode import Version, writers
from pytest_rlstability.kits.models.pickles import Call, External, Group, Name, Reading, below, items, pairs

_FUNCTION_MAKERS = frozenset({"_make_function", "_make_skel_func", "_create_function"})
_CLASS_MAKERS = frozenset({"_make_skeleton_class", "_make_skeleton_enum", "_rehydrate_skeleton_class"})
_STATE_SETTERS = frozenset({"_function_setstate", "_class_setstate"})
_FREE_VARIABLES = {16: 14, 18: 16}


@dataclass(frozen=True)
class CodeObject:
    """One code object in a pickle: who it is and which Pythons could have compiled it."""

    name: str
    filename: str
    argument_count: int
    writers: tuple[Version, ...]


@dataclass(frozen=True)
class Carried:
    """A function or class that a pickle holds by value.

    *kind* is ``lambda``, ``closure``, ``function`` or ``class``; *cells* are the plain values a closure holds, by
    the name of the variable, as far as they can be read; *codes* is every code object inside.
    """

    kind: str
    name: str
    module: str
    codes: tuple[CodeObject, ...]
    cells: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def carried_by(reading: Reading) -> tuple[Carried, ...]:
    """Every function and class that *reading* holds by value, outermost first; methods are left to their class."""
    states = states_of(reading)
    classes = [call for call in reading.calls if is_carried_class(call)]
    of_classes = {id(node) for call in classes for node in inside(call, states) if isinstance(node, Call)}
    found = []
    for call in reading.calls:
        if is_carried_class(call):
            found.append(_class(call, states))
        elif is_carried_function(call) and id(call) not in of_classes:
            found.append(_function(call, states))
    if not found:
        loose = tuple(_code(call) for call in reading.calls if is_code(call))
        found = [Carried("code", code.name, "", (code,)) for code in loose]
    return tuple(found)


def is_carried_function(node: Any) -> bool:
    if not isinstance(node, Call) or not isinstance(node.function, Name):
        return False
    return (is_of_cloudpickle(node.function) and node.function.name in _FUNCTION_MAKERS) or (
        node.function == Name("types", "FunctionType")
    )


def is_carried_class(node: Any) -> bool:
    if not isinstance(node, Call) or not isinstance(node.function, Name):
        return False
    return is_of_cloudpickle(node.function) and node.function.name in _CLASS_MAKERS


def is_code(node: Any) -> bool:
    """Whether *node* is a call of ``types.CodeType``, by any of the ways a pickle can name it."""
    if not isinstance(node, Call):
        return False
    maker = node.function
    if isinstance(maker, Name):
        return maker in (Name("types", "CodeType"), Name("builtins", "code"), Name("new", "code"))
    return (
        isinstance(maker, Call)
        and isinstance(maker.function, Name)
        and maker.function.name == "_builtin_type"
        and items(maker.arguments) == ["CodeType"]
    )


def is_of_cloudpickle(name: Name) -> bool:
    return name.module in ("cloudpickle", "cloudpickle.cloudpickle", "cloudpickle.cloudpickle_fast")


def states_of(reading: Reading) -> dict[int, list[Any]]:
    """The state that cloudpickle's own setters give to each function and class, by the identity of its stand-in."""
    states: dict[int, list[Any]] = {}
    for call in reading.calls:
        taken = items(call.arguments)
        if len(taken) == 2 and isinstance(call.function, Name) and call.function.name in _STATE_SETTERS:
            states.setdefault(id(taken[0]), []).append(taken[1])
    return states


def inside(call: Call, states: Mapping[int, list[Any]]) -> Iterator[Any]:
    """Everything below *call*, through the states that the setters add to it and to what it holds."""
    waiting: list[Any] = [call]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, (Group, Call, External)):
            if id(node) in seen:
                continue
            seen.add(id(node))
            waiting += [*states.get(id(node), []), *below(node)]
        yield node


def _codes(call: Call, states: Mapping[int, list[Any]]) -> tuple[CodeObject, ...]:
    codes: dict[int, CodeObject] = {}
    for node in inside(call, states):
        if isinstance(node, Call) and is_code(node):
            codes[id(node)] = _code(node)
    return tuple(codes.values())


def _code(call: Call) -> CodeObject:
    arguments = items(call.arguments)
    count = len(arguments)
    body = arguments[6] if count > 6 and isinstance(arguments[6], bytes) else None
    texts = [value if isinstance(value, str) else "" for value in arguments[10:13]] + ["", "", ""]
    filename, name, qualified = texts[:3]
    return CodeObject(qualified or name or "?", filename, count, writers(count, body))


def attributes_of(call: Call, states: Mapping[int, list[Any]]) -> dict[str, Any]:
    """The attributes cloudpickle would set: of a function ``(state, slots)``, of a class ``(state, slots)`` too."""
    found: dict[str, Any] = {}
    for state in [*call.states, *states.get(id(call), [])]:
        for part in items(state):
            found.update((key, value) for key, value in pairs(part) if isinstance(key, str))
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _function(call: Call, states: Mapping[int, list[Any]]) -> Carried:
    codes = _codes(call, states)
    attributes = attributes_of(call, states)
    own = next((node for node in items(call.arguments) if is_code(node)), None)
    name = _text(attributes.get("__qualname__")) or (_code(own).name if own is not None else "?")
    cells = _cells(own, attributes.get("__closure__"))
    kind = "closure" if cells or "<locals>" in name else "function"
    if name.endswith("<lambda>"):
        kind = "lambda"
    return Carried(kind, name, _text(attributes.get("__module__")), codes, cells)


def _cells(code: Call | None, closure: Any) -> dict[str, object]:
    if code is None:
        return {}
    arguments = items(code.arguments)
    position = _FREE_VARIABLES.get(len(arguments))
    names = items(arguments[position]) if position is not None else []
    values = [items(cell.arguments) for cell in items(closure) if isinstance(cell, Call)]
    return {
        str(name): value[0]
        for name, value in zip(names, values, strict=False)
        if value and isinstance(value[0], (str, int, float, bool, type(None)))
    }


def _class(call: Call, states: Mapping[int, list[Any]]) -> Carried:
    arguments = items(call.arguments)
    attributes = attributes_of(call, states)
    name = next((value for value in arguments if isinstance(value, str)), "?")
    qualified = _text(attributes.get("__qualname__")) or name
    return Carried("class", qualified, _text(attributes.get("__module__")), _codes(call, states))
