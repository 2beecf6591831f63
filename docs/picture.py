"""Draws docs/picture.svg: a real run of examples/first_look, as the terminal shows it, without its longer sections.

pip install rich && python docs/picture.py
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 96
LEFT_OUT = ("Python stacks:", "Process:", "Threads:", "who holds it:", "lines whose", "objects that", "to allow it:")
"""Sections that the picture leaves out. Three dots stand for each group of them."""
COMMAND = "pytest --rl-stability"


def record() -> str:
    """What the terminal shows, colours included."""
    options = ["--color=yes", "--no-header", "--rl-native=off", "--rl-seed=1", "-p", "no:cacheprovider"]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = ["-p", "pytest_timeout", "-p", "pytest_rlstability.plugin"]
    with tempfile.TemporaryDirectory() as directory:
        game = Path(directory, "game")
        shutil.copytree(ROOT / "examples" / "first_look", game)
        command = [sys.executable, "-m", "pytest", *plugins, "--rl-stability", *options]
        shown = subprocess.run(command, cwd=game, env=environment, stdout=subprocess.PIPE, text=True).stdout
    return shown.replace(str(game), "/game").replace(sys.base_prefix, "/usr")


def shorten(shown: str) -> str:
    """*shown* without the sections that are left out, and without signatures and versions."""
    lines: list[str] = []
    leaving_out = False
    for line in shown.splitlines():
        plain = re.sub(r"\x1b\[[\d;]*m", "", line)
        if plain.startswith(LEFT_OUT):
            leaving_out = True
            while not lines[-1]:
                lines.pop()
            if lines[-1] != "...":
                lines += ["..."]
        elif plain.startswith("  unchanged:"):
            leaving_out = True
        elif not plain.startswith((" ", "Signature")) and plain:
            leaving_out = False
        unwanted = leaving_out or plain.startswith(("Signature", "rl-stability: Python", "  The tests after", "  It "))
        if not unwanted and (plain or lines[-1] != "..."):
            lines.append(line)
    return "\n".join(lines)


def main() -> None:
    console = Console(record=True, width=COLUMNS + 2, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {COMMAND}", style="bold"))
    console.print(Text.from_ansi(shorten(record())))
    picture = console.export_svg(title="examples/first_look")
    # The page must not fetch anything: a system's own monospace font will do.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace("Fira Code", "ui-monospace")
    (ROOT / "docs" / "picture.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
