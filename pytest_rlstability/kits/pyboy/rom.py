"""A homebrew Game Boy program, assembled here, so that no test needs a ROM from elsewhere.

The background scrolls by one pixel a frame, the joypad can be read back from memory, and a counter is driven
by a random number generator that every pressed button disturbs: the same inputs give the same bytes, other
inputs do not. The addresses are ``JOYPAD``, ``FRAMES``, ``RANDOM`` and ``COUNTER``.
"""

from __future__ import annotations

JOYPAD = 0xC000
"""Buttons held in the last frame, one bit each, in the order of ``BUTTONS`` (lowest bit first)."""
FRAMES = 0xC001
"""Frames the program has run, 16 bits, low byte first; the boot logo comes before the first."""
RANDOM = 0xC003
"""State of the random number generator, 16 bits, low byte first."""
COUNTER = 0xC005
"""Goes up by one when the low three bits of the generator are zero."""
BUTTONS = ("right", "left", "up", "down", "a", "b", "select", "start")
TITLE = "RLSTABILITY"

_ROM_SIZE = 0x8000
_ENTRY, _PROGRAM, _TILES = 0x0100, 0x0150, 0x0400
_HEADER_START, _HEADER_CHECKSUM, _GLOBAL_CHECKSUM = 0x0134, 0x014D, 0x014E
_MAPPER_ONLY_ROM, _MAPPER_WITH_BATTERY = 0x00, 0x03
_COLOURS = (0x7FFF, 0x2ABF, 0x6A06, 0x1884)


class _Program:
    """Machine code in the making, with labels for the relative jumps."""

    def __init__(self) -> None:
        self.code = bytearray()
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def emit(self, *code: int) -> None:
        self.code += bytes(code)

    def label(self, name: str) -> None:
        self._labels[name] = len(self.code)

    def jump(self, opcode: int, label: str) -> None:
        self.emit(opcode, 0)
        self._jumps.append((len(self.code) - 1, label))

    def assemble(self) -> bytes:
        for place, label in self._jumps:
            distance = self._labels[label] - (place + 1)
            if not -128 <= distance <= 127:
                raise ValueError(f"jump to {label} is out of reach ({distance} bytes)")
            self.code[place] = distance & 0xFF
        return bytes(self.code)


# opcodes of the relative jumps
_JR, _JR_NZ, _JR_Z, _JR_NC = 0x18, 0x20, 0x28, 0x30


def _load_graphics(program: _Program, *, cgb: bool) -> None:
    program.label("wait for the beam")
    program.emit(0xF0, 0x44, 0xFE, 144)  # ldh a,[LY]; cp 144
    program.jump(_JR_NZ, "wait for the beam")
    program.emit(0xAF, 0xE0, 0x40)  # xor a; ldh [LCDC],a
    program.emit(0x21, 0x00, 0x80, 0x11, _TILES & 0xFF, _TILES >> 8, 0x06, 64)  # ld hl,$8000; ld de,tiles; ld b,64
    program.label("copy tile")
    program.emit(0x1A, 0x22, 0x13, 0x05)  # ld a,[de]; ld [hl+],a; inc de; dec b
    program.jump(_JR_NZ, "copy tile")
    program.emit(0x21, 0x00, 0x98)  # ld hl,$9800
    program.label("fill map")
    program.emit(0x7D, 0x07, 0x07, 0x07, 0xAD, 0xE6, 3, 0x22)  # a = (l rotated by 3 ^ l) & 3; ld [hl+],a
    program.emit(0x7C, 0xFE, 0x9C)  # ld a,h; cp $9C
    program.jump(_JR_NZ, "fill map")
    if cgb:
        program.emit(0x3E, 0x80, 0xE0, 0x68)  # BCPS: palette 0, auto-increment
        for colour in _COLOURS:
            program.emit(0x3E, colour & 0xFF, 0xE0, 0x69, 0x3E, colour >> 8, 0xE0, 0x69)  # BCPD


def _start_clean(program: _Program) -> None:
    program.emit(0x21, JOYPAD & 0xFF, JOYPAD >> 8, 0x06, 16, 0xAF)  # ld hl,JOYPAD; ld b,16; xor a
    program.label("clear")
    program.emit(0x22, 0x05)  # ld [hl+],a; dec b
    program.jump(_JR_NZ, "clear")
    program.emit(0x3E, 0xA5, 0xEA, RANDOM & 0xFF, RANDOM >> 8)  # the generator must not start at zero
    program.emit(0x3E, 0xE4, 0xE0, 0x47)  # BGP
    program.emit(0x3E, 0x01, 0xE0, 0xFF, 0xAF, 0xE0, 0x0F)  # IE = vertical blank; IF = 0
    program.emit(0x3E, 0x91, 0xE0, 0x40)  # LCDC: screen and background on


def _read_joypad(program: _Program) -> None:
    """Leaves the held buttons in register b as well as in memory."""
    program.emit(0x3E, 0x20, 0xE0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0x2F, 0xE6, 0x0F, 0x47)  # directions -> b
    program.emit(0x3E, 0x10, 0xE0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0x2F, 0xE6, 0x0F)  # buttons -> a
    program.emit(0xCB, 0x37, 0xB0, 0x47, 0xEA, JOYPAD & 0xFF, JOYPAD >> 8)  # swap a; or b; ld b,a; ld [JOYPAD],a
    program.emit(0x3E, 0x30, 0xE0, 0x00)


