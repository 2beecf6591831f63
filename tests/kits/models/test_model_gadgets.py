"""Files made to run something: each is refused, or loaded in the locked child without a trace; each has a twin."""

from __future__ import annotations

import base64
import importlib
import io
import json
import pickle
import pkgutil
import random
import struct
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

from pytest_rlstability.kits.models import lock
from pytest_rlstability.kits.models.archive import RefusedError
from pytest_rlstability.kits.models.audit import audit, audit_contents
from pytest_rlstability.kits.models.contents import read_contents
from pytest_rlstability.kits.models.judge import judge
from pytest_rlstability.kits.models.pickles import read_pickle
from pytest_rlstability.kits.models.table import REDUCE, VALUES, _each
from pytest_rlstability.steps import Step, run_step

MODEL = Path(__file__).parents[2] / "data" / "models" / "w312sb26_dqn_default.zip"


def text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def call(name: str, *arguments: bytes) -> bytes:
    module, _, function = name.rpartition(".")
    return f"c{module}\n{function}\n(".encode() + b"".join(arguments) + b"tR"


COMMAND = text("touch pwned")
BOX = b"cgymnasium.spaces.box\nBox\n)\x81"
FUNCTION = call("cloudpickle.cloudpickle._make_function", call("types.CodeType"))
ORDERED = b"ccollections\nOrderedDict\n)R"


def attributes(**values: bytes) -> bytes:
    return b"}(" + b"".join(text(name) + value for name, value in values.items()) + b"ub"


def setting(value: bytes) -> bytes:
    return b"}" + text("activation_fn") + value + b"s"


INTEGER = call("numpy.dtype", text("i8"), b"I00\nI01\n") + b"(K\3" + text("<") + b"NNN" + 2 * b"J\xff\xff\xff\xff"

