"""Stand-ins for what lives in the emulator's process: its screen, and every other object."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pytest_rlstability.kits.pyboy.channel import Step
from pytest_rlstability.kits.pyboy.views import ViewedScreen

if TYPE_CHECKING:
    from pytest_rlstability.kits.pyboy.client import ForkedPyBoy


class RemoteObject:
    """An object of the emulator, known by the steps that lead to it: ``boy.get_sprite(3).tiles[0]``. Each use walks the
    steps again, so nothing is kept alive in the other process."""

    def __init__(self, boy: ForkedPyBoy, steps: tuple[Step, ...], text: str) -> None:
        self.__dict__.update(_boy=boy, _steps=steps, _text=text)

    def _ask(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        return walk(self._boy, (*self._steps, (function, arguments, keywords)))

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

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return str(self._text)


def walk(boy: ForkedPyBoy, steps: tuple[Step, ...]) -> Any:
    """What *steps* lead to: the value itself, or a stand-in if the value cannot be sent."""
    kind, value = boy.ask("do", steps)
    if kind == "object":
        return RemoteObject(boy, steps, value)
    if kind == "objects":
        return [RemoteObject(boy, (*steps, (operator.getitem, (index,), {})), text) for index, text in enumerate(value)]
    return value


class RemoteScreen(ViewedScreen, RemoteObject):
    """``boy.screen``: pixels straight from shared memory, everything else by request."""

    def __init__(self, boy: ForkedPyBoy, pixels: Any) -> None:
        super().__init__(boy, ((getattr, ("screen",), {}),), "the screen of a forked PyBoy")
        self.__dict__.update(_given=[], _pixels=pixels)

    def _look(self, attribute: str) -> tuple[Any, int]:
        self._boy.check_alive()
        return self._pixels, self._boy.frame

    def keep_last(self) -> None:
        """From now on show a copy of the last frame: the shared memory is about to be released."""
        self.__dict__["_pixels"] = self._pixels.copy()
