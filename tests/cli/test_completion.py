"""Shell completion: each shell takes the script, and completes commands, options and values."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from pytest_rlstability.__main__ import COMMANDS, main, make_parser
from pytest_rlstability.cli.completion import _options
from pytest_rlstability.compat.cpython import commands_of

BASH = """
COMP_WORDS=(rlstability {words}); COMP_CWORD={position}
_rlstability
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def shell(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_in_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(name, capsys)
    for command, (_, parser) in commands_of(make_parser()).items():
        assert command in text
        for option, _ in _options(parser):
            assert (f"-l {option[2:]}" if name == "fish" and option.startswith("--") else option.lstrip("-")) in text
    assert set(commands_of(make_parser())) == set(COMMANDS)


def test_bash_completes(capsys: pytest.CaptureFixture[str]) -> None:
    text = script("bash", capsys)

    def complete(*words: str) -> list[str]:
        asked = BASH.format(words=" ".join(f"'{word}'" for word in words), position=len(words))
        command = [shell("bash"), "--norc", "-c", text + asked]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert complete("re") == ["report", "rerun"]
    assert complete("--v") == ["--version"]
    assert complete("report", "--j") == ["--junit"]
    assert complete("completion", "f") == ["fish"]
    assert complete("report", "run.js") == [], "bash completes files itself"


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_others_take_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(name, capsys)
    result = subprocess.run([shell(name), "-n"], input=text, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_fish_completes(capsys: pytest.CaptureFixture[str]) -> None:
    text = script("fish", capsys) + "complete -C 'rlstability re'\ncomplete -C 'rlstability report --ju'\n"
    command = [shell("fish"), "--no-config", "-c", text]
    answered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split("\t")[0] for line in answered.splitlines()] == ["report", "rerun", "--junit"]


def test_another_shell_is_a_usage_error() -> None:
    command = [sys.executable, "-m", "pytest_rlstability", "completion", "tcsh"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "choose from" in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_and_the_exit_codes(name: str) -> None:
    _, parser = commands_of(make_parser())[name]
    text = parser.format_help()
    assert f"  rlstability {name} " in text or f"$(rlstability {name} " in text
    assert "Exit code" in text or "Exit status" in text
