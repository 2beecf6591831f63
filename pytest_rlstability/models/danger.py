"""Pickles that would do harm by being loaded, told apart from those that only build objects."""

from __future__ import annotations

from pytest_rlstability.models.archive import RefusedError
from pytest_rlstability.models.carried import is_carried_function
from pytest_rlstability.models.pickles import Call, Name, Reading, items

_MODULES = frozenset({
    "os", "posix", "nt", "subprocess", "sys", "shutil", "socket", "pty", "ctypes", "_ctypes", "importlib",
    "imp", "runpy", "pkgutil", "zipimport", "code", "codeop", "pdb", "bdb", "timeit", "profile", "cProfile",
    "trace", "doctest", "pip", "ensurepip", "venv", "webbrowser", "antigravity", "commands", "multiprocessing",
    "asyncio", "pickle", "_pickle", "marshal", "dill", "joblib", "tempfile", "urllib", "http", "ftplib",
    "smtplib", "fileinput", "linecache",
})  # fmt: skip
_NAMES = frozenset({
    "builtins.eval", "builtins.exec", "builtins.compile", "builtins.open", "builtins.__import__",
    "builtins.input", "builtins.breakpoint", "builtins.setattr", "builtins.delattr", "builtins.globals",
    "builtins.locals", "builtins.vars", "io.open", "io.FileIO", "io.open_code", "_io.open", "_io.FileIO",
    "_io.open_code", "operator.attrgetter", "operator.methodcaller", "_operator.attrgetter",
    "_operator.methodcaller", "cloudpickle.load", "cloudpickle.loads", "cloudpickle.cloudpickle.load",
    "cloudpickle.cloudpickle.loads", "numpy.load", "numpy.fromfile", "numpy.memmap",
    "numpy.testing._private.utils.runstring", "torch.load", "torch.serialization.load", "torch.hub.load",
    "torch.jit.load",
})  # fmt: skip
# Reached through another module's namespace (`numpy`, `os.system`) or as an attribute.
_ATTRIBUTES = frozenset({
    "os", "posix", "nt", "subprocess", "sys", "builtins", "importlib", "ctypes", "shutil", "socket",
})  # fmt: skip
_HARMLESS_DUNDERS = frozenset({"__new__", "__init__", "__newobj__", "__newobj_ex__"})


def refuse_danger(reading: Reading, where: str) -> None:
    """Raise `RefusedError`, naming it, if loading this pickle would run something that builds no object."""
    for name in reading.names:
        if _is_dangerous(name):
            raise RefusedError(f"{where} would run {_spoken(name)} when loaded: this file is hostile, do not load it")
    for call in reading.calls:
        _refuse_call(call, where)


def _is_dangerous(name: Name) -> bool:
    if name.module.partition(".")[0] in _MODULES or str(name) in _NAMES:
        return True
    return any(map(_is_dangerous_attribute, name.name.split(".")))


def _is_dangerous_attribute(name: str) -> bool:
    dunder = name.startswith("__") and name.endswith("__")
    return name in _ATTRIBUTES or (dunder and name not in _HARMLESS_DUNDERS)


def _spoken(name: Name) -> str:
    return f"os.{name.name}" if name.module in ("posix", "nt") else str(name)


def _refuse_call(call: Call, where: str) -> None:
    if is_carried_function(call.function):
        raise RefusedError(
            f"{where} would call a function it carries as soon as it is loaded; this is not read further"
        )
    if call.function == Name("builtins", "getattr"):
        taken = items(call.arguments)
        attribute = taken[1] if len(taken) > 1 else None
        # Bound methods are pickled as getattr(object, "name"): that and no more is let through.
        from_module = bool(taken) and isinstance(taken[0], Call) and _is_import(taken[0])
        if from_module or not isinstance(attribute, str) or _is_dangerous_attribute(attribute):
            raise RefusedError(
                f"{where} would reach for {attribute!r} through getattr: this file is hostile, do not load it"
            )
    # An object's attribute that is called at once runs code; objects are built from classes by name.
    elif isinstance(call.function, Call) and call.function.function == Name("builtins", "getattr"):
        raise RefusedError(f"{where} would call what it got through getattr: this file is hostile, do not load it")


def _is_import(call: Call) -> bool:
    return isinstance(call.function, Name) and call.function.name in ("subimport", "import_module", "dynamic_subimport")