# Each: what a scanner let through, as a pickle; and the same with the harmful part taken out.
BYPASSES: dict[str, tuple[bytes, bytes]] = {
    # Objects that quack: BUILD sets what a later opcode or a builder calls.
    "append set by BUILD": (BOX + attributes(append=b"cos\nsystem\n") + COMMAND + b"a", BOX + attributes(low=b"K\1")),
    "extend set by BUILD": (BOX + attributes(extend=b"cos\nsystem\n") + b"(" + COMMAND + b"e", BOX),
    "items for a space": (BOX + b"(" + COMMAND + b"K\1u", ORDERED + b"(" + COMMAND + b"K\1u"),
    "__setstate__ set by BUILD": (BOX + attributes(__setstate__=b"cos\nsystem\n") + COMMAND + b"b", BOX + b"}b"),
    "two states": (BOX + b"}b}b", BOX + b"}b"),
    "state of slots": (BOX + b"N}" + text("__class__") + b"cos\nsystem\ns\x86b", BOX + attributes(high=b"K\1")),
    "keys handed to a dict": (call("collections.OrderedDict", BOX + attributes(keys=b"cos\nsystem\n")), ORDERED),
    "append set on a carried function": (
        FUNCTION + b"N}" + text("append") + b"cos\nsystem\ns\x86b" + COMMAND + b"a",
        FUNCTION + b"N}" + text("append") + b"cos\nsystem\ns\x86b",
    ),
    "partial handed to a builder": (
        call("collections.deque", call("functools.partial", b"cos\nsystem\n", COMMAND), b"K\5"),
        call("collections.deque", b"]", b"K\5"),
    ),
    "method handed to a builder": (
        call("builtins.list", call("builtins.map", call("types.MethodType", b"cos\nsystem\n", COMMAND), b"]")),
        call("builtins.set", b"]"),
    ),
    "update of a module's dict": (b"cnumpy\n__dict__\n(" + text("a") + b"K\1u", b"}(" + text("a") + b"K\1u"),
    "state of a function (modelscan 85)": (
        b"cnumpy\nprod\nN}" + text("a") + text("os") + b"s\x86bcnumpy\nprod.a\n", BOX + b"}b"
    ),
    "shadowed name (modelscan 330)": (
        b"cnumpy\nsize\n}}" + text("shape") + b"cnumpy\n__builtins__\ns\x86b", BOX + b"}b"
    ),
    # Ways to a function that no list names.
    "import_module (picklescan 66)": (call("importlib.import_module", text("os")), call("torch.device", text("cpu"))),
    "resolve_name (picklescan GHSA-vvpj)": (call("pkgutil.resolve_name", text("os:system")), b"K\1"),
    "marshal (picklescan 74)": (call("marshal.loads", b"C\x01N"), b"C\x01N"),
    "mailcap (modelscan 346)": (call("mailcap.findmatch", b"}", COMMAND), b"}"),
    "collect_env (modelscan 338)": (call("torch.utils.collect_env.run", COMMAND), b"ctorch\nfloat32\n"),
    "spawnv_passfds (modelscan 338)": (call("multiprocessing.util.spawnv_passfds", b"C\1a", b")", b")"), b")"),
    "nested pickle (modelscan 267)": (call("pickle.loads", b"C\x03K\1."), b"C\x03K\1."),
    "pip (picklescan CVE-2025-1716)": (call("pip.main", b"]"), b"]"),
    "file handler (picklescan CVE-2026-56304)": (call("logging.FileHandler", text("pwned")), text("pwned")),
    "uuid (picklescan CVE-2026-56315)": (call("uuid._get_command_stdout", COMMAND), COMMAND),
    "imaplib (picklescan CVE-2026-56315)": (call("imaplib.IMAP4_stream", COMMAND), COMMAND),
    "asyncio (picklescan CVE-2025-10157)": (
        call("asyncio.unix_events._UnixSubprocessTransport._start", COMMAND), COMMAND
    ),
    "f2py (fickling 210)": (call("numpy.f2py.crackfortran.getlincoef", COMMAND, b"}"), b"}"),
    "operator (picklescan GHSA-m273)": (call("_operator.attrgetter", text("system")), text("system")),
    "ensurepip (picklescan GHSA-xp4f)": (call("ensurepip._run_pip", b"]"), b"]"),
    "profile (picklescan GHSA-46h3)": (call("profile.run", COMMAND), COMMAND),
    "idlelib (picklescan GHSA-r8g5)": (call("idlelib.run.Executive.runcode", COMMAND), COMMAND),
    "INST (picklescan 13)": (b"(" + COMMAND + b"ios\nsystem\n", b"(" + COMMAND + b"t"),
    "OBJ": (b"(cos\nsystem\n" + COMMAND + b"o", b"(" + COMMAND + b"l"),
    "memo of two kinds (picklescan 14)": (
        text("os") + b"q\0" + text("system") + b"q\1" + text("torch._utils") + b"\x94" + text("_rebuild_tensor_v2")
        + b"\x940000h\0h\1\x93(" + COMMAND + b"tR",
        text("os") + b"q\0" + text("system") + b"q\1" + b"h\0h\1\x86",
    ),
    "through a module's imports": (b"crandom\n_os.system\n(" + COMMAND + b"tR", b"cbuiltins\nfloat\n"),
    "getattr of a module": (
        call("builtins.getattr", b"crandom\n_os\n", text("system")), call("builtins.getattr", text("a"), text("upper"))
    ),
    "memmap": (
        call("numpy.memmap", text("pwned"), text("u1"), text("w+"), b"K\0K\1\x85"),
        call("numpy.core.multiarray._reconstruct", b"cnumpy\nndarray\n", b"K\0\x85", b"C\1b"),
    ),
    "class for an array": (
        call("numpy.core.multiarray._reconstruct", b"cnumpy\nmemmap\n", b"K\0\x85", b"C\1b"),
        call("numpy.core.multiarray._reconstruct", b"cnumpy\nndarray\n", b"K\0\x85", b"C\1b"),
    ),
    "class for a bit generator": (
        call("numpy.random._pickle.__bit_generator_ctor", b"cpdb\nPdb\n"),
        call("numpy.random._pickle.__bit_generator_ctor", b"cnumpy.random._pcg64\nPCG64\n"),
    ),
    "position of a generator": (
        call("numpy.random._pickle.__bit_generator_ctor", text("MT19937"))
        + b"}" + text("state") + b"}" + text("pos") + b"M\xff\xffssb",
        call("numpy.random._pickle.__bit_generator_ctor", text("MT19937"))
        + b"}" + text("state") + b"}" + text("pos") + b"M\x70\x02ssb",
    ),
    "flags of a dtype": (
        INTEGER + b"K\x3ftb", INTEGER + b"K\0tb"
    ),
    # What SB3 itself calls.
    "activation_fn": (setting(b"cos\nsystem\n"), setting(b"ctorch.nn.modules.activation\nTanh\n")),
    "maker of generators as a value": (
        setting(b"cnumpy.random._pickle\n__bit_generator_ctor\n"),
        setting(call("numpy.random._pickle.__bit_generator_ctor", b"cnumpy.random._pcg64\nPCG64\n")),
    ),
    "maker of generators in a state": (
        b"csb3_contrib.common.recurrent.type_aliases\nRNNStates\ncnumpy.random._pickle\n__bit_generator_ctor\nN\x86\x81",
        b"csb3_contrib.common.recurrent.type_aliases\nRNNStates\n))\x86\x81",
    ),
    "loader as a value": (setting(b"ctorch.storage\n_load_from_bytes\n"), setting(b"cnumpy\nfloat32\n")),
    "schedule": (
        b"cstable_baselines3.common.utils\nFloatSchedule\n)\x81" + attributes(value_schedule=b"cos\nsystem\n"),
        b"cstable_baselines3.common.utils\nFloatSchedule\n)\x81" + attributes(value_schedule=b"cbuiltins\nfloat\n"),
    ),
    # Encodings.
    "tensor in another codec": (
        call("torch.storage._load_from_bytes", call("_codecs.encode", text("pbf\nflfgrz\n"), text("rot13"))),
        call("builtins.bytearray", call("_codecs.encode", text("abc"), text("latin1"))),
    ),
    "tensor that is a zip": (call("torch.storage._load_from_bytes", b"C\4PK\3\4"), b"C\4PK\3\4"),
    "named and dropped": (b"cantigravity\nwebbrowser\n0K\1", b"cnumpy\nfloat32\n0K\1"),
    "named and left": (b"cthis\ns\nK\1", b"cnumpy\nfloat32\nK\1"),
    "named and remembered": (b"cidlelib.idle\nx\nq\7" + b"0K\1", b"cnumpy\nfloat32\nq\7" + b"0K\1"),
    "extension": (b"\x82\1", b"K\1"),
    "keywords": (b"cos\nsystem\n)}\x92", b")}\x86"),
}  # fmt: skip


