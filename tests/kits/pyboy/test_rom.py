"""The homebrew ROM as bytes: what an emulator checks before it runs them."""

from __future__ import annotations

import pytest

from pytest_rlstability.kits.pyboy.rom import TITLE, _assemble, build_rom


def header_checksum(rom: bytes) -> int:
    checksum = 0
    for byte in rom[0x134:0x14D]:
        checksum = (checksum - byte - 1) & 0xFF
    return checksum


@pytest.mark.parametrize("cgb", [False, True])
@pytest.mark.parametrize("battery", [False, True])
def test_header_is_valid(cgb: bool, battery: bool) -> None:
    rom = build_rom(cgb=cgb, battery=battery)
    assert len(rom) == 32 * 1024
    assert rom[0x14D] == header_checksum(rom)
    assert int.from_bytes(rom[0x14E:0x150], "big") == (sum(rom) - rom[0x14E] - rom[0x14F]) & 0xFFFF
    assert rom[0x134:0x143].rstrip(b"\0").decode() == TITLE
    assert bool(rom[0x143] & 0x80) is cgb
    assert (rom[0x147] == 0x03) is battery


def test_same_arguments_same_bytes() -> None:
    assert build_rom() == build_rom()
    assert build_rom() != build_rom(cgb=True)


def test_no_logo_is_shipped() -> None:
    assert not any(build_rom()[0x104:0x134])


def test_a_jump_out_of_reach_is_refused() -> None:
    with pytest.raises(ValueError, match="jump to start is out of reach"):
        _assemble(f"start: {'00 ' * 200} 18 start")
