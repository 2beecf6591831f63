"""Pickles that would do harm by being loaded, told apart from those that only build objects."""

from __future__ import annotations

import re
from io import BytesIO

from pytest_rlstability.models.archive import RefusedError
from pytest_rlstability.models.called import STANDARD, runs_when_imported
from pytest_rlstability.models.calls import Calls
from pytest_rlstability.models.pickles import Call, Name, Reading, items, read_pickles

# Refused even if they are only named, but for what is harmless in them.
_MODULES = frozenset({
    "os", "posix", "nt", "subprocess", "sys", "shutil", "socket", "pty", "ctypes", "_ctypes", "importlib",
    "imp", "runpy", "pkgutil", "zipimport", "code", "codeop", "pdb", "bdb", "timeit", "profile", "cProfile",
    "trace", "doctest", "pip", "ensurepip", "venv", "webbrowser", "antigravity", "commands", "multiprocessing",
    "asyncio", "pickle", "_pickle", "marshal", "dill", "joblib", "tempfile", "urllib", "http", "ftplib",
    "smtplib", "fileinput", "linecache", "pydoc", "pipes", "idlelib", "distutils", "lib2to3", "xmlrpc", "telnetlib",
    "nntplib", "imaplib", "poplib", "socketserver", "shelve", "dbm", "compileall", "py_compile", "zipapp",
    "rlcompleter", "cgitb", "turtledemo", "_posixsubprocess", "_testcapi", "_xxsubinterpreters", "_interpreters",
    "_pyrepl",
})  # fmt: skip
_HARMLESS = re.compile(
    r"(os|posix|nt)\.(get(cwdb?|p?pid|env|login|loadavg|_terminal_size)|cpu_count|process_cpu_count|fspath|fsencode"
    r"|fsdecode|urandom|l?stat|listdir|scandir|walk|access|uname|times|sched_getaffinity|PathLike|mkdir|makedirs)"
    r"|sys\.(getsizeof|getrecursionlimit|getrefcount|intern|getdefaultencoding|exc_info)"
    r"|shutil\.(which|disk_usage|get_terminal_size)|(_?socket)\.gethostname|tempfile\.(gettempdir|mkdtemp|mkstemp)"
    r"|urllib\.parse\.\w+|http\.HTTPStatus|_?pickle\.dumps?|timeit\.default_timer"
)
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


_DEPTH = 4


def refuse_danger(reading: Reading, where: str, depth: int = _DEPTH) -> None:
    """Raise `RefusedError`, naming it, if loading this pickle would run something that builds no object."""
    for name in reading.names:
        if is_dangerous(name):
            raise RefusedError(f"{where} would run {_spoken(name)} when loaded: this file is hostile, do not load it")
    calls = Calls(reading)
    for call in reading.calls:
        _refuse_attribute(call, where)
        reason = calls.objection(call)
        if reason:
            raise RefusedError(f"{where} would {reason}: do not load it")
        if call.function == Name("torch.storage", "_load_from_bytes"):
            _refuse_inner(call, where, depth)


def is_dangerous(name: Name) -> bool:
    """Whether *name* has no business in a model, called or not."""
    if name.module.partition(".")[0] in _MODULES and not _HARMLESS.fullmatch(str(name)):
        return True
    if runs_when_imported(name.module) or str(name) in _NAMES:
        return True
    path = name.name.split(".")
    # A module's own imports are reached as its attributes: `numpy`, `os.system`.
    return not STANDARD.isdisjoint(path[:-1]) or any(map(_is_dangerous_attribute, path))


def _is_dangerous_attribute(name: str) -> bool:
    dunder = name.startswith("__") and name.endswith("__")
    return name in _ATTRIBUTES or (dunder and name not in _HARMLESS_DUNDERS)


def _spoken(name: Name) -> str:
    return f"os.{name.name}" if name.module in ("posix", "nt") else str(name)


def _refuse_attribute(call: Call, where: str) -> None:
    if call.function != Name("builtins", "getattr"):
        return
    taken = items(call.arguments)
    attribute = taken[1] if len(taken) > 1 else None
    # Bound methods are pickled as getattr(object, "name"): that and no more is let through.
    from_module = bool(taken) and isinstance(taken[0], Call) and _is_import(taken[0])
    if from_module or not isinstance(attribute, str) or _is_dangerous_attribute(attribute):
        raise RefusedError(
            f"{where} would reach for {attribute!r} through getattr: this file is hostile, do not load it"
        )
    if isinstance(taken[0], Name) and is_dangerous(Name(taken[0].module, f"{taken[0].name}.{attribute}")):
        raise RefusedError(f"{where} would run {taken[0]}.{attribute}: this file is hostile, do not load it")


def _is_import(call: Call) -> bool:
    return isinstance(call.function, Name) and call.function.name in ("subimport", "import_module", "dynamic_subimport")


def _refuse_inner(call: Call, where: str, depth: int) -> None:
    """A tensor outside a torch file holds a whole torch file of its own, which is loaded with it."""
    data = (items(call.arguments) or [None])[0]
    if isinstance(data, Call) and data.function == Name("_codecs", "encode"):  # as old protocols write bytes
        text = (items(data.arguments) or [None])[0]
        data = text.encode("latin-1", "replace") if isinstance(text, str) else None
    if not isinstance(data, bytes) or not depth:
        raise RefusedError(f"{where} would load pickles inside pickles that are not read further")
    try:
        for reading in read_pickles(BytesIO(data)):
            refuse_danger(reading, "it", depth - 1)
    except RefusedError as error:
        raise RefusedError(f"a tensor in {where}: {error}") from error
