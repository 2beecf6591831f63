"""Which Python wrote a piece of bytecode, found from the bytes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Version = tuple[int, int]

CODE_ARGUMENTS: Mapping[int, tuple[Version, Version]] = {
    15: ((3, 0), (3, 7)),
    16: ((3, 8), (3, 10)),
    18: ((3, 11), (3, 99)),
}
"""Number of arguments of ``types.CodeType`` -> first and last Python that takes that many."""
NEVER: tuple[Version, Version] = ((9, 9), (0, 0))


@dataclass(frozen=True)
class _Instructions:
    """What a code object must look like to this Python: the opcodes it defines, the inline caches behind each."""

    defined: frozenset[int]
    caches: Mapping[int, int]
    resume: int | None

    def could_have_written(self, code: bytes) -> bool:
        position, resumes = 0, 0
        while position + 1 < len(code):
            opcode = code[position]
            if opcode not in self.defined:
                return False
            position += 2
            resumes += opcode == self.resume
            end = position + 2 * self.caches.get(opcode, 0)
            # A written cache is all zeros: the pickle holds the code as compiled, not as specialised.
            if any(code[position:end]) or end > len(code):
                return False
            position = end
        return position == len(code) and (self.resume is None or resumes > 0)


def _ranges(text: str) -> frozenset[int]:
    spans = (span.partition("-") for span in text.split())
    return frozenset(number for first, _, last in spans for number in range(int(first), int(last or first) + 1))


# From each Python's own ``opcode`` module; CACHE (0) is left out because it never stands where an instruction does.
_INSTRUCTIONS: Mapping[Version, _Instructions] = {
    (3, 10): _Instructions(_ranges(
        "1-6 9-12 15-17 19-20 22-34 49-52 54-57 59-79 82-87 89-119 121-122 124-126 129-133 135-138 141-148 152"
        " 154-157 160-165"
    ), {}, resume=None),
    (3, 11): _Instructions(_ranges(
        "1-2 9-12 15 25 30-33 35-37 49-54 60-61 68-71 74-75 82-112 114-120 122-126 128-140 142 144-149 151-152"
        " 155-157 160 162-166 171-176"
    ), {25: 4, 60: 1, 92: 1, 95: 4, 106: 4, 107: 2, 116: 5, 122: 1, 160: 10, 166: 1, 171: 4}, resume=151),
    (3, 12): _Instructions(_ranges(
        "1-5 9 11-12 15 17 25-27 30-33 35-37 49-55 60-61 68-69 71 74-75 83 85 87 89-110 114-147 149-152 155-157"
        " 162-165 171-176"
    ), {25: 1, 60: 1, 92: 1, 93: 1, 95: 4, 106: 9, 107: 1, 116: 4, 122: 1, 123: 1, 141: 1, 171: 3}, resume=151),
    (3, 13): _Instructions(_ranges("1-2 4-118 149"), {
        5: 1, 39: 1, 40: 3, 45: 1, 53: 3, 58: 1, 59: 1, 72: 1, 77: 1, 82: 9, 91: 4, 93: 1, 97: 1, 98: 1, 99: 1,
        100: 1, 104: 1, 108: 4, 117: 1,
    }, resume=149),
    (3, 14): _Instructions(_ranges("1-2 4-120 128"), {
        38: 1, 39: 3, 44: 5, 52: 3, 55: 3, 56: 1, 57: 1, 70: 1, 75: 1, 80: 9, 92: 4, 96: 1, 100: 1, 101: 1, 102: 1,
        103: 1, 106: 1, 110: 4, 119: 1,
    }, resume=128),
    (3, 15): _Instructions(_ranges("1-2 4-119 128"), {
        4: 1, 36: 1, 37: 3, 42: 5, 50: 3, 53: 3, 54: 1, 55: 1, 68: 1, 70: 1, 74: 1, 79: 9, 91: 4, 95: 1, 99: 1,
        100: 1, 101: 1, 102: 1, 105: 1, 109: 4, 118: 1, 128: 1,
    }, resume=128),
}  # fmt: skip


def writers(argument_count: int, code: bytes | None) -> tuple[Version, ...]:
    """The Pythons with a known instruction set that could have written this code object, oldest first."""
    return tuple(
        version
        for version, instructions in _INSTRUCTIONS.items()
        if takes_arguments(version, argument_count) and (code is None or instructions.could_have_written(code))
    )


def takes_arguments(version: Version, argument_count: int) -> bool:
    """Whether ``types.CodeType`` of *version* accepts this many arguments."""
    first, last = CODE_ARGUMENTS.get(argument_count, NEVER)
    return first <= version <= last
