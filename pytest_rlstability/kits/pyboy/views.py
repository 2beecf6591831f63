"""Which views of an emulator's screen buffer are still referenced, and from which frames."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

from pytest_rlstability.kits.pyboy.channel import HEIGHT, WIDTH
from pytest_rlstability.model.references import drop_stale_references
from pytest_rlstability.model.user_code import Site, users_frame

SHARED_FRAMES = 3
"""Views of this many different frames at one time count as stored observations. Two are normal: one kept on purpose
to watch the live screen, and the observation that the next step replaces."""


class LiveViews:
    """Gives out views of a screen buffer, each with its own root array: numpy keeps the root alive while any slice,
    reshape or image of it is alive."""

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
        """Frame and place of every view that is still referenced."""
        if self._alive():
            drop_stale_references()
        return self._alive()

    def sharing_memory(self) -> list[tuple[int, Site]]:
        """The views of one thread, if they are of so many frames that they must be stored observations."""
        if not self._stored():
            return []
        drop_stale_references()
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
    """The user's line alone, for speed: a view is taken at every step."""
    frame = users_frame(sys._getframe(1))
    return Site(((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name),) if frame is not None else ())


def describe_shared(shared: list[tuple[int, Site]]) -> str:
    places = "\n".join(f"  frame {frame}, {site.innermost}" for frame, site in shared)
    return (
        f"observations of {len(shared)} different frames share the same memory\n{places}\n"
        "  screen.ndarray is a buffer that every tick overwrites: all of them show the newest frame. Keep .copy()."
    )
