"""The calls a pickle makes while it is loaded, one by one: which of them do more than build a part of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_rlstability.models.called import HOLDERS, METACLASSES, is_standard, may_be_called, runs_when_imported
from pytest_rlstability.models.carried import attributes_of, is_carried_class, is_carried_function, is_code, states_of
from pytest_rlstability.models.pickles import Call, External, Name, Reading, items, pairs

_GENERIC = frozenset(
    {"typing", "collections", "collections.abc", "_collections_abc", "types", "builtins", "contextlib", "re", "queue"}
)
# They give what was there before: what is set on it would be set for the whole process.
_FOUND = frozenset({
    "getattr", "getitem", "subimport", "_builtin_type", "type", "getLogger", "reduce", "_compile",
    "_create_parametrized_type_hint", "_get_dataclass_field_type_sentinel",
})  # fmt: skip
_ADDING = ("append", "extend", "add", "__setitem__")


class Calls:
    """The calls of one pickle, each judged by `objection`."""

    def __init__(self, reading: Reading) -> None:
        self.states = states_of(reading)
        self._known: dict[int, dict[str, Any]] = {}

    def objection(self, call: Call) -> str:
        """What this call would do that no model needs, or ``""``."""
        callee = _resolved(call.function)
        if isinstance(callee, Name):
            return self._of_name(callee, call)
        if is_carried_function(callee):
            return "call a function it carries as soon as it is loaded"
        if is_carried_class(callee):
            return self._of_class(callee, call)
        if isinstance(callee, Call) and isinstance(callee.function, Name) and call.new:
            # A class that a function of the user's has made.
            return "" if not is_standard(callee.function) else f"build what {callee.function} gave"
        return f"call what {_spoken(callee)} gave as soon as it is loaded"

    def _of_name(self, name: Name, call: Call) -> str:
        if call.states and name.name in _FOUND and not may_hold_state(name):
            return f"change what {name} gave, which is not its own"
        shape = _SHAPES.get(str(name))
        if shape is None and name.module.partition(".")[0] == "cloudpickle":
            shape = _CLOUDPICKLE.get(name.name)
        arguments = items(call.arguments)
        if shape is not None:
            return "" if shape(self, arguments, call) else f"call {name} when loaded, in a way that no saved model does"
        if not may_be_called(name, call.new):
            return f"call {name} when loaded, which builds no part of a model"
        if is_standard(name) and str(name) not in HOLDERS and any(map(_is_carried_instance, arguments)):
            return f"have {name} call methods that it carries as soon as it is loaded"
        return ""

    def _of_class(self, made: Call, call: Call) -> str:
        """Code of a carried class that runs before anything is done with the object."""
        called = ["__new__"]
        if made.function.name == "_make_skeleton_enum":
            called.append("_missing_")
        elif not call.new:
            called.append("__init__")
        called += ["__setstate__"] * bool(call.states) + [*_ADDING] * call.extended
        found = self._methods(made)
        for method in called:
            if not self._is_harmless(found.get(method)):
                return f"call {method} of a class it carries as soon as it is loaded"
        return ""

    def _is_harmless(self, method: Any) -> bool:
        """Whether *method* of a carried class is code that is found elsewhere, where it may be called."""
        if isinstance(method, Call) and method.function == Name("builtins", "staticmethod"):
            method = (items(method.arguments) or [None])[0]
        method = _resolved(method)
        if not isinstance(method, Name):
            return not isinstance(method, Call) or self._is_of_tuple(method)
        owner = Name(method.module, method.name.rpartition(".")[0])
        return (
            method.module in ("enum", "typing")
            or str(method) == "dataclasses._dataclass_setstate"
            or may_be_called(owner if is_standard(method) else method, new=False)
        )

    def _methods(self, made: Call) -> dict[str, Any]:
        """The attributes of a carried class, with those of the carried classes it is made of."""
        if id(made) in self._known:
            return self._known[id(made)]
        waiting, seen, found = [made], set[int](), dict[str, Any]()
        while waiting:
            one = waiting.pop(0)
            if id(one) in seen:
                continue
            seen.add(id(one))
            found = {**attributes_of(one, self.states), **found}
            groups = [one.arguments, *items(one.arguments)]
            waiting += [node for group in groups for node in items(group) if is_carried_class(node)]
        self._known[id(made)] = found
        return found

    def _is_of_tuple(self, function: Call) -> bool:
        """Whether this is the ``__new__`` that every named tuple has."""
        if not is_carried_function(function):
            return False
        code = next((node for node in items(function.arguments) if is_code(node)), None)
        names = items(items(code.arguments)[8]) if code is not None and len(items(code.arguments)) > 8 else []
        used = attributes_of(function, self.states).get("__globals__")
        values = [value for key, value in pairs(used) if key == "_tuple_new"]
        return names == ["_tuple_new"] and len(values) == 1 and _is_tuple_new(values[0])

    def may_make(self, maker: Any, new: bool) -> bool:
        return not self.objection(Call(maker, None, new=new))


def may_hold_state(name: Name) -> bool:
    """Whether a user's function happens to have the name of one that gives what was there before."""
    return not is_standard(name) and name.module.partition(".")[0] != "cloudpickle"


