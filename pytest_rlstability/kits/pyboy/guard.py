"""``pyboy_guard``: an emulator in this process whose misuse fails in every run."""

from __future__ import annotations

import _thread
import functools
import operator
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pytest_rlstability.child.locks.patch import install, uninstall
from pytest_rlstability.kits.pyboy.launch import place_rom
from pytest_rlstability.kits.pyboy.locks import held_locks
from pytest_rlstability.kits.pyboy.ordering import Access, AccessLog, Order
from pytest_rlstability.kits.pyboy.views import StandIn, ViewedScreen
from pytest_rlstability.model.user_code import Site, here

_READING = frozenset({
    "game_area", "game_area_collision", "get_sprite", "get_sprite_by_tile_identifier", "get_tile", "save_state",
    "symbol_lookup", "screen", "sound", "sgb", "rumble", "tilemap_background", "tilemap_window",
})  # fmt: skip
"""Methods that only read, and parts whose methods do; calling any other method counts as a change."""
_SHOWN: dict[Callable[..., Any], str] = {
    getattr: ".{0}", setattr: ".{0} = ...", operator.getitem: "[...]", operator.setitem: "[...] = ...",
    operator.call: "()", len: ".__len__()",
}  # fmt: skip
"""How a use is called in a report."""
_PLAIN = (type(None), bool, int, float, str, bytes, tuple, list, dict)
_NAME = "pyboy_guard"
_PREFIX = f"{_NAME}: "
_MISUSE = "misuse"
_JPEG_REFUSED = "cannot write mode RGBA as JPEG"
_JPEG_ADVICE = f"{_JPEG_REFUSED}: PyBoy's screen has an alpha channel and JPEG has none; save image.convert('RGB')"


class PyBoyMisuseError(pytest.fail.Exception, RuntimeError):  # type: ignore[name-defined, misc]
    """The guarded emulator was about to be used in a way that crashes some runs; the call was not made. The test fails
    even if the exception is swallowed."""

    __module__ = "builtins"  # the summary shows the name alone, as for pytest's own ``Failed``

    def __init__(self, report: str) -> None:
        super().__init__(report, pytrace=False)  # type: ignore[call-arg]


