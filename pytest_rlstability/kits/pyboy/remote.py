"""Stand-ins for what lives in the emulator's process: its memory, its screen, and every other object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_rlstability.kits.pyboy.channel import HEIGHT, WIDTH
from pytest_rlstability.kits.pyboy.views import LiveViews, describe_shared

if TYPE_CHECKING:
    from pytest_rlstability.kits.pyboy.client import ForkedPyBoy

Step = tuple[Any, ...]


class RemoteMemory:
    """``boy.memory``: reads and writes addresses, slices and ``bank, address`` pairs as PyBoy's own does."""

    def __init__(self, boy: ForkedPyBoy) -> None:
        self._boy = boy

    def __getitem__(self, key: Any) -> Any:
        value = self._boy.ask("peek", key)
        return list(value) if isinstance(value, bytes) else value

    def __setitem__(self, key: Any, value: Any) -> None:
        plain = value if isinstance(value, int) or not hasattr(value, "__iter__") else [int(item) for item in value]
        self._boy.ask("poke", key, plain)

    def __len__(self) -> int:
        return 0x10000


class RemoteObject:
    """Any other object of the emulator, known by the steps that lead to it: ``boy.get_sprite(3).tiles[0]``.

    Each use walks the steps again, so nothing is kept alive in the other process.
    """

    def __init__(self, boy: ForkedPyBoy, steps: tuple[Step, ...], text: str) -> None:
        self.__dict__.update(_boy=boy, _steps=steps, _text=text)

    def _ask(self, *step: Any) -> Any:
        return walk(self._boy, (*self._steps, step))

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


def walk(boy: ForkedPyBoy, steps: tuple[Step, ...]) -> Any:
    """What *steps* lead to: the value itself, or a stand-in if the value cannot be sent."""
    kind, value = boy.ask("do", steps)
    if kind == "object":
        return RemoteObject(boy, steps, value)
    if kind == "objects":
        return [RemoteObject(boy, (*steps, ("item", index)), text) for index, text in enumerate(value)]
    return value


class RemoteScreen:
    """``boy.screen``: pixels straight from shared memory, everything else by request.

    As with PyBoy, ``ndarray`` is one buffer that each rendered tick overwrites: ``.copy()`` what you keep.
    """

    raw_buffer_dims = (HEIGHT, WIDTH)
    raw_buffer_format = "RGBA"

    def __init__(self, boy: ForkedPyBoy, pixels: Any) -> None:
        self._boy = boy
        self._pixels = pixels
        self._views = LiveViews()

    @property
    def ndarray(self) -> Any:
        self._boy.check_alive()
        return self._views.array(self._pixels, self._boy.frame)

    @property
    def raw_buffer(self) -> memoryview:
        return memoryview(self.ndarray.reshape(-1))

    @property
    def image(self) -> Any:
        """A PIL image over the same memory; ``.copy()`` or ``.convert()`` what you keep."""
        self._boy.check_alive()
        return self._views.image(self._pixels, self._boy.frame)

    def uncopied(self) -> str:
        """A report of kept observations that all show the same memory; empty when there are none."""
        shared = self._views.sharing_memory()
        return describe_shared(shared) if shared else ""

    def keep_last(self) -> None:
        """From now on show a copy of the last frame: the shared memory is about to be released."""
        self._pixels = self._pixels.copy()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return walk(self._boy, (("attribute", "screen"), ("attribute", name)))