def _resolved(callee: Any) -> Any:
    """The global that *callee* is, where the pickle takes a detour to it."""
    if isinstance(callee, External):  # an old torch file stores a module's class with its source
        reference = items(callee.reference)
        return reference[1] if len(reference) > 1 and reference[0] == "module" else callee
    attributes: list[str] = []
    owner = callee
    while isinstance(owner, Call) and owner.function == Name("builtins", "getattr"):
        taken = items(owner.arguments)
        if len(taken) != 2 or not isinstance(taken[1], str):
            return callee
        attributes.append(taken[1])
        owner = taken[0]
    if isinstance(owner, Name):
        return Name(owner.module, ".".join([owner.name, *reversed(attributes)]))
    taken = items(owner.arguments) if isinstance(owner, Call) and not attributes else []
    if len(taken) == 1 and isinstance(owner.function, Name) and owner.function.name == "_builtin_type":
        return Name("types", taken[0]) if isinstance(taken[0], str) else callee
    return callee


def _spoken(callee: Any) -> str:
    while isinstance(callee, Call):
        callee = callee.function
    return str(callee) if isinstance(callee, Name) else "something that is no function"


def _is_carried_instance(value: Any) -> bool:
    return isinstance(value, Call) and is_carried_class(value.function)


def _is_tuple_new(value: Any) -> bool:
    return bool(_resolved(value) == Name("builtins", "tuple.__new__"))


def _is_type(value: Any) -> bool:
    """Whether *value* is a type or a type hint, as far as the pickle tells."""
    if value is None or isinstance(value, (Name, str)) or is_carried_class(value):
        return True
    return isinstance(value, Call) and isinstance(value.function, Name) and not is_carried_function(value)


def _union(_: Calls, arguments: list[Any], __: Call) -> bool:
    """``float | None`` in an annotation."""
    if len(arguments) != 2 or arguments[0] not in (Name("_operator", "or_"), Name("operator", "or_")):
        return False
    return all(map(_is_type, items(arguments[1])))


def _parametrised(calls: Calls, arguments: list[Any], _: Call) -> bool:
    """``Callable[[float], float]`` in an annotation."""
    origin = arguments[0] if len(arguments) == 2 else None
    if isinstance(origin, Call) and is_carried_class(origin):
        return "__class_getitem__" not in calls._methods(origin)
    return isinstance(origin, Name) and (not is_standard(origin) or origin.module in _GENERIC)


def _made_by_base(calls: Calls, arguments: list[Any], call: Call) -> bool:
    """``copyreg._reconstructor(class, base, state)``, as old protocols write an object."""
    if len(arguments) != 3 or not isinstance(arguments[1], Name):
        return False
    return calls.may_make(arguments[1], new=False) and _made(calls, arguments, call)


def _made(calls: Calls, arguments: list[Any], call: Call) -> bool:
    maker = arguments[0] if arguments else None
    return not calls.objection(Call(maker, None, call.states, new=True, extended=call.extended))


def _rebuilt(calls: Calls, arguments: list[Any], _: Call) -> bool:
    """A tensor of a class of its own: torch calls the function that is its first argument."""
    return len(arguments) > 2 and isinstance(arguments[0], Name) and calls.may_make(arguments[0], new=False)


def _skeleton(calls: Calls, arguments: list[Any], _: Call) -> bool:
    """A carried class is made by its metaclass."""
    if not arguments:
        return False
    maker = _resolved(arguments[0])
    return (isinstance(maker, Name) and str(maker) in METACLASSES) or calls.may_make(maker, new=False)


def _function(_: Calls, arguments: list[Any], __: Call) -> bool:
    return bool(arguments) and is_code(arguments[0])


def _set_on_class(_: Calls, arguments: list[Any], __: Call) -> bool:
    return bool(arguments) and is_carried_class(arguments[0])


def _set_on_function(_: Calls, arguments: list[Any], __: Call) -> bool:
    made = arguments[0] if arguments else None
    return is_carried_function(made) or (isinstance(made, Call) and _resolved(made.function) in _FUNCTION_TYPES)


def _attribute(_: Calls, arguments: list[Any], __: Call) -> bool:
    return len(arguments) == 2  # with a default it would still be found, but nobody pickles that


def _one(_: Calls, arguments: list[Any], __: Call) -> bool:
    return len(arguments) == 1 and not _is_carried_instance(arguments[0])


def _import(_: Calls, arguments: list[Any], __: Call) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], str) and not runs_when_imported(arguments[0])


def _always(_: Calls, __: list[Any], ___: Call) -> bool:
    return True


_FUNCTION_TYPES = (Name("types", "FunctionType"), Name("types", "LambdaType"))
_Shape = Callable[[Calls, list[Any], Call], bool]
_SHAPES: Mapping[str, _Shape] = {
    "builtins.getattr": _attribute,
    "builtins.iter": _one,
    "builtins.type": _one,
    "functools.reduce": _union,
    "_functools.reduce": _union,
    "operator.getitem": _parametrised,
    "_operator.getitem": _parametrised,
    "copyreg._reconstructor": _made_by_base,
    "copyreg.__newobj__": _made,
    "copyreg.__newobj_ex__": _made,
    "types.FunctionType": _function,
    "types.LambdaType": _function,
    "torch._tensor._rebuild_from_type": _rebuilt,
    "torch._tensor._rebuild_from_type_v2": _rebuilt,
    "torch.storage._load_from_bytes": _always,  # what is inside is judged on its own
}
_CLOUDPICKLE: Mapping[str, _Shape] = {
    "subimport": _import,
    "_make_skeleton_class": _skeleton,
    "_function_setstate": _set_on_function,
    "_fill_function": _set_on_function,
    "_class_setstate": _set_on_class,
    "_rehydrate_skeleton_class": _set_on_class,
}
