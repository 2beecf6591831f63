"""What a saved model may call while it is loaded: of the standard library and of the libraries it is made with, only
what builds a part of a model; of the user's own modules, anything."""

from __future__ import annotations

import builtins
import re
import sys

from pytest_rlstability.models.pickles import Name

# Removed from the standard library since Python 3.10; the file may be loaded by a Python that still has them.
STANDARD = sys.stdlib_module_names | {
    "aifc", "asynchat", "asyncore", "audioop", "binhex", "cgi", "cgitb", "commands", "crypt", "distutils", "imghdr",
    "imp", "lib2to3", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "smtpd", "sndhdr", "spwd",
    "sunau", "telnetlib", "uu", "xdrlib",
}  # fmt: skip

HOLDERS = frozenset({
    "builtins.classmethod", "builtins.property", "builtins.slice", "builtins.staticmethod", "functools.partial",
    "functools.partialmethod", "types.MethodType", "types.SimpleNamespace",
})  # fmt: skip
"""What keeps its arguments and does nothing with them; the others may iterate, hash or convert them."""

_BUILDERS = HOLDERS | {
    "builtins.bool", "builtins.bytearray", "builtins.bytes", "builtins.complex", "builtins.dict", "builtins.float",
    "builtins.frozenset", "builtins.int", "builtins.list", "builtins.object", "builtins.range", "builtins.set",
    "builtins.str", "builtins.tuple", "_codecs.encode", "_collections._tuplegetter", "_io.BytesIO", "_io.StringIO",
    "_weakrefset.WeakSet", "argparse.Namespace", "array._array_reconstructor", "array.array", "collections.ChainMap",
    "collections.Counter", "collections.OrderedDict", "collections.UserDict", "collections.UserList",
    "collections.UserString", "collections._tuplegetter", "collections.defaultdict", "collections.deque",
    "dataclasses.Field", "dataclasses._DataclassParams", "dataclasses._HAS_DEFAULT_FACTORY_CLASS",
    "dataclasses._KW_ONLY_TYPE", "dataclasses._MISSING_TYPE", "datetime.date", "datetime.datetime",
    "datetime.time", "datetime.timedelta", "datetime.timezone", "decimal.Decimal", "enum.auto", "fractions.Fraction",
    "_collections_abc._CallableGenericAlias", "collections.abc._CallableGenericAlias", "functools.cached_property",
    "inspect.Parameter", "inspect.Signature", "inspect._ParameterKind", "io.BytesIO", "io.StringIO",
    "logging.getLogger", "pathlib.Path", "pathlib.PosixPath", "pathlib.PurePath", "pathlib.PurePosixPath",
    "pathlib.PureWindowsPath", "pathlib.WindowsPath", "pathlib._local.PosixPath", "pathlib._local.PurePosixPath",
    "pathlib._local.PureWindowsPath", "pathlib._local.WindowsPath", "random.Random", "re.RegexFlag", "re._compile",
    "time.struct_time", "types.CodeType", "types.GenericAlias", "types.MappingProxyType", "typing.ForwardRef",
    "typing.NewType", "typing.ParamSpec", "typing.TypeVar", "uuid.SafeUUID", "uuid.UUID", "weakref.WeakSet",
    "zoneinfo.ZoneInfo", "zoneinfo.ZoneInfo._unpickle",
}  # fmt: skip
METACLASSES = frozenset({
    "abc.ABCMeta", "builtins.type", "enum.EnumMeta", "enum.EnumType", "typing.NamedTupleMeta", "typing._ProtocolMeta",
    "typing._TypedDictMeta",
})  # fmt: skip

_OF_LIBRARIES = {
    "numpy": re.compile(
        r"numpy\.(dtype|ndarray|poly1d|bool_?|str_|bytes_|void|u?int(\d+|c|p|_)?|(float|complex)(\d+|_)?"
        r"|(datetime|timedelta)64|_?core\.(multiarray|_multiarray_umath)\.(_reconstruct|scalar)|_?core\.numeric\._frombuffer"
        r"|ma\.core\._mareconstruct|random\.(_pickle\.|mtrand\.)?__\w+_ctor"
        r"|random\.\w+\.(__pyx_unpickle_\w+|PCG64(DXSM)?|MT19937|Philox|SFC64|RandomState|Generator|SeedSequence))"
    ),
    "torch": re.compile(
        r"torch\.(device|dtype|Size|Tensor|Generator|_utils\._rebuild_\w+|serialization\._get_layout"
        r"|nn\.parameter\.(Parameter|Buffer))"
    ),
    "cloudpickle": re.compile(
        r"cloudpickle(\.cloudpickle(_fast)?)?\.(_make_(function|skel_func|cell|empty_cell|typevar|skeleton_enum"
        r"|dict_(keys|values|items))|_builtin_type|dynamic_subimport|_gen_ellipsis|_gen_not_implemented"
        r"|_create_parametrized_type_hint|_get_dataclass_field_type_sentinel|_get_bases)"
    ),
}
_BUSY_MODULES = ("antigravity", "idlelib", "turtledemo")
_CLASSES_OF = frozenset({"stable_baselines3", "sb3_contrib", "gymnasium", "gym"})
_CLASS = re.compile(r"_*[A-Z]\w*(\._*[A-Z]\w*|\.\w+_ctor)*")
# They call what they are given, or open what they are told to.
_BUSY_CLASS = re.compile(r".*(VecEnv|VectorEnv|Monitor|OutputFormat|Video|VideoRecorder)")
# Made to load, compile, run or start something.
_NEVER = re.compile(
    r"(torch\.(fx|jit|hub|package|serialization|multiprocessing|distributed|testing|onnx|_dynamo|_inductor"
    r"|utils\.(cpp_extension|model_zoo|collect_env|bottleneck))|numpy\.(f2py|distutils|testing|lib\.npyio)"
    r"|pandas\.(eval|read_pickle|io|core\.computation)|setuptools|pkg_resources|six|psutil|pytest|_pytest|execnet"
    r"|IPython|pexpect|ptyprocess|paramiko|sh|plumbum|invoke|fabric|cffi|test\.support"
    r"|jinja2|fsspec|mpmath|sympy\.(sympify|parsing|utilities|plotting|external|testing|core\.sympify)"
    r"|pytest_rlstability)\..*|.*\.CloudpickleWrapper"
)


def runs_when_imported(module: str) -> bool:
    """Whether *module* does something by being imported."""
    return module.endswith(".__main__") or module.partition(".")[0] in _BUSY_MODULES or module == "test.autotest"


def is_standard(name: Name) -> bool:
    """Whether *name* is of the standard library."""
    return name.module.partition(".")[0] in STANDARD


def may_be_called(name: Name, new: bool) -> bool:
    """Whether a model may call *name* while it is loaded; with *new*, only its ``__new__`` is called.

    Nobody can list what the user's own modules define, so everything of theirs may be.
    """
    library = name.module.partition(".")[0]
    if library in STANDARD:
        return str(name) in _BUILDERS or _is_exception(name)
    if library in _OF_LIBRARIES and _OF_LIBRARIES[library].fullmatch(str(name)):
        return True
    if _NEVER.fullmatch(str(name)):
        return False
    if new and library != "cloudpickle":
        return True
    if library in _CLASSES_OF:
        return bool(_CLASS.fullmatch(name.name)) and not _BUSY_CLASS.fullmatch(name.name)
    return library not in _OF_LIBRARIES


def _is_exception(name: Name) -> bool:
    found = getattr(builtins, name.name, None) if name.module == "builtins" else None
    return isinstance(found, type) and issubclass(found, BaseException)
