"""Writes a command as it is typed into a shell of Unix, into Windows' cmd.exe or PowerShell, and reads it again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from enum import StrEnum


class Shell(StrEnum):
    POSIX = "posix"
    CMD = "cmd"
    POWERSHELL = "powershell"


_PLAIN = re.compile(r"[\w./:\\=+-]+", re.ASCII)
"""What neither shell of Windows reads in another way."""
_CMD_READS_IN_QUOTES = re.compile(r'["%]')
_CMD_READS = re.compile(r'([()%!^"<>&|])')
_POWERSHELL_WORD = re.compile(r"""'((?:[^']|'')*)'|"((?:[^`"]|`.)*)"|(\S+)""")


def join_command(words: Sequence[str], shell: Shell) -> str:
    """The line to type.

    >>> print(join_command(["pytest", "test_a.py::test_b[x y]"], Shell.CMD))
    pytest "test_a.py::test_b[x y]"
    """
    if shell is Shell.POSIX:
        return shlex.join(words)
    quote = _cmd_word if shell is Shell.CMD else _powershell_word
    return " ".join(word if _PLAIN.fullmatch(word) else quote(word) for word in words)


def split_command(line: str) -> list[str]:
    """The words of a line that ``join_command`` wrote, on whatever system."""
    for shell in Shell:
        try:
            words = _split(line, shell)
        except ValueError:
            continue
        if join_command(words, shell) == line:
            return words
    return shlex.split(line)


def _split(line: str, shell: Shell) -> list[str]:
    if shell is Shell.POSIX:
        return shlex.split(line)
    if shell is Shell.CMD:
        return _arguments(_after_cmd(line))
    return [_from_powershell(*found.groups()) for found in _POWERSHELL_WORD.finditer(line)]


def _from_powershell(quoted: str | None, expanded: str | None, plain: str | None) -> str:
    if quoted is not None:
        return quoted.replace("''", "'")
    return plain or _without_escapes(re.sub("`(.)", r"\1", expanded or ""))


def _with_escapes(word: str) -> str:
    """As a program of Windows takes it between double quotes: backslashes count before a quote only."""
    return re.sub(r'(\\*)"', r'\1\1\\"', word)


def _without_escapes(word: str) -> str:
    return re.sub(r'(\\*)\\"', lambda found: found[1][::2] + '"', word)


def _cmd_word(word: str) -> str:
    ending = re.search(r"\\*$", word)
    quoted = f'"{_with_escapes(word)}{ending[0] if ending else ""}"'
    # A quote inside, or a variable, has an effect between quotes too.
    return _CMD_READS.sub(r"^\1", quoted) if _CMD_READS_IN_QUOTES.search(word) else quoted


def _powershell_word(word: str) -> str:
    """A quote inside must reach the program with a backslash, and only double quotes allow both."""
    if '"' not in word:
        return "'" + word.replace("'", "''") + "'"
    return '"' + re.sub(r'([`$"])', r"`\1", _with_escapes(word)) + '"'


def _after_cmd(line: str) -> str:
    """What cmd.exe passes on of a line."""
    return re.sub(r'("[^"]*")|\^(.)', lambda found: found[1] or found[2], line)


def _arguments(line: str) -> list[str]:
    """The arguments that a program of Windows makes of its command line."""
    words = re.findall(r'(?:"(?:[^"\\]|\\+"|\\)*?(?<!\\)(?:\\\\)*"|[^\s"])+', line)
    if "".join(words).replace(" ", "") != line.replace(" ", ""):
        raise ValueError(f"a quote is not closed: {line}")
    return [_argument(word) for word in words]


def _argument(word: str) -> str:
    if not word.startswith('"'):
        return word
    inside = word[1:-1]
    ending = re.search(r"\\*$", inside)
    length = len(ending[0]) if ending else 0
    return _without_escapes(inside[: len(inside) - length]) + "\\" * (length // 2)
