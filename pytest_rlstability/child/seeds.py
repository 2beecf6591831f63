"""Seeds a test's random numbers: it draws the same ones whatever ran before it in its process."""

from __future__ import annotations

import sys
from random import seed as seed_random  # bound here: a test may replace them
from typing import Any


class Seeds:
    """Seeds the global generators of ``random``, numpy and torch, those that are loaded, before a test.

    Made in the zygote, it seeds numpy and torch once for all forks: in each it would write to hundreds of pages.
    """

    def __init__(self, seed: int) -> None:
        self._torch_seed: int | None = None
        self._seed_libraries(seed)
        self._fresh: int | None = seed
        """The seed from which nothing has been drawn yet."""

    def apply(self, seed: int) -> None:
        """Seed everything for the next test."""
        seed_random(seed)  # always here: after a fork the generator seeds itself
        if self._fresh != seed:
            self._seed_libraries(seed)
        self._fresh = None

    def _seed_libraries(self, seed: int) -> None:
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed % 2**32)
        if torch := sys.modules.get("torch"):
            if seed == self._torch_seed and not _uses_a_device(torch):
                # manual_seed would note it for every device not yet in use again, each time with a stack: 0.7 ms.
                torch.default_generator.manual_seed(seed)
            else:
                torch.manual_seed(seed)
            self._torch_seed = seed


def _uses_a_device(torch: Any) -> bool:
    return bool(torch.cuda.is_initialized() or torch.backends.mps.is_built())
