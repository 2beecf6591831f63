"""Whether a pickle does only what the table allows; everything else is refused with its name."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from pytest_rlstability.kits.models import carried
from pytest_rlstability.kits.models.archive import Budget, RefusedError
from pytest_rlstability.kits.models.pickles import Call, Name, Reading, maker, read_pickles, walk
from pytest_rlstability.kits.models.table import ARGUMENTS, CODE, METACLASSES, NEWOBJ, REDUCE, STORED, VALUES

_LOADS_BYTES = Name("torch.storage", "_load_from_bytes")
_TORCH_HEAD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_PLACED = ARGUMENTS | {"_codecs.encode"}
_MOST_CARRIED = 20_000_000  # functions times what each may hold: all of it is walked for each
_GENERIC = ("typing", "collections.abc")
_TYPES_OF_CODE = ("MethodType", "GenericAlias", "MappingProxyType")
_LIBRARIES = {name.partition(".")[0] for name in (*VALUES, *CODE, *NEWOBJ)}
# What a class may define and still be built by a pickle: none of these is called while it is loaded.
_QUIET = frozenset({
    "__module__", "__doc__", "__qualname__", "__dict__", "__weakref__", "__annotations__", "__init__", "__call__",
    "__repr__", "__eq__", "__match_args__", "__dataclass_params__", "__dataclass_fields__", "__static_attributes__",
    "__firstlineno__", "__parameters__", "__orig_bases__", "__abstractmethods__", "__replace__",
    "__slotnames__", "__getstate__",
})  # fmt: skip


@dataclass(frozen=True)
class Trust:
    """The modules whose classes and functions may be named and called besides those in the table."""

    modules: tuple[str, ...] = ()
    everything: bool = False

    def covers(self, name: Name) -> bool:
        """Whether *name* is of a trusted module, and defined there: what a module only imports is not its own."""
        if self.everything:
            return True
        if not any(name.module == module or name.module.startswith(module + ".") for module in self.modules):
            return False
        defined = _defined_in(name.module)
        return "." not in name.name if defined is None else name.name in defined


NOBODY, EVERYTHING = Trust(), Trust(everything=True)


def judge(reading: Reading, where: str, trust: Trust = NOBODY, budget: Budget | None = None) -> tuple[str, ...]:
    """The makers of code in *reading*, none if there is no code; `RefusedError`, naming it, for what has no row."""
    found = _Judge(reading, where, trust, budget or Budget())
    if not trust.everything:
        found.check()
    return found.code


class _Judge:
    """One pickle and what is known of it: *code* names the globals that make something to be called later."""

    def __init__(self, reading: Reading, where: str, trust: Trust, budget: Budget) -> None:
        self.reading, self.where, self.trust, self.budget = reading, where, trust, budget
        self.states = carried.states_of(reading)
        names = [name for name in map(maker, reading.calls) if name is not None]
        made = [str(name) for name in names if carried.is_of_cloudpickle(name) or _key(name) in CODE]
        self.code = tuple(dict.fromkeys(made))
        self._quiet: set[int] = set()
        self._carried = [call for call in reading.calls if carried.is_function(call) or carried.is_class(call)]
        if len(self._carried) * (len(reading.calls) + len(reading.groups)) > _MOST_CARRIED:
            raise RefusedError(f"{where} carries more functions than are read", "code found")

    def check(self) -> None:
        for call in self.reading.calls:
            self._check_call(call)
        for external in self.reading.externals:
            if not STORED(external.reference):
                raise RefusedError(f"{self.where} refers to something outside it that is not a tensor's storage")
        for name in self._values():
            if str(name) not in VALUES and not self.trust.covers(name):
                raise RefusedError(f"{self.where} names {_spoken(name)}, which no saved model needs{_hint(name)}")

    def _values(self) -> Iterator[Name]:
        """Names that stand anywhere but where they are called. Inside carried code they are part of that code."""
        in_code = {id(node) for call in self._carried for node in walk(call, self.states)}
        asked_for = {id(call.arguments) for call in self.reading.calls}
        asked_for |= {id(external.reference) for external in self.reading.externals}
        holders: list[list[Any]] = []
        for group in self.reading.groups:
            if id(group) not in in_code:
                names = [one for one in group.items if isinstance(one, Name)]
                holders.append([one for one in names if id(group) not in asked_for or str(one) not in ARGUMENTS])
        holders += [[*call.states, *call.items] for call in self.reading.calls if id(call) not in in_code]
        # What is only named, and then dropped, is imported all the same.
        placed = in_code | {id(call.function) for call in self.reading.calls}
        dropped = [name for name in self.reading.names if id(name) not in placed and str(name) not in _PLACED]
        for holder in [*holders, [self.reading.value], dropped]:
            yield from (name for name in holder if isinstance(name, Name) and not self._is_part_of_code(name))

    def _is_part_of_code(self, name: Name) -> bool:
        """Whether *name* is of the kind that annotations and classes are made with, in a pickle that carries code."""
        return bool(self.code) and (str(name) in METACLASSES or name.name == "or_" or name.module in _GENERIC)

    def _check_call(self, call: Call) -> None:
        callee = call.function
        if isinstance(callee, Name):
            self._check_named(callee, call)
        elif carried.is_function(callee):
            self._refuse("call a function it carries as soon as it is loaded")
        elif carried.is_class(callee):
            self._check_instance(callee, call)
        elif not carried.is_code(call) and carried.unnamed_type(callee) not in _TYPES_OF_CODE:
            self._refuse(f"call what {_maker(callee)} gave as soon as it is loaded")

    def _check_named(self, name: Name, call: Call) -> None:
        row = (NEWOBJ if call.new else REDUCE).get(str(name)) or CODE.get(_key(name))
        if row is None or not row.fits(call) or (_key(name) == "cloudpickle.subimport" and not self._carried):
            if self.trust.covers(name):
                return
            how = _hint(name) if row is None else ", in a way that no saved model does"
            self._refuse(f"run {_spoken(name)} when loaded{how}")
        if name == _LOADS_BYTES:
            self._judge_tensor(call.arguments.items[0])

    def _check_instance(self, made: Call, call: Call) -> None:
        if not call.new:
            self._refuse("call __init__ of a class it carries as soon as it is loaded")
        if id(made) not in self._quiet:
            self._check_class(made)
        if call.items:
            self._refuse("call methods of a class it carries as soon as it is loaded")

    def _check_class(self, made: Call) -> None:
        for one in filter(carried.is_class, walk(made)):  # the class, and those that it is made of
            for attribute, value in carried.attributes_of(one, self.states).items():
                if value is not None and attribute[:2] == "__" == attribute[-2:] and attribute not in _QUIET:
                    self._refuse(f"call {attribute} of a class it carries as soon as it is loaded")
        self._quiet.add(id(made))

    def _judge_tensor(self, data: bytes) -> None:
        """A tensor outside a torch file holds an old torch file of its own, which is loaded with it."""
        if not data.startswith(_TORCH_HEAD):
            raise RefusedError(f"a tensor in {self.where} is not what torch writes")
        for reading in read_pickles(BytesIO(data), self.budget):
            if any(call.function == _LOADS_BYTES for call in reading.calls):
                raise RefusedError(f"{self.where} would load pickles inside pickles that are not read further")
            try:
                judge(reading, "it", self.trust, self.budget)
            except RefusedError as error:
                raise error.within(f"a tensor in {self.where}: ") from error

    def _refuse(self, what: str) -> None:
        raise RefusedError(f"{self.where} would {what}", "code found")


def _spoken(name: Name) -> str:
    return f"os.{name.name}" if name.module in ("posix", "nt") else str(name)


def _hint(name: Name) -> str:
    module = name.module.partition(".")[0]
    return "" if module in sys.stdlib_module_names | _LIBRARIES else f"; if it is yours, add --trust {module}"


def _key(name: Name) -> str:
    """The row's name: what one library calls by several names stands in the table once."""
    if carried.is_of_cloudpickle(name):
        return f"cloudpickle.{name.name}"
    return str(name).removeprefix("_") if name.module in ("_functools", "_operator") else str(name)


def _maker(callee: Any) -> str:
    while isinstance(callee, Call):
        callee = callee.function
    return str(callee) if isinstance(callee, Name) else "something that is not a function"


@cache
def _defined_in(module: str) -> frozenset[str] | None:
    """The functions and classes that the source of *module* defines, which is not imported; None without a source."""
    top, *rest = module.split(".")
    with contextlib.suppress(ImportError, OSError, SyntaxError, ValueError, RecursionError):
        spec = importlib.util.find_spec(top) if top != "__main__" else None
        if spec is not None and spec.origin is not None:
            place = Path(spec.origin).parent.joinpath(*rest) if rest else Path(spec.origin)
            for path in (place, place.with_suffix(".py"), place / "__init__.py"):
                if path.suffix == ".py" and path.is_file():
                    return frozenset(_definitions(ast.parse(path.read_bytes()), ""))
    return None


def _definitions(tree: ast.AST, prefix: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _definitions(node, prefix)