class GuardedPyBoy:
    """A PyBoy with its own API, each use of which is judged first."""

    def __init__(self, emulator: Any, guard: GuardFactory) -> None:
        self._emulator = emulator
        self._guard = guard
        self._log = AccessLog()
        self._mutex = _thread.RLock()
        self._running: dict[int, Access] = {}
        self._stopped_at: Site | None = None
        self.memory = GuardedPart(self, emulator.memory, "memory")
        self.screen = GuardedScreen(self, emulator.screen)

    # Judging

    def use(self, operation: str, *, changes: bool, call: Callable[[], Any]) -> Any:
        """Make *call* if this thread may do so now; for the emulator's parts, not for tests."""
        access = self._judge(operation, changes=changes)
        self._running[access.key] = access
        try:
            return call()
        finally:
            del self._running[access.key]

    def _judge(self, operation: str, *, changes: bool) -> Access:
        order = self._guard.order
        order.observe(self)  # what hand_over() published
        key, clock = order.key(), order.clock()
        # What the only thread did is ordered before any thread that starts later, so its locks do not matter.
        shared = threading.active_count() > 1 or self._log.is_shared(key)
        locks = held_locks(sys._getframe() if shared else None)
        access = Access(operation, changes, threading.current_thread().name, key, clock[key], locks, here())
        with self._mutex:
            if (stopped := self._stopped_at) is not None:
                text = f"PyBoy is used after stop()\n{_described(access)}\n  stopped at {stopped.innermost}"
                self._guard.misused(text)
            met = self._meets(access)
            raced = met or self._log.conflict(access, clock)
            if raced is not None:
                self._guard.misused(_race(raced, access, met=met is not None))
            self._log.add(access, clock)
        return access

    def _meets(self, access: Access) -> Access | None:
        others = [other for key, other in list(self._running.items()) if key != access.key]
        return next((other for other in others if other.changes or access.changes), None)

    def hand_over(self) -> None:
        """Let any thread use the emulator next: ``boy.hand_over(); self.your_turn = True``. It is for threads that
        synchronize by means which the guard cannot see."""
        self._guard.order.publish(self)

    # PyBoy's API

    def tick(self, count: int = 1, render: bool = True, sound: bool = True) -> bool:
        if uncopied := self.screen.uncopied():
            self._guard.found("observations that were not copied", uncopied)
        call = f"tick({count})"
        return bool(self.use(call, changes=True, call=lambda: self._emulator.tick(count, render, sound)))

    def stop(self, *arguments: Any, **keywords: Any) -> None:
        """As PyBoy's; a second call does nothing. No view of the screen may be kept after it."""
        if self._stopped_at is not None:
            return
        self.use("stop()", changes=True, call=lambda: self._emulator.stop(*arguments, **keywords))
        self._stopped_at = here()
        if kept := self.screen.kept():
            self._guard.found("screen views kept after stop()", _kept_views(kept, self._stopped_at))
        self._guard.forget(self)

    def end(self) -> None:
        """Stop the emulator at the end of the test, unless another thread may still use it; for the fixture."""
        if self._stopped_at is not None:
            return
        names = {thread.name for thread in threading.enumerate()}
        order = self._guard.order
        late = [use for use in self._log.unordered(order.key(), order.clock()) if use.thread in names]
        if late:
            text = f"the test ended while another thread may still use PyBoy\n{_described(late[0])}\n"
            advice = "  Join the thread, then stop() the emulator."
            self._guard.found("the test ended before its threads", f"{text}{advice}")
        else:
            self._emulator.stop(save=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if callable(getattr(type(self._emulator), name, None)):
            return GuardedPart(self, getattr(self._emulator, name), name)
        value = self.use(name, changes=False, call=lambda: getattr(self._emulator, name))
        return value if isinstance(value, _PLAIN) else GuardedPart(self, value, name)

    def __enter__(self) -> GuardedPyBoy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


class GuardedPart(StandIn):
    """A method or a part of a guarded emulator (``memory``, ``tilemap_background``, ...), judged like the whole."""

    def __init__(self, boy: GuardedPyBoy, part: Any, name: str) -> None:
        self.__dict__.update(_boy=boy, _part=part, _name=name)

    def _ask(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        calls_changing = function is operator.call and self._name.partition(".")[0] not in _READING
        changes = calls_changing or function in (setattr, operator.setitem)
        what = f"{self._name}{_SHOWN[function].format(*arguments)}"
        value = self._boy.use(what, changes=changes, call=lambda: function(self._part, *arguments, **keywords))
        return GuardedPart(self._boy, value, what) if function is getattr and callable(value) else value

    def __repr__(self) -> str:
        return repr(self._part)


class GuardedScreen(ViewedScreen, GuardedPart):
    """``boy.screen``, which remembers every view of the pixels that it gave out."""

    def __init__(self, boy: GuardedPyBoy, screen: Any) -> None:
        super().__init__(boy, screen, "screen")
        self.__dict__["_given"] = []

    def _look(self, attribute: str) -> tuple[Any, int]:
        emulator, part = self._boy._emulator, self._part
        seen: tuple[Any, int] = self._boy.use(
            f"screen.{attribute}", changes=False, call=lambda: (part.ndarray, emulator.frame_count)
        )
        return seen


class GuardFactory:
    """What the ``pyboy_guard`` fixture gives: call it with a PyBoy, with a ROM and PyBoy's keywords, or with nothing
    for the package's own ROM."""

    def __init__(self) -> None:
        self.order = Order()
        self._stack = ExitStack()
        self._boys: dict[GuardedPyBoy, ExitStack] = {}
        self._findings: dict[str, str] = {}

    def __call__(self, emulator: Any = None, **options: Any) -> GuardedPyBoy:
        from pyboy import PyBoy

        with ExitStack() as files:
            if not isinstance(emulator, PyBoy):
                directory = TemporaryDirectory(prefix="pyboy-rlstability-", ignore_cleanup_errors=True)
                rom = place_rom(emulator, Path(files.enter_context(directory)), cgb=bool(options.get("cgb")))
                emulator = PyBoy(str(rom), **{"window": "null", "log_level": "ERROR", **options})
            boy = GuardedPyBoy(emulator, self)
            self._boys[boy] = files.pop_all()
        return boy

    def forget(self, boy: GuardedPyBoy) -> None:
        """Remove the files of a *boy* that is stopped."""
        self._boys.pop(boy, ExitStack()).close()

    def misused(self, report: str) -> None:
        """Refuse the call that is about to be made."""
        self.found(_MISUSE, report)
        raise PyBoyMisuseError(f"{_PREFIX}{report}")

    def found(self, kind: str, report: str) -> None:
        """Remember the first finding of each *kind* for the end of the test."""
        self._findings.setdefault(kind, report)

    def report(self) -> str:
        """Everything found that the test has not already failed with; may be empty."""
        failure = getattr(sys, "last_value", None)
        unseen = dict(self._findings)
        if isinstance(failure, PyBoyMisuseError):
            unseen.pop(_MISUSE, None)
        elif isinstance(failure, OSError):
            unseen = {kind: text for kind, text in unseen.items() if str(failure) not in text}
        return "\n\n".join(f"{_PREFIX}{text}" for text in _once(unseen.values()))

    def __enter__(self) -> GuardFactory:
        self._stack.enter_context(_unnoticed_errors(self._findings))
        install(_NAME)
        self._stack.callback(uninstall, _NAME)
        self._stack.enter_context(self.order)
        return self

    def __exit__(self, *exception: object) -> None:
        for boy in list(self._boys):
            boy.end()
            self.forget(boy)
        self._stack.close()


def _once(findings: Iterable[str]) -> Iterator[str]:
    """Findings that differ only in the name of a thread or file are one."""
    alike: dict[str, list[str]] = {}
    for text in findings:
        alike.setdefault(re.sub(r"^thread .* died|^  .*, at ", "", text, flags=re.MULTILINE), []).append(text)
    for first, *others in alike.values():
        yield first.rstrip() + (f"\n  (and {len(others)} more like it)" if others else "")


def _described(use: Access) -> str:
    locks = f"holding {len(use.locks)} lock(s)" if use.locks else "holding no lock"
    place = "\n    ".join(str(use.site).split("\n"))
    return f"  thread {use.thread!r}: {use.operation}, {locks}\n    {place}"


def _race(earlier: Access, later: Access, *, met: bool) -> str:
    headline = f"PyBoy is used by two threads {'at the same moment' if met else 'without synchronization'}"
    advice = "hold one lock around every use, or use forked_pyboy, which is safe from any thread"
    if "stop()" in (earlier.operation, later.operation):
        headline = "PyBoy is stopped while another thread may still use it"
        advice = "join the thread (or take the common lock) before stop()"
    uses = f"{_described(earlier)}\n{_described(later)}"
    return f"{headline}\n{uses}\n  This crashes some runs and not others; the call was not made. To fix it: {advice}."


def _kept_views(kept: list[tuple[int, Site]], stopped: Site) -> str:
    places = "\n".join(f"  taken at frame {frame}, {site.innermost}" for frame, site in kept)
    return (
        f"{len(kept)} view(s) of the screen outlived stop() at {stopped.innermost}\n{places}\n"
        "  They show the emulator's own buffer. Keep screen.ndarray.copy() or screen.image.copy() instead."
    )


@contextmanager
def _unnoticed_errors(findings: dict[str, str]) -> Iterator[None]:
    """Add to *findings*: exceptions that PyBoy swallows in its hooks, those that end a thread, and screens saved as
    JPEG, because capture loops often swallow that error. It is explained, and a later save that works clears it."""
    from PIL import Image

    report_unraisable, save_image = sys.unraisablehook, Image.Image.save

    def unraisable(error: Any) -> None:
        if "pyboy" not in f"{error.object} {error.err_msg}".lower():
            report_unraisable(error)
            return
        text = "".join(traceback.format_exception(error.exc_value))
        findings.setdefault("hook", f"an exception was swallowed in a PyBoy hook\n{text}")

    def thread_died(death: Any) -> None:
        text = "".join(traceback.format_exception(death.exc_value))
        if not issubclass(death.exc_type, PyBoyMisuseError) and _JPEG_ADVICE not in text:
            name = death.thread.name if death.thread is not None else "unknown"
            findings.setdefault(f"thread {name}", f"thread {name!r} died unnoticed\n{text}")

    @functools.wraps(save_image)
    def save(image: Any, place: Any, *arguments: Any, **keywords: Any) -> None:
        name = os.fspath(place) if isinstance(place, (str, os.PathLike)) else f"file object {id(place):#x}"
        try:
            save_image(image, place, *arguments, **keywords)
        except OSError as error:
            if _JPEG_REFUSED not in str(error):
                raise
            findings[f"jpeg {name}"] = f"{_JPEG_ADVICE}\n  {name}, at {here().innermost}"
            raise OSError(_JPEG_ADVICE) from error
        findings.pop(f"jpeg {name}", None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", unraisable)
        patch.setattr(threading, "excepthook", thread_died)
        patch.setattr(Image.Image, "save", save)
        yield