def _count_frame(program: _Program) -> None:
    program.emit(0x21, FRAMES & 0xFF, FRAMES >> 8, 0x34)  # ld hl,FRAMES; inc [hl]
    program.jump(_JR_NZ, "counted")
    program.emit(0x23, 0x34)  # inc hl; inc [hl]
    program.label("counted")


def _draw_random(program: _Program) -> None:
    program.emit(0x21, RANDOM & 0xFF, RANDOM >> 8, 0x2A, 0x66, 0x6F)  # hl = [RANDOM]
    program.emit(0x29)  # add hl,hl
    program.jump(_JR_NC, "shifted")
    program.emit(0x7D, 0xEE, 0x2D, 0x6F)  # l ^= the feedback of x^16 + x^5 + x^3 + x^2 + 1
    program.label("shifted")
    program.emit(0x7C, 0xA8, 0x67, 0xB5)  # h ^= buttons; or l
    program.jump(_JR_NZ, "not zero")
    program.emit(0x2C)  # inc l
    program.label("not zero")
    program.emit(0x7D, 0xEA, RANDOM & 0xFF, RANDOM >> 8, 0x7C, 0xEA, (RANDOM + 1) & 0xFF, RANDOM >> 8)
    program.emit(0x7D, 0xE6, 7)  # ld a,l; and 7
    program.jump(_JR_NZ, "drawn")
    program.emit(0x21, COUNTER & 0xFF, COUNTER >> 8, 0x34)  # ld hl,COUNTER; inc [hl]
    program.label("drawn")


def _scroll(program: _Program) -> None:
    program.emit(0xF0, 0x43, 0x3C, 0xE0, 0x43)  # SCX += 1
    program.emit(0xCB, 0x60)  # bit 4,b: the A button scrolls down as well
    program.jump(_JR_Z, "scrolled")
    program.emit(0xF0, 0x42, 0x3C, 0xE0, 0x42)  # SCY += 1
    program.label("scrolled")


def _program(*, cgb: bool) -> bytes:
    program = _Program()
    program.emit(0xF3, 0x31, 0xFE, 0xFF)  # di; ld sp,$FFFE
    _load_graphics(program, cgb=cgb)
    _start_clean(program)
    program.label("frame")
    program.emit(0x76, 0x00, 0xAF, 0xE0, 0x0F)  # halt; nop; IF = 0
    _read_joypad(program)
    _count_frame(program)
    _draw_random(program)
    _scroll(program)
    program.jump(_JR, "frame")
    return program.assemble()


def _tiles() -> bytes:
    """Four 8x8 tiles of two bit planes: plain, a frame, a diagonal, a full one."""
    plain = [(0x00, 0x00)] * 8
    frame = [(0xFF, 0xFF)] + [(0x81, 0x81)] * 6 + [(0xFF, 0xFF)]
    diagonal = [(1 << row, 0xFF) for row in range(8)]
    full = [(0xFF, 0x00)] * 8
    return bytes(plane for tile in (plain, frame, diagonal, full) for row in tile for plane in row)


def _seal(rom: bytearray) -> None:
    header = 0
    for byte in rom[_HEADER_START:_HEADER_CHECKSUM]:
        header = (header - byte - 1) & 0xFF
    rom[_HEADER_CHECKSUM] = header
    total = (sum(rom) - rom[_GLOBAL_CHECKSUM] - rom[_GLOBAL_CHECKSUM + 1]) & 0xFFFF
    rom[_GLOBAL_CHECKSUM : _GLOBAL_CHECKSUM + 2] = total.to_bytes(2, "big")


def build_rom(*, cgb: bool = False, battery: bool = False) -> bytes:
    """The homebrew ROM: for the original Game Boy, or with *cgb* for the Game Boy Color; with *battery* it has
    cartridge RAM that PyBoy saves to a ``.ram`` file. 32 KiB, valid checksums, no logo.

    ``Path("game.gb").write_bytes(build_rom())`` is a ROM that any emulator runs.
    """
    rom = bytearray(_ROM_SIZE)
    rom[_ENTRY : _ENTRY + 4] = bytes((0x00, 0xC3, _PROGRAM & 0xFF, _PROGRAM >> 8))  # nop; jp
    rom[_HEADER_START : _HEADER_START + len(TITLE)] = TITLE.encode("ascii")
    rom[0x0143] = 0xC0 if cgb else 0x00
    rom[0x0147] = _MAPPER_WITH_BATTERY if battery else _MAPPER_ONLY_ROM
    rom[0x0149] = 0x02 if battery else 0x00  # 8 KiB of cartridge RAM
    code = _program(cgb=cgb)
    rom[_PROGRAM : _PROGRAM + len(code)] = code
    tiles = _tiles()
    rom[_TILES : _TILES + len(tiles)] = tiles
    _seal(rom)
    return bytes(rom)
