"""Errors that a test does not notice: exceptions in hooks and threads, and screens that cannot be saved as JPEG."""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from pytest_rlstability.model.user_code import here

_REFUSED = "cannot write mode RGBA as JPEG"
_ADVICE = f"{_REFUSED}: PyBoy's screen has an alpha channel and JPEG has none; save image.convert('RGB')"


class UnnoticedErrors:
    """Adds to *findings*: exceptions that PyBoy swallows in its hooks, those that end a thread, unless they are
    *already_reported*, and RGBA screens saved as JPEG, because capture loops often swallow that error. It is explained,
    and a later save to the same place that works clears it."""

    def __init__(self, findings: dict[str, str], already_reported: type[BaseException]) -> None:
        self._findings = findings
        self._already_reported = already_reported
        self._patch = pytest.MonkeyPatch()
        self._unraisable_before = sys.unraisablehook

    def __enter__(self) -> UnnoticedErrors:
        from PIL import Image

        self._patch.setattr(sys, "unraisablehook", self._unraisable)
        self._patch.setattr(threading, "excepthook", self._thread_died)
        self._patch.setattr(Image.Image, "save", self._explaining(Image.Image.save))
        return self

    def __exit__(self, *exception: object) -> None:
        self._patch.undo()

    def _unraisable(self, unraisable: Any) -> None:
        if "pyboy" not in f"{unraisable.object} {unraisable.err_msg}".lower():
            self._unraisable_before(unraisable)
            return
        text = "".join(traceback.format_exception(unraisable.exc_value))
        self._findings.setdefault("hook", f"an exception was swallowed in a PyBoy hook\n{text}")

    def _thread_died(self, death: Any) -> None:
        text = "".join(traceback.format_exception(death.exc_value))
        if not issubclass(death.exc_type, self._already_reported) and _ADVICE not in text:
            name = death.thread.name if death.thread is not None else "unknown"
            self._findings.setdefault(f"thread {name}", f"thread {name!r} died unnoticed\n{text}")

    def _explaining(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def save(image: Any, place: Any, *arguments: Any, **keywords: Any) -> None:
            name = os.fspath(place) if isinstance(place, (str, os.PathLike)) else f"file object {id(place):#x}"
            try:
                original(image, place, *arguments, **keywords)
            except OSError as error:
                if _REFUSED not in str(error):
                    raise
                self._findings[f"jpeg {name}"] = f"{_ADVICE}\n  {name}, at {here().innermost}"
                raise OSError(_ADVICE) from error
            self._findings.pop(f"jpeg {name}", None)

        return save