@pytest.mark.parametrize("name", BYPASSES)
@pytest.mark.parametrize("protocol", [2, 4])
def test_bypass_is_refused_and_its_twin_is_not(name: str, protocol: int) -> None:
    hostile, innocent = BYPASSES[name]
    head = b"\x80" + bytes([protocol])
    with pytest.raises(RefusedError):
        judge(read_pickle(head + hostile + b"."), "value")
    judge(read_pickle(head + innocent + b"."), "value")


# What advisories of the scanners name: a list of bad names had none of them.
ADVISORIES: dict[str, str] = {
    "fickling GHSA-565g-hwwr-4pp3": "marshal.loads types.FunctionType",
    "fickling GHSA-r7v6-mfhq-g3m2": "pty.spawn",
    "fickling GHSA-5hwf-rc88-82xm": "uuid._get_command_stdout _osx_support._read_output _aix_support._read_cmd_output",
    "fickling GHSA-6ggj-6f2q-f7mx": "_interpreters.create _interpreters.run_string _xxsubinterpreters.run_string",
    "fickling 210 and 215": "runpy.run_path cProfile.run ctypes.CDLL zipimport.zipimporter code.InteractiveInterpreter"
    " bdb.Bdb pdb.run timeit.timeit doctest.debug_script trace.Trace venv.create _io.FileIO requests.get joblib.load"
    " dill.loads torch.hub.load torch.compile tempfile.mkstemp socket.create_connection http.client.HTTPConnection",
    "picklescan GHSA-v7x6-rv5q-mhwc": "timeit.timeit timeit.repeat",
    "picklescan GHSA-4675-36f9-wf6r": "pdb.run bdb.Bdb.run",
    "picklescan GHSA-84r2-jw7c-4r5q": "pickle.load _pickle.loads",
    "picklescan GHSA-955r-x9j8-7rhh": "operator.methodcaller operator.itemgetter operator.attrgetter",
    "picklescan GHSA-hgrh-qx5j-jfwx": "aiohttp.client.ClientSession ssl.get_server_certificate httplib.HTTPSConnection",
    "picklescan CVE-2025-10155": "distutils.file_util.write_file shutil.copyfile _io.open",
    "picklescan CVE-2026-56315": "_pyrepl.pager.pipe_pager imaplib.IMAP4_stream uuid._popen",
    "modelscan 313": "torch._dynamo.guards.GuardBuilder.get torch.utils.bottleneck.__main__.run_cprofile"
    " torch.utils.bottleneck.__main__.run_autograd_prof torch.utils._config_module.ConfigModule.load_config"
    " torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression idlelib.pyshell.ModifiedInterpreter"
    " commands.getoutput lib2to3.pgen2.grammar.Grammar.loads torch.jit.unsupported_tensor_ops.execWrapper",
    "modelscan 338": "mlflow.projects.backend.local._run_entry_point pandas.io.parsers.readers.read_csv"
    " urllib.request.urlretrieve torch.utils.collect_env.run multiprocessing.util.spawnv_passfds",
    "modelscan 331": "importlib.import_module builtins.getattr builtins.str.join",
}


