"""A homebrew Game Boy program, assembled here, so that tests need no other ROM.

The background scrolls by one pixel a frame, the joypad can be read back from memory, and a counter is driven
by a random number generator that every pressed button changes: the same inputs give the same bytes, other
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
_ADDRESSES = {
    "JOYPAD": JOYPAD, "FRAMES": FRAMES, "RANDOM": RANDOM, "RANDOM_HIGH": RANDOM + 1, "COUNTER": COUNTER,
    "TILES": _TILES,
}  # fmt: skip

_GRAPHICS = """
    F3 31 FE FF                             ; di; ld sp,$FFFE
beam:
    F0 44 FE 90 20 beam                     ; ldh a,[LY]; cp 144; jr nz
    AF E0 40                                ; xor a; ldh [LCDC],a
    21 00 80 11 TILES 06 40                 ; ld hl,$8000; ld de,tiles; ld b,64
tile:
    1A 22 13 05 20 tile                     ; ld a,[de]; ld [hl+],a; inc de; dec b; jr nz
    21 00 98                                ; ld hl,$9800
map:
    7D 07 07 07 AD E6 03 22                 ; a = (l rotated by 3 ^ l) & 3; ld [hl+],a
    7C FE 9C 20 map                         ; ld a,h; cp $9C; jr nz
"""
_PALETTE = """
    3E 80 E0 68                             ; BCPS: palette 0, auto-increment
    3E FF E0 69 3E 7F E0 69                 ; BCPD: four colours of two bytes
    3E BF E0 69 3E 2A E0 69
    3E 06 E0 69 3E 6A E0 69
    3E 84 E0 69 3E 18 E0 69
"""
_MAIN = """
    21 JOYPAD 06 10 AF                      ; ld hl,JOYPAD; ld b,16; xor a
clear:
    22 05 20 clear                          ; ld [hl+],a; dec b; jr nz
    3E A5 EA RANDOM                         ; the generator must not start at zero
    3E E4 E0 47                             ; BGP
    3E 01 E0 FF AF E0 0F                    ; IE = vertical blank; IF = 0
    3E 91 E0 40                             ; LCDC: screen and background on
frame:
    76 00 AF E0 0F                          ; halt; nop; IF = 0
    3E 20 E0 00 F0 00 F0 00 2F E6 0F 47     ; directions -> b
    3E 10 E0 00 F0 00 F0 00 2F E6 0F        ; buttons -> a
    CB 37 B0 47 EA JOYPAD 3E 30 E0 00       ; swap a; or b; ld b,a; ld [JOYPAD],a; b keeps the held buttons
    21 FRAMES 34 20 counted                 ; ld hl,FRAMES; inc [hl]; jr nz
    23 34                                   ; inc hl; inc [hl]
counted:
    21 RANDOM 2A 66 6F 29 30 shifted        ; hl = [RANDOM]; add hl,hl; jr nc
    7D EE 2D 6F                             ; l ^= the feedback of x^16 + x^5 + x^3 + x^2 + 1
shifted:
    7C A8 67 B5 20 nonzero                  ; h ^= buttons; or l; jr nz
    2C                                      ; inc l
nonzero:
    7D EA RANDOM 7C EA RANDOM_HIGH          ; [RANDOM] = hl
    7D E6 07 20 drawn                       ; ld a,l; and 7; jr nz
    21 COUNTER 34                           ; ld hl,COUNTER; inc [hl]
drawn:
    F0 43 3C E0 43                          ; SCX += 1
    CB 60 28 scrolled                       ; bit 4,b; jr z: the A button scrolls down as well
    F0 42 3C E0 42                          ; SCY += 1
scrolled:
    18 frame                                ; jr
"""


def _assemble(listing: str) -> bytes:
    """The code of a *listing*: bytes in hexadecimal, ``label:``, the labels of relative jumps, names of addresses."""
    code, labels, jumps = bytearray(), dict[str, int](), dict[int, str]()
    for word in " ".join(line.partition(";")[0] for line in listing.splitlines()).split():
        if word.endswith(":"):
            labels[word[:-1]] = len(code)
        elif word in _ADDRESSES:
            code += _ADDRESSES[word].to_bytes(2, "little")
        elif len(word) == 2:
            code.append(int(word, 16))
        else:
            jumps[len(code)] = word
            code.append(0)
    for place, label in jumps.items():
        distance = labels[label] - (place + 1)
        if not -128 <= distance <= 127:
            raise ValueError(f"jump to {label} is out of reach ({distance} bytes)")
        code[place] = distance & 0xFF
    return bytes(code)


def _tiles() -> bytes:
    """Four 8x8 tiles of two bit planes: empty, a frame, a diagonal, full."""
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
    cartridge RAM that PyBoy saves to a ``.ram`` file. 32 KiB, valid checksums, no logo."""
    rom = bytearray(_ROM_SIZE)
    rom[_ENTRY : _ENTRY + 4] = bytes((0x00, 0xC3, _PROGRAM & 0xFF, _PROGRAM >> 8))  # nop; jp
    rom[_HEADER_START : _HEADER_START + len(TITLE)] = TITLE.encode("ascii")
    rom[0x0143] = 0xC0 if cgb else 0x00
    rom[0x0147] = _MAPPER_WITH_BATTERY if battery else _MAPPER_ONLY_ROM
    rom[0x0149] = 0x02 if battery else 0x00  # 8 KiB of cartridge RAM
    code = _assemble(_GRAPHICS + (_PALETTE if cgb else "") + _MAIN)
    rom[_PROGRAM : _PROGRAM + len(code)] = code
    tiles = _tiles()
    rom[_TILES : _TILES + len(tiles)] = tiles
    _seal(rom)
    return bytes(rom)
