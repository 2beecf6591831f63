"""What reports that write files share: trouble does not end the run, and a file is replaced whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO


class FileReport:
    """A report in a file: *asked* is the option with its value, *loss* what it means that writing failed."""

    def __init__(self, asked: str, loss: str) -> None:
        self.trouble = ""
        self._asked, self._loss = asked, loss

    def lines(self) -> Sequence[str]:
        return ()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Note an ``OSError`` in the block as this report's trouble."""
        self.trouble = ""
        try:
            yield
        except OSError as error:
            self.trouble = f"{self._asked}: {error.strerror or error}; {self._loss}"


def private_opener(path: str, flags: int) -> int:
    """Opens a file that only its owner can read if it is new: it will hold what tests print and raise."""
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A file to write, which replaces *path* at the end of the block. After an exception *path* is as it was. A new
    file is its owner's only; one that was there keeps its mode."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(draft, "w", encoding="utf-8", opener=private_opener) as file:
            yield file
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, draft)
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
