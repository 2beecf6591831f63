"""Errors that a test does not notice: exceptions in hooks and threads, and screens that cannot be saved as JPEG."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import Any

from pytest_rlstability.model.user_code import Site, here

_REFUSED = "cannot write mode RGBA as JPEG"
_ADVICE = f"{_REFUSED}: PyBoy's screen has an alpha channel and JPEG has none; save image.convert('RGB')"

Finding = tuple[str, str]


def _is_pyboys(unraisable: Any) -> bool:
    return "pyboy" in f"{unraisable.object} {unraisable.err_msg}".lower()


class LostExceptions:
    """Collects exceptions that PyBoy swallows in its hooks, and those that end a thread."""

    def __init__(self) -> None:
        self._swallowed: list[str] = []
        self._thread_deaths: list[tuple[type[BaseException], str, str]] = []

    def __enter__(self) -> LostExceptions:
        self._unraisable_before, self._thread_before = sys.unraisablehook, threading.excepthook
        sys.unraisablehook, threading.excepthook = self._unraisable, self._thread_died
        return self

    def __exit__(self, *exception: object) -> None:
        sys.unraisablehook, threading.excepthook = self._unraisable_before, self._thread_before

    def _unraisable(self, unraisable: Any) -> None:
        if not _is_pyboys(unraisable):
            self._unraisable_before(unraisable)
            return
        self._swallowed.append("".join(traceback.format_exception(unraisable.exc_value)))

    def _thread_died(self, death: Any) -> None:
        name = death.thread.name if death.thread is not None else "unknown"
        self._thread_deaths.append((death.exc_type, name, "".join(traceback.format_exception(death.exc_value))))

    def findings(self, already_reported: type[BaseException]) -> list[Finding]:
        """What to report, without exceptions of the type *already_reported*."""
        found = [("hook", f"an exception was swallowed in a PyBoy hook\n{text}") for text in self._swallowed]
        for kind, name, text in self._thread_deaths:
            if not issubclass(kind, already_reported) and _ADVICE not in text:
                found.append((f"thread {name}", f"thread {name!r} died unnoticed\n{text}"))
        return found


class JpegSaves:
    """Explains the error when an RGBA screen is saved as JPEG, and remembers it: capture loops often swallow it. A
    later save to the same place that works clears it."""

    def __init__(self) -> None:
        self._refused: dict[str, Site] = {}

    def __enter__(self) -> JpegSaves:
        from PIL import Image

        self._original = Image.Image.save
        original, refused = self._original, self._refused

        def save(image: Any, place: Any, *arguments: Any, **keywords: Any) -> None:
            name = os.fspath(place) if isinstance(place, (str, os.PathLike)) else f"file object {id(place):#x}"
            try:
                original(image, place, *arguments, **keywords)
            except OSError as error:
                if _REFUSED not in str(error):
                    raise
                refused[str(name)] = here()
                raise OSError(_ADVICE) from error
            refused.pop(str(name), None)

        Image.Image.save = save
        return self

    def __exit__(self, *exception: object) -> None:
        from PIL import Image

        Image.Image.save = self._original

    def findings(self) -> list[Finding]:
        return [(f"jpeg {name}", f"{_ADVICE}\n  {name}, at {site.innermost}") for name, site in self._refused.items()]