@pytest.mark.parametrize("advisory", ADVISORIES)
def test_what_an_advisory_names_is_neither_called_nor_named(advisory: str) -> None:
    for name in ADVISORIES[advisory].split():
        module, _, function = name.rpartition(".")
        one = f"c{module}\n{function}\n".encode()
        for chain in (one + b"(" + COMMAND + b"tR", one + b")\x81}b", setting(one), one + b"0N"):
            for protocol in (b"\x80\x02", b"\x80\x04"):
                with pytest.raises(RefusedError):
                    judge(read_pickle(protocol + chain + b"."), "value")


def reachable() -> list[tuple[str, str]]:
    """Every callable that two opcodes reach in the modules of the standard library and of the installed packages."""
    loud = {"antigravity", "this", "idlelib", "turtle", "turtledemo", "test", "tkinter", "lib2to3", "__main__"}
    modules = [name for name in sys.stdlib_module_names if name not in loud]
    for package in ("numpy", "torch", "stable_baselines3", "gymnasium", "cloudpickle", "psutil", "_pytest"):
        modules.append(package)
        try:
            found = importlib.import_module(package)
        except ImportError:
            continue
        modules += [f"{package}.{one.name}" for one in pkgutil.iter_modules(found.__path__)]
    names = set()
    for module in modules:
        try:
            loaded = importlib.import_module(module)
        except BaseException:  # a module may do anything when it is imported
            continue
        names |= {(module, name) for name, value in vars(loaded).items() if callable(value) and name.isidentifier()}
    return sorted(names)


@pytest.mark.slow
def test_generated_gadget_chains(tmp_path: Path) -> None:
    """200 callables of a fixed draw: called, built, given to each other, set as attributes: none passes unseen."""
    drawn = [*random.Random(16).sample(reachable(), 200), ("torch.nn.modules.activation", "Tanh")]
    passed = []
    for module, name in drawn:
        one = f"c{module}\n{name}\n".encode()
        for shape, chain in {
            "REDUCE": one + b"(" + COMMAND + b"tR",
            "OBJ": b"(" + one + COMMAND + b"o",
            "NEWOBJ": one + b"(" + COMMAND + b"t\x81}b",
            "value": BOX + attributes(sample=one),
            "partial": call("functools.partial", one, COMMAND),
            "deque": call("collections.deque", call("builtins.map", one, b"(" + COMMAND + b"l"), b"K\5"),
        }.items():
            try:
                found = judge(read_pickle(b"\x80\x04" + chain + b"."), "value")
            except RefusedError:
                continue
            if not found:
                # What the table has a row for may be drawn too; the canary says whether it does anything.
                assert f"{module}.{name}" in (VALUES if shape == "value" else REDUCE), (shape, module, name)
                passed.append(base64.b64encode(b"\x80\x04" + chain + b".").decode())
    assert _loads_without_a_trace(passed, tmp_path) == []


# Containers that two readers read differently.


def _zip(**entries: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), data)
    return stream.getvalue()


def _second_directory() -> bytes:
    inner = _zip(data=b'{"a": 2}')
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("data", "{}")
        archive.comment = inner
    return stream.getvalue()


def _other_local_name() -> bytes:
    return _zip(data=b"{}").replace(b"data", b"atad", 1)


