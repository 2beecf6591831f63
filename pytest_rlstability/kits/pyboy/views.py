"""Stand-ins for the objects of an emulator, and which views of its screen buffer are still referenced."""

from __future__ import annotations

import gc
import operator
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from pytest_rlstability.kits.pyboy.channel import CHANNELS, HEIGHT, WIDTH
from pytest_rlstability.model.user_code import Site, outwards, users_frame

SHARED_FRAMES = 3
"""Views of this many different frames at one time count as stored observations. Two are normal: one kept on purpose
to watch the live screen, and the observation that the next step replaces."""


class StandIn:
    """Stands for an object of an emulator: ``stand_in[3] = 5`` becomes ``_ask(operator.setitem, 3, 5)``."""

    def _ask(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._ask(getattr, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask(setattr, name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._ask(operator.call, *arguments, **keywords)

    def __getitem__(self, key: Any) -> Any:
        return self._ask(operator.getitem, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask(operator.setitem, key, value)

    def __len__(self) -> int:
        return int(self._ask(len))


class ViewedScreen:
    """A screen that remembers the views of its buffer. Each has a root array of its own, which numpy keeps alive while
    any slice, reshape or image of it is alive."""

    _given: list[tuple[weakref.ref[Any], int, Site, int]]

    def _look(self, attribute: str) -> tuple[Any, int]:
        """The pixels and the number of their frame. *attribute* is what the test reads."""
        raise NotImplementedError

    @property
    def ndarray(self) -> Any:
        return self._view("ndarray").reshape(HEIGHT, WIDTH, CHANNELS)

    @property
    def raw_buffer(self) -> memoryview:
        return memoryview(self._view("raw_buffer"))

    @property
    def image(self) -> Any:
        from PIL import Image

        return Image.frombuffer("RGBA", (WIDTH, HEIGHT), self._view("image"), "raw", "RGBA", 0, 1)

    def _view(self, attribute: str) -> Any:
        import numpy

        pixels, frame = self._look(attribute)
        root = numpy.frombuffer(memoryview(pixels), dtype=numpy.uint8)
        self._given[:] = [given for given in self._given if given[0]() is not None]
        self._given.append((weakref.ref(root), frame, _innermost(), threading.get_ident()))
        return root

    def kept(self) -> list[tuple[int, Site]]:
        """Frame and place of every view that is still referenced."""
        if self._alive():
            _drop_stale_references()
        return self._alive()

    def uncopied(self) -> str:
        """A report of views of one thread that must be stored observations, because they are of so many frames."""
        if not self._stored():
            return ""
        _drop_stale_references()
        if not (stored := self._stored()):
            return ""
        places = "\n".join(f"  frame {frame}, {site.innermost}" for frame, site in stored.items())
        return (
            f"observations of {len(stored)} different frames share the same memory\n{places}\n"
            "  screen.ndarray is a buffer that every tick overwrites: all of them show the newest frame. Keep .copy()."
        )

    def _alive(self) -> list[tuple[int, Site]]:
        return [(frame, site) for reference, frame, site, _ in self._given if reference() is not None]

    def _stored(self) -> dict[int, Site]:
        if len(self._given) < SHARED_FRAMES:
            return {}
        by_thread: dict[int, dict[int, Site]] = {}
        for reference, frame, site, thread in self._given:
            if reference() is not None:
                by_thread.setdefault(thread, {})[frame] = site
        return next((views for views in by_thread.values() if len(views) >= SHARED_FRAMES), {})


def _innermost() -> Site:
    """The user's line alone, for speed: a view is taken at every step."""
    frame = users_frame(sys._getframe(1))
    return Site(((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name),) if frame is not None else ())


def _drop_stale_references() -> None:
    """Collect garbage, and drop the copies of local variables that frames keep: before Python 3.13 a frame whose
    ``f_locals`` was read keeps that copy until ``f_locals`` is read again."""
    for innermost in sys._current_frames().values():
        for frame in outwards(innermost):
            frame.f_locals  # noqa: B018 (reading makes a new copy)
    gc.collect()
