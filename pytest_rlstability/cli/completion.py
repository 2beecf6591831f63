"""Print a script that lets a shell complete the commands and options of rlstability.

  eval "$(rlstability completion bash)"                                  in ~/.bashrc
  eval "$(rlstability completion zsh)"                                   in ~/.zshrc, after compinit
  rlstability completion fish > ~/.config/fish/completions/rlstability.fish

Exit code 0: printed, 2: another shell.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from shlex import quote

from pytest_rlstability.compat.cpython import arguments_of, commands_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="the shell to print it for")


def run(arguments: argparse.Namespace) -> int:
    print("\n".join(_SCRIPTS[arguments.shell](arguments.parser)))
    return 0


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Each option, under each of its names."""
    return ((name, action) for action in arguments_of(parser) for name in action.option_strings)


def _values(parser: argparse.ArgumentParser) -> list[str]:
    """What can be chosen for the arguments and options of a command."""
    return [str(choice) for action in arguments_of(parser) for choice in action.choices or ()]


def _one_line(text: str | None) -> str:
    return " ".join((text or "").replace("%%", "%").split())


def _bash(parser: argparse.ArgumentParser) -> Iterator[str]:
    commands = commands_of(parser)
    yield "_rlstability() {"
    yield '    local words current="${COMP_WORDS[COMP_CWORD]}"'
    yield '    case "$COMP_CWORD:${COMP_WORDS[1]}" in'
    yield f"        1:*) words={quote(' '.join([*commands, *(name for name, _ in _options(parser))]))} ;;"
    for name, (_, command) in commands.items():
        words = [*(option for option, _ in _options(command)), *_values(command)]
        yield f"        *:{name}) words={quote(' '.join(words))} ;;"
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -o default -F _rlstability rlstability"


def _zsh(parser: argparse.ArgumentParser) -> Iterator[str]:
    commands = commands_of(parser)
    yield "_rlstability() {"
    yield "    local -a known"
    yield "    if (( CURRENT == 2 )); then"
    yield f"        known=({' '.join(quote(f'{name}:{_one_line(text)}') for name, (text, _) in commands.items())})"
    yield "        _describe command known"
    yield "        return"
    yield "    fi"
    yield '    case "$words[2]" in'
    for name, (_, command) in commands.items():
        options = [f"{option}:{_one_line(action.help)}" for option, action in _options(command)]
        yield f"        {name}) known=({' '.join(map(quote, [*options, *_values(command)]))}) ;;"
    yield "    esac"
    yield "    _describe option known"
    yield "    _files"
    yield "}"
    yield "compdef _rlstability rlstability"


def _fish(parser: argparse.ArgumentParser) -> Iterator[str]:
    for name, (text, command) in commands_of(parser).items():
        yield f"complete -c rlstability -n __fish_use_subcommand -f -a {name} -d {quote(_one_line(text))}"
        given = f"complete -c rlstability -n '__fish_seen_subcommand_from {name}'"
        for action in arguments_of(command):
            names = [f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in action.option_strings]
            if names:
                value = "" if action.nargs == 0 else " -r"
                yield f"{given} {' '.join(names)}{value} -d {quote(_one_line(action.help))}"
        if values := _values(command):
            yield f"{given} -a {quote(' '.join(values))}"


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
