"""Which views of an emulator's screen buffer are still referenced, and from which frames."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import FrameType
from typing import Any

from pytest_rlstability.pyboy.wire import HEIGHT, WIDTH
from pytest_rlstability.sites import Site, users_frame

SHARED_FRAMES = 3
"""Views of this many different frames at one time are taken for stored observations. Two are ordinary: one kept
on purpose as a window on the live screen, and the observation that the next step replaces."""


class LiveViews:
    """Hands out views of a screen buffer, each with a root of its own: numpy keeps the root alive for as long
    as any slice, reshape or image of it is."""

    def __init__(self) -> None:
        self._given: list[tuple[weakref.ref[Any], int, Site, int]] = []

    def array(self, pixels: Any, frame: int) -> Any:
        return self._root(pixels, frame).reshape(pixels.shape)

    def image(self, pixels: Any, frame: int) -> Any:
        from PIL import Image

        return Image.frombuffer("RGBA", (WIDTH, HEIGHT), self._root(pixels, frame), "raw", "RGBA", 0, 1)

    def _root(self, pixels: Any, frame: int) -> Any:
        import numpy

        root = numpy.frombuffer(memoryview(pixels), dtype=numpy.uint8)
        self._given = [given for given in self._given if given[0]() is not None]
        self._given.append((weakref.ref(root), frame, _innermost(), threading.get_ident()))
        return root

    def kept(self) -> list[tuple[int, Site]]:
        """Frame and place of every view that somebody still holds."""
        if self._alive():
            let_go()
        return self._alive()

    def sharing_memory(self) -> list[tuple[int, Site]]:
        """Views of so many different frames, taken by one thread, that they must be stored observations; else none."""
        if not self._stored():
            return []
        let_go()
        return self._stored()

    def _alive(self) -> list[tuple[int, Site]]:
        return [(frame, site) for reference, frame, site, _ in self._given if reference() is not None]

    def _stored(self) -> list[tuple[int, Site]]:
        if len(self._given) < SHARED_FRAMES:
            return []
        by_thread: dict[int, dict[int, Site]] = {}
        for reference, frame, site, thread in self._given:
            if reference() is not None:
                by_thread.setdefault(thread, {})[frame] = site
        return next((list(views.items()) for views in by_thread.values() if len(views) >= SHARED_FRAMES), [])


def _innermost() -> Site:
    """The user's line alone: a view is taken at every step, and this is most of what that costs."""
    frame = users_frame(sys._getframe(1))
    return Site(((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name),) if frame is not None else ())


def describe_shared(shared: list[tuple[int, Site]]) -> str:
    places = "\n".join(f"  frame {frame}, {site.innermost}" for frame, site in shared)
    return (
        f"observations of {len(shared)} different frames are one and the same memory\n{places}\n"
        "  screen.ndarray is a buffer that every tick overwrites: all of them show the newest frame. Keep .copy()."
    )


def let_go() -> None:
    """Drop what holds a view without anybody meaning to: garbage, and the copy of its variables that a frame keeps
    (before Python 3.13) since somebody looked at them, until somebody looks again."""
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            frame.f_locals  # noqa: B018 (looking is what renews the copy)
            frame = frame.f_back
    gc.collect()
