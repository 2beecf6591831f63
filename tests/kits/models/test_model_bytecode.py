"""Which Python wrote a code object, told from its bytes."""

from __future__ import annotations

import json
import opcode
import sys
import types
from collections.abc import Iterator

import pytest

from pytest_rlstability.kits.models import bytecode

THIS = sys.version_info[:2]
ARGUMENTS = 18 if THIS >= (3, 11) else 16
known = pytest.mark.skipif(THIS not in bytecode._INSTRUCTIONS, reason="an instruction set not in the table")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@known
def test_table_agrees_with_this_python() -> None:
    real = {number for number in opcode.opmap.values() if 0 < number < 233}  # those above are never written
    assert bytecode._INSTRUCTIONS[THIS].defined == real


@known
@pytest.mark.parametrize("module", [json.decoder, types, bytecode])
def test_this_python_is_among_the_writers_of_its_own_code(module: types.ModuleType) -> None:
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as stream:
        code = compile(stream.read(), module.__file__, "exec")
    found = [bytecode.writers(ARGUMENTS, one.co_code) for one in _codes(code)]
    assert all(THIS in writers for writers in found)
    assert found.count((THIS,)) > len(found) / 2


# max(minimum, progress * initial), compiled by each; the 3.12 one is from a model in tests/data.
CLIPPED = {
    (3, 11): "95029700740100000000000000000000890 27c0089017a050000a6020000ab0200000000000000005300".replace(" ", ""),
    (3, 12): "950297007401000000000000000089027c0089017a050000ab020000000000005300",
    (3, 14): "3c0280005c0100000000000000005302560053012c050000000000000000000034020000000000002300",
    (3, 15): "3a02800000005b0100000000000000005202550052012a050000000000000000000032020000000000002100",
}


@pytest.mark.parametrize("version", CLIPPED)
def test_code_with_a_call_has_one_writer(version: bytecode.Version) -> None:
    assert bytecode.writers(18, bytes.fromhex(CLIPPED[version])) == (version,)


def test_the_table_ends_with_this_python_or_later() -> None:
    assert max(bytecode._INSTRUCTIONS) >= THIS


def test_code_that_is_the_same_in_two_pythons_names_both() -> None:
    multiply = bytes.fromhex("97007c0064017a0500005300")  # lambda progress: progress * 3e-4
    assert bytecode.writers(18, multiply) == ((3, 11), (3, 12))


@pytest.mark.parametrize("code", [b"", b"\x97", b"\xff\x00", b"\x97\x00\x74\x01"], ids=repr)
def test_bytes_that_nobody_compiled_have_no_writer(code: bytes) -> None:
    assert bytecode.writers(18, code) == ()


@pytest.mark.parametrize(
    ("version", "count", "takes"),
    [((3, 10), 16, True), ((3, 10), 18, False), ((3, 11), 18, True), ((3, 11), 16, False), ((3, 14), 18, True)],
)
def test_number_of_arguments_decides_whether_it_loads(version: bytecode.Version, count: int, takes: bool) -> None:
    assert bytecode.takes_arguments(version, count) is takes
