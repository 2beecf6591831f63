"""Decides what a test draws: from the run's seed and the test's id, whatever ran before it in its process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from random import Random
from random import seed as seed_random  # bound here: a test may replace it
from types import ModuleType
from typing import Any


def seed_of(run_seed: int, nodeid: str) -> int:
    """A test's own seed: two tests draw different names, ports and directories.

    >>> seed_of(7, "test_env.py::test_step"), seed_of(7, "test_env.py::test_reset")
    (3449144517, 1163266207)
    """
    return int.from_bytes(sha256(f"{run_seed} {nodeid}".encode()).digest()[:4])


class Seeds:
    """Seeds ``random``, numpy and torch before a test, and numpy again if the test is the first to import it."""

    def __init__(self) -> None:
        self._seed = 0
        if "numpy.random" not in sys.modules:
            sys.meta_path.insert(0, _SeedsOnImport(self))

    def apply(self, seed: int) -> None:
        """Seed everything for the next test."""
        self._seed = seed
        seed_random(seed)
        if (numpy := sys.modules.get("numpy.random")) is not None:
            self.seed_numpy(numpy)
        if (torch := sys.modules.get("torch")) is not None:
            _seed_torch(torch, seed)

    def seed_numpy(self, library: Any) -> None:
        """Its global generator, and what every generator without a seed begins with: ``default_rng()``, and so
        Gymnasium's ``reset()`` and ``sample()``, ask the system for it."""
        library.seed(self._seed)
        source = Random(self._seed)
        if hasattr(library, "bit_generator"):
            library.bit_generator.randbits = source.getrandbits


def _seed_torch(torch: Any, seed: int) -> None:
    if torch.version.cuda or torch.backends.mps.is_built():
        torch.manual_seed(seed)
    else:  # manual_seed would note it for every kind of device, each time with a stack: 0.7 ms
        torch.default_generator.manual_seed(seed)


class _SeedsOnImport:
    """Finds ``numpy.random`` as Python would, and has it seeded once it is imported."""

    def __init__(self, seeds: Seeds) -> None:
        self._seeds = seeds

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "numpy.random":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            original = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                original(module)
                self._seeds.seed_numpy(module)

            loader.exec_module = exec_module
        return spec
