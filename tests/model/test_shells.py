"""Commands as they are typed into the shells of Unix and Windows."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pytest_rlstability.model.shells import Shell, join_command, split_command

NASTY = [
    "plain", "a b", "test_a.py::test_b[x-1]", "don't", 'say "hi"', "100%", "%PATH%", "$HOME", "`date`", "a&b|c<d>e^f",
    "(x)", "x;y", "a,b", "@x", "#1", "{}", "!", "*?", "\\", "C:\\a b\\", '\\"', 'ends with "', "'", '"', "''", "", "é",
]  # fmt: skip


@pytest.mark.parametrize("shell", Shell)
@pytest.mark.parametrize("word", NASTY)
def test_a_command_is_read_as_it_was_meant(shell: Shell, word: str) -> None:
    words = ["python", "-m", "pytest", word, "last"]
    assert split_command(join_command(words, shell)) == words


def test_all_words_at_once() -> None:
    for shell in Shell:
        assert split_command(join_command(NASTY, shell)) == NASTY


@pytest.mark.parametrize(
    ("word", "cmd", "powershell"),
    [
        ("tests/test_a.py::test_b", "tests/test_a.py::test_b", "tests/test_a.py::test_b"),
        ("test_a.py::test_b[x y]", '"test_a.py::test_b[x y]"', "'test_a.py::test_b[x y]'"),
        ("test_b[a&b]", '"test_b[a&b]"', "'test_b[a&b]'"),
        ("test_b[$x]", '"test_b[$x]"', "'test_b[$x]'"),
        ("test_b[it's]", '"test_b[it\'s]"', "'test_b[it''s]'"),
        ("test_b[100%]", '^"test_b[100^%]^"', "'test_b[100%]'"),
        ('test_b["]', '^"test_b[\\^"]^"', '"test_b[\\`"]"'),
    ],
)
def test_what_windows_is_given(word: str, cmd: str, powershell: str) -> None:
    assert join_command([word], Shell.CMD) == cmd
    assert join_command([word], Shell.POWERSHELL) == powershell


@pytest.mark.parametrize("word", NASTY)
@pytest.mark.parametrize("shell", ["cmd", "sh"])
def test_a_real_shell_passes_it_on(word: str, shell: str) -> None:
    if (shell == "cmd") is not (sys.platform == "win32"):
        pytest.skip(f"{sys.platform} has no {shell}")
    if shell == "cmd" and word == "%PATH%":
        pytest.skip("Wine's cmd.exe expands a variable between escaped percent signs too")
    print_it = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", word]
    line = join_command(print_it, Shell.CMD if shell == "cmd" else Shell.POSIX)
    shown = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout) == [word]
