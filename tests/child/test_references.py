"""An object that has lost a reference is found, with the call that gave it up; correct code is left alone."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections import deque
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from pytest_rlstability.child.references import FOUND, VARIABLE, lacks_reference
from pytest_rlstability.child.script import SITE

pytestmark = pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="counts references")
NATIVE = """
#include <Python.h>
static PyObject *drop_item(PyObject *self, PyObject *list) { Py_DECREF(PyList_GET_ITEM(list, 0)); Py_RETURN_NONE; }
static PyObject *get_item(PyObject *self, PyObject *list) { return PyList_GET_ITEM(list, 0); }
static PyObject *own_item(PyObject *self, PyObject *list) { return Py_NewRef(PyList_GET_ITEM(list, 0)); }
static PyMethodDef methods[] = {{"drop_item", drop_item, METH_O, ""}, {"get_item", get_item, METH_O, ""},
                                {"own_item", own_item, METH_O, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "natives", "", -1, methods};
PyMODINIT_FUNC PyInit_natives(void) { return PyModule_Create(&module); }
"""


def watched(directory: Path, source: str) -> tuple[int, list[str]]:
    """The exit status of a script, and what was written about a missing reference."""
    script, found = directory / "script.py", directory / "found.txt"
    script.write_text(source)
    environment = {VARIABLE: str(found), "PYTHONPATH": f"{SITE}:{directory}", "PYTHONMALLOC": "debug"}
    result = subprocess.run([sys.executable, str(script)], env=environment, timeout=100)
    return result.returncode, found.read_text().splitlines() if found.exists() else []


@pytest.fixture
def natives(tmp_path: Path) -> Path:
    if which("gcc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("needs gcc and Python's headers")
    (tmp_path / "natives.c").write_text(NATIVE)
    flags = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", "-o", "natives.so"]
    subprocess.run(["gcc", *flags, "natives.c"], cwd=tmp_path, check=True)
    return tmp_path


CALLS = """
import natives
class Env:
    def __init__(self): self.items = [[1], [2]]
    def step(self):
        natives.own_item(self.items)
        natives.{function}(self.items)
        return self.items
env = Env()
for _ in range(3): env.step()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="compiles an extension")
@pytest.mark.parametrize("function", ["drop_item", "get_item"])
def test_the_native_function_that_gives_up_a_foreign_reference_is_named(natives: Path, function: str) -> None:
    """Looking at an object that is gone may kill the process before it is told, so there are several attempts."""
    attempts = (watched(natives, CALLS.format(function=function)) for _ in range(20))
    line, *calls = next(found for status, found in attempts if status == FOUND)
    assert line.endswith("script.py:7 in step")
    assert calls == [f"natives.{function}"]


@pytest.mark.skipif(sys.platform != "linux", reason="compiles an extension")
def test_correct_native_code_is_left_alone(natives: Path) -> None:
    assert watched(natives, CALLS.format(function="own_item")) == (0, [])


INNOCENT = """
import asyncio, functools, threading
_globals = globals()
class Slots:
    __slots__ = ("x",)
    def __init__(self): self.x = [[1]]
class Lazy:
    @functools.cached_property
    def made(self): return {"a": [1]}
def generator():
    kept = []
    for number in range(5):
        kept.append([number])
        yield kept
def closure():
    cell = [1]
    def inner():
        cell.append([2])
        mine = locals()
        return cell, mine
    return inner
async def task():
    await asyncio.sleep(0)
    return [number async for number in numbers()]
async def numbers():
    for number in range(3):
        yield [number]
def main():
    lazy, slots, itself = Lazy(), Slots(), []
    itself.append(itself)
    attributes = lazy.__dict__
    lazy.made, lazy.made
    for kept in generator(): pass
    both = closure()
    both(), both()
    asyncio.run(task())
    threads = [threading.Thread(target=sorted, args=([[3], [2]],)) for _ in range(3)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    try:
        raise ValueError([1])
    except ValueError as error:
        saved = error
    first, *rest = [[1], [2], [3]]
    del first
    rest[0], rest[1] = rest[1], rest[0]
    return saved, attributes, slots
main()
"""


def test_innocent_code_is_left_alone(tmp_path: Path) -> None:
    assert watched(tmp_path, INNOCENT) == (0, [])


def test_references_of_containers_and_attributes_are_counted() -> None:
    inner: list[int] = [1]

    class Holder:
        def __init__(self) -> None:
            self.inner = inner

    for container in ([inner], (inner, inner), {"a": inner}, {"a": {"b": [inner]}}, deque([inner]), Holder()):
        names: dict[str, Any] = {"container": container}
        assert not lacks_reference(names, 1)
        assert lacks_reference(names, 9), "as if seven references were gone"
