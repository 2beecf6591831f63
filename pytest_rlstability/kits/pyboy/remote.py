"""Stand-ins for what lives in the emulator's process: its memory, its screen, and every other object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from pytest_rlstability.pyboy.views import LiveViews, describe_shared
from pytest_rlstability.pyboy.wire import HEIGHT, WIDTH

Step = tuple[Any, ...]


class Line(Protocol):
    """What a stand-in needs of its emulator: ask for one operation, have the answer."""

    @property
    def frame(self) -> int: ...

    def ask(self, operation: str, *details: Any) -> Any: ...


class RemoteMemory:
    """``boy.memory``: addresses, slices and ``bank, address`` pairs read and write as PyBoy's own do."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def __getitem__(self, key: Any) -> Any:
        return self._line.ask("peek", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        plain = value if isinstance(value, int) or not hasattr(value, "__iter__") else [int(item) for item in value]
        self._line.ask("poke", key, plain)

    def __len__(self) -> int:
        return 0x10000


class RemoteObject:
    """Any other object of the emulator, known by the steps that lead to it: ``boy.get_sprite(3).tiles[0]``.

    Each use walks the steps anew, so nothing is kept alive over there.
    """

    def __init__(self, line: Line, steps: tuple[Step, ...], text: str) -> None:
        self.__dict__.update(_line=line, _steps=steps, _text=text)

    def _ask(self, *step: Any) -> Any:
        return walk(self._line, (*self._steps, step))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._ask("call", arguments, keywords)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("set item", key, value)

    def __len__(self) -> int:
        return int(self._ask("length"))

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return str(self._text)


def walk(line: Line, steps: tuple[Step, ...]) -> Any:
    """What *steps* lead to: the value itself, or a stand-in where it has to stay."""
    kind, value = line.ask("do", steps)
    if kind == "object":
        return RemoteObject(line, steps, value)
    if kind == "objects":
        return [RemoteObject(line, (*steps, ("item", index)), text) for index, text in enumerate(value)]
    return value


class RemoteScreen:
    """``boy.screen``: pixels straight from shared memory, everything else by asking.

    As with PyBoy, ``ndarray`` is one buffer that each rendered tick overwrites: ``.copy()`` what you keep.
    """

    raw_buffer_dims = (HEIGHT, WIDTH)
    raw_buffer_format = "RGBA"

    def __init__(self, line: Line, pixels: Any) -> None:
        self._line = line
        self._pixels = pixels
        self._views = LiveViews()

    @property
    def ndarray(self) -> Any:
        self._line.ask("alive")
        return self._views.array(self._pixels, self._line.frame)

    @property
    def raw_buffer(self) -> memoryview:
        return memoryview(self.ndarray.reshape(-1))

    @property
    def image(self) -> Any:
        """A PIL image over the same memory; ``.copy()`` or ``.convert()`` what you keep."""
        self._line.ask("alive")
        return self._views.image(self._pixels, self._line.frame)

    def uncopied(self) -> str:
        """Which observations were kept that are one and the same memory, in words; for the emulator."""
        shared = self._views.sharing_memory()
        return describe_shared(shared) if shared else ""

    def keep_last(self) -> None:
        """From now on show a copy of the last frame: the shared memory is about to go; for the emulator."""
        self._pixels = self._pixels.copy()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return walk(self._line, (("attribute", "screen"), ("attribute", name)))