def _other_name_field() -> bytes:
    """A field that gives the entry the name ``data`` to readers that know it, Python 3.13 among them."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("data", "{}")
        other = zipfile.ZipInfo("notes")
        other.extra = struct.pack("<HHBI", 0x7075, 9, 1, zlib.crc32(b"notes")) + b"data"
        archive.writestr(other, b'{"a": 2}')
    return stream.getvalue()


def _link() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("data", "{}")
        link = zipfile.ZipInfo("policy.pth")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    return stream.getvalue()


def _changed(data: bytes, place: int, value: int) -> bytes:
    return data[:place] + bytes([value]) + data[place + 1 :]


def tensor(count: int, key: str = "0") -> bytes:
    """A state dict with one tensor of *count* numbers in storage *key*, as torch pickles it."""
    reference = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + b"J"
    storage = reference + struct.pack("<i", count) + b"tQ"
    shape = b"K\0(J" + struct.pack("<i", count) + b"t(K\1t\x89" + ORDERED
    return b"\x80\x02}" + text("w") + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + shape + b"tRs."


SAVED = b"\x80\x02}."
CONTAINERS: dict[str, bytes] = {
    "second directory in the comment": _second_directory(),
    "comment": _zip(data=b"{}")[:-2] + b"\x01\x00!",
    "bytes before": b"PK\3\4" + _zip(data=b"{}"),
    "bytes behind": _zip(data=b"{}") + b"\0",
    "two archives": _zip(data=b"{}") + _zip(data=b"{}"),
    "case twin": _zip(data=b"{}", DATA=b"{}"),
    "case twin of the pickle": _zip(archive__data_dot_pkl=SAVED, archive__DATA_dot_PKL=b"cos\nsystem\n."),
    "two roots": _zip(archive__data_dot_pkl=SAVED, other__data_dot_pkl=SAVED),
    "other name in the header": _other_local_name(),
    "TorchScript": _zip(archive__data_dot_pkl=SAVED, archive__code__run_dot_py=b"", archive__constants_dot_pkl=SAVED),
    "zero in a name": _zip(data=b"{}", policyX=b"").replace(b"policyX", b"polic\0X"),
    "nothing but an end": b"PK\5\6" + bytes(18),
    "another name in a field": _other_name_field(),
    "link": _link(),
    "encrypted in one header (picklescan CVE-2025-1945)": _changed(_zip(data=b"{}"), 6, 1),
    "other name in the directory (picklescan CVE-2025-1944)": b"atad".join(_zip(data=b"{}").rsplit(b"data", 1)),
    "wrong checksum (picklescan CVE-2025-10156)": _changed(_zip(archive__data_dot_pkl=SAVED), 14, 0),
    "pickle behind the pickle": _zip(archive__data_dot_pkl=SAVED + SAVED),
    "storage larger than its entry": _zip(archive__data_dot_pkl=tensor(1000), archive__data__0=bytes(8)),
    "storage without an entry": _zip(archive__data_dot_pkl=tensor(2)),
    "storage by another path": _zip(archive__data_dot_pkl=tensor(2, "../0"), archive__data__0=bytes(8)),
    "entry without a tensor": _zip(archive__data_dot_pkl=SAVED, archive__data__0=bytes(8)),
    "pickle under another name (picklescan CVE-2025-1889)": _zip(
        archive__data_dot_pkl=SAVED, archive__more_dot_p=SAVED
    ),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_container_that_readers_disagree_on_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    path.write_bytes(CONTAINERS[name])
    with pytest.raises(RefusedError):
        read_contents(path)


@pytest.mark.parametrize("data", [
    _zip(data=b"{}"), _zip(archive__data_dot_pkl=SAVED, archive__version=b"3\n"),
    _zip(archive__data_dot_pkl=tensor(2), archive__data__0=bytes(8)),
])  # fmt: skip
def test_plain_container_is_read(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    path.write_bytes(data)
    assert audit(path).word == "no code found"


def test_budget_is_of_the_file(tmp_path: Path) -> None:
    """Many pickles that are each within the limits are together beyond them."""
    one = {":serialized:": base64.b64encode(b"(" + 600_000 * b"0(" + b".").decode()}
    path = tmp_path / "m.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({f"a{index}": one for index in range(6)}))
    with pytest.raises(RefusedError, match="5 million opcodes"):
        read_contents(path)


def test_what_many_calls_share_is_looked_at_once() -> None:
    """A million items that a million calls share would take hours."""
    looked: list[object] = []
    shape = _each("tuple", lambda item: looked.append(item) is None)
    value = read_pickle(b"\x80\x04(K\1K\2K\3t.").value
    assert shape(value)
    assert shape(value)
    assert looked == [1, 2, 3]


def test_text_that_is_encoded_again_and_again_is_counted() -> None:
    large = b"X" + (2**20).to_bytes(4, "little") + b"a" * 2**20
    remembered = large + b"\x940c_codecs\nencode\n\x940h\0" + text("latin1") + b"\x86\x940"
    read_pickle(b"\x80\x04" + remembered + b"h\1h\2R.")
    with pytest.raises(RefusedError, match="256 MiB"):
        read_pickle(b"\x80\x04" + remembered + 300 * b"h\1h\2R" + b".")


def test_name_that_is_no_name_is_not_printed_whole() -> None:
    with pytest.raises(RefusedError) as caught:
        read_pickle(b"\x80\x04" + text("a" * 100_000) + text("b") + b"\x93.")
    assert len(str(caught.value)) < 200


def _mutants(source: bytes, count: int) -> list[bytes]:
    """*source* with bytes changed, cut out, doubled, or spliced with a call; the draw is fixed."""
    draw = random.Random(1000)
    gadget = pickle.dumps(("x",))[:-1] + call("os.system", COMMAND)
    found = []
    for _ in range(count):
        data = bytearray(source)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(data))
            match draw.randrange(6):
                case 0:
                    data[place] = draw.randrange(256)
                case 1:
                    data[place : place + draw.randint(1, 40)] = b""
                case 2:
                    data[place:place] = data[place : place + draw.randint(1, 40)]
                case 3:
                    data[place:place] = gadget
                case 4:
                    struct.pack_into("<H", data, min(place, len(data) - 2), draw.randrange(65536))
                case 5:
                    place = max(data.rfind(b"PK\1\2"), 0)
                    data[place + draw.randrange(46)] ^= 1 << draw.randrange(8)
        found.append(bytes(data))
    return found


def _with_pickles(pickles: dict[str, bytes]) -> bytes:
    data = {name: {":serialized:": base64.b64encode(value).decode()} for name, value in pickles.items()}
    return _zip(data=json.dumps(data).encode())


def test_mutated_archives(tmp_path: Path) -> None:
    """1,000 of them: each is refused or judged; none makes the reader fail or names a call as harmless."""
    small = _with_pickles({"a": b"\x80\x04" + BYPASSES["schedule"][1] + b".", "b": pickle.dumps([1, "two", 3.0])})
    path, words, passed = tmp_path / "m.zip", [], []
    for data in [*_mutants(small, 700), *_mutants(MODEL.read_bytes(), 300)]:
        path.write_bytes(data)
        try:
            contents = read_contents(path)
        except RefusedError as error:
            words.append(error.word)
            continue
        words.append(audit_contents("m.zip", contents).word)
        if words[-1] == "no code found":
            passed += [value[":serialized:"] for value in contents.settings.values() if ":serialized:" in str(value)]
    assert len(words) == 1000
    assert {"not judged", "no code found"} <= set(words)
    assert _loads_without_a_trace(sorted(set(passed)), tmp_path) == []


LOADING = """
import base64, importlib.util, sys
import cloudpickle, gymnasium, stable_baselines3
spec = importlib.util.spec_from_file_location("lock", arguments["lock"])
lock = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lock)
lock.lock_in([arguments["scratch"], sys.argv[1]], [*sys.path, sys.prefix, sys.base_prefix], 120)
harmful, result = ("os.", "subprocess.", "socket.", "ctypes.", "shutil.", "compile", "exec", "code."), []
armed = False
sys.addaudithook(lambda event, _: result.append(event) if armed and event.startswith(harmful) else None)
for text in arguments["pickles"]:
    data = base64.b64decode(text)
    armed = True
    try:
        cloudpickle.loads(data)
    except Exception:
        pass
    armed = False
"""


def _loads_without_a_trace(pickles: list[str], scratch: Path) -> list[str]:
    """What was tried while *pickles* were loaded in a locked process: the audit events of the interpreter tell."""
    assert pickles
    if lock.missing():
        pytest.skip(lock.missing())
    pytest.importorskip("stable_baselines3")
    arguments = {"pickles": pickles, "scratch": str(scratch), "lock": lock.__file__}
    paths = tuple(sys.path)
    outcome = run_step(Step("load", code=LOADING, arguments=arguments, search_path=paths, timeout=120.0))
    assert outcome.ending == "ok", outcome
    result: list[str] = outcome.result
    return result


def test_canary_sees_a_gadget(tmp_path: Path) -> None:
    gadget = base64.b64encode(call("os.system", COMMAND) + b".").decode()
    assert "os.system" in _loads_without_a_trace([gadget], tmp_path)
