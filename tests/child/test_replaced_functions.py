"""A test may replace anything in its process: what runs there of ours uses only what it bound at import."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pytest_rlstability

PACKAGE = Path(pytest_rlstability.__file__).parent
ROOMS = (
    *sorted((PACKAGE / "child").glob("*.py")),
    PACKAGE / "model" / "json_text.py",
    PACKAGE / "model" / "messages.py",
    PACKAGE / "model" / "channel.py",
    PACKAGE / "osinfo" / "message_socket.py",
)
WORLD = {"gc", "json", "os", "random", "socket", "threading", "time", "traceback"}
BEFORE_THE_FIRST_TEST = {"spawn_main.py"}
ALLOWED = {
    "os.O_CREAT", "os.O_RDWR", "os.O_TRUNC", "os.O_WRONLY", "os.devnull",  # constants
    "os.register_at_fork", "gc.freeze",  # called before the first test
    "gc.unfreeze",  # called by the test, through what it calls
    "threading.Thread",  # a type annotation
    "socket.AF_UNIX",
}  # fmt: skip

FUNCTIONS = [
    "json.dumps",
    "json.loads",
    "json.JSONEncoder.encode",
    "json.JSONEncoder.iterencode",
    "json.JSONEncoder.default",
    "json.JSONDecoder.decode",
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.thread_time",
    "time.sleep",
    "socket.socket",
    "socket.socket.send",
    "socket.socket.sendall",
    "socket.socket.recv",
    "socket.socket.close",
    "socket.socket.connect",
    "socket.socketpair",
    "socket.create_connection",
    "os.getpid",
    "os.write",
    "os.read",
    "os.open",
    "os.close",
    "os.fork",
    "os.kill",
    "os.listdir",
    "os.readlink",
    "os.urandom",
    "os._exit",
    "os.getppid",
    "os.pidfd_open",
    "os.waitpid",
    "os.waitid",
    "os.setsid",
    "threading.Thread",
    "threading.Thread.start",
    "threading.Lock",
    "threading.enumerate",
    "threading.active_count",
    "threading.get_ident",
    "threading.get_native_id",
    "threading.main_thread",
    "threading.current_thread",
    "signal.signal",
    "signal.alarm",
    "signal.getsignal",
    "gc.collect",
    "gc.freeze",
    "gc.disable",
    "random.seed",
    "random.random",
    "traceback.format_exc",
    "warnings.warn",
    "subprocess.Popen",
    "select.select",
    "select.epoll",
    "selectors.DefaultSelector",
    "faulthandler.enable",
    "faulthandler.dump_traceback",
    "atexit.register",
    "tempfile.mkdtemp",
    "shutil.rmtree",
    "builtins.print",
    "resource.setrlimit",
    "resource.getrusage",
    "mmap.mmap",
    "sys.getsizeof",
    "importlib.import_module",
]
"""Not those without which pytest itself fails, such as os.fstat and os.dup2."""

HEAD = f"""
import importlib
from unittest import mock
import pytest

MODES = {{
    "raises": lambda: mock.Mock(side_effect=TypeError("replaced")),
    "mock": mock.MagicMock,
    "constant": lambda: (lambda *_, **__: "{{}}"),
}}
FUNCTIONS = {FUNCTIONS!r}

def replace(function, mode):
    module, *path, name = function.split(".")
    holder = importlib.import_module(module)
    for part in path:
        holder = getattr(holder, part)
    return mock.patch.object(holder, name, MODES[mode]())
"""
PLACES = """
CASES = [(function, mode) for function in FUNCTIONS for mode in MODES]

@pytest.fixture
def replaced(request):
    with replace(*request.param):
        yield

@pytest.fixture
def replaced_at_the_end(request):
    yield
    replace(*request.param).start()

in_fixture = pytest.mark.parametrize("replaced", CASES, ids="-".join, indirect=True)
at_the_end = pytest.mark.parametrize("replaced_at_the_end", CASES, ids="-".join, indirect=True)
in_call = pytest.mark.parametrize("case", CASES, ids="-".join)

@in_fixture
def test_in_fixture(replaced): pass
@in_fixture
def test_fails_in_fixture(replaced): assert 0
@at_the_end
def test_at_the_end(replaced_at_the_end): pass
@in_call
def test_in_call(case): replace(*case).start()
@in_call
def test_fails_in_call(case):
    replace(*case).start()
    assert 0
"""
MODULE = """
@pytest.fixture(scope="module", autouse=True)
def replaced():
    with replace({function!r}, {mode!r}):
        yield

def test_one(): pass
def test_fails(): assert 0
def test_three(): pass
"""


def unbound(path: Path) -> list[str]:
    """Functions of the standard library that the module looks up when it runs, and imports it makes then."""
    found = set()
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.Lambda):
            for node in ast.walk(function):
                match node:
                    case ast.Attribute(value=ast.Name(id=module), attr=name) if module in WORLD:
                        found.add(f"{module}.{name}")
    return sorted(found - ALLOWED)


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_functions_are_bound_at_import(path):
    assert path.name in BEFORE_THE_FIRST_TEST or unbound(path) == []


def test_an_unbound_function_is_found(tmp_path):
    (tmp_path / "bad.py").write_text("import os\ndef send(): os.write(1, b'')\nstart = lambda: os.fork()\n")
    assert unbound(tmp_path / "bad.py") == ["os.fork", "os.write"]


def differences(outcome) -> dict[str, str]:
    return {
        name: outcome.messages.get(name, "")
        for name, result in outcome.tests.items()
        if result != ("failed" if "fails" in name else "passed") or "CRASH" in outcome.messages.get(name, "")
    }


@pytest.mark.slow
def test_functions_replaced_around_a_test_change_no_outcome(run_pytest):
    outcome = run_pytest(HEAD + PLACES)
    assert len(outcome.tests) == 5 * 3 * len(FUNCTIONS)
    assert differences(outcome) == {}


@pytest.mark.slow
def test_functions_replaced_for_a_module_change_no_outcome(run_pytest):
    """Tests of the same name share one entry in what is read back, so each module has names of its own."""
    modes = ("raises", "mock", "constant")
    for number, function in enumerate(FUNCTIONS):
        for mode in modes:
            tests = MODULE.format(function=function, mode=mode).replace("(): ", f"_{number}_{mode}(): ")
            tests = tests.replace(f"def replaced_{number}_{mode}", "def replaced")
            run_pytest.write(f"test_{number}_{mode}.py", HEAD + tests)
    outcome = run_pytest.run("--rl-group=auto")
    assert len(outcome.tests) == 3 * 3 * len(FUNCTIONS)
    assert differences(outcome) == {}
