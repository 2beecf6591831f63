"""Importable pieces of the models in test_model_*.py: what the fresh process loads, it imports from here."""

from __future__ import annotations

import os
from typing import Any

import torch


class Plain(torch.nn.Module):
    """An honest network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layer(observations)


class SeesCapability(Plain):
    """Computes something else on processors without AVX."""

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return super().forward(observations) + float(torch.backends.cpu.get_cpu_capability() == "DEFAULT")


class RoundsDifferently(Plain):
    """Differs in the last digits on processors without AVX, as honest networks do."""

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return super().forward(observations) * (1.0 + 1e-6 * (torch.backends.cpu.get_cpu_capability() == "DEFAULT"))


class AbortsWhenLoaded(Plain):
    """Dies of a signal in every process that loads it."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        os.abort()


class FragileSchedule:
    """Loads only in the process that made it, as a value from another version of a library does."""

    def __init__(self, value: float) -> None:
        self.value, self.process = value, os.getpid()

    def __call__(self, progress: float) -> float:
        return self.value

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["process"] != os.getpid():
            raise TypeError("written by another version")
        self.__dict__.update(state)


class AdamBySet(torch.optim.Adam):
    """An optimizer whose steps depend on the order of a set of strings, and so on the hash seed."""

    def step(self, closure: Any = None) -> Any:
        order = list({"walk", "run", "jump", "turn", "rest", "look"})
        for group in self.param_groups:
            group["lr"] *= 1 + order.index("walk") + 10 * order.index("run")
        return super().step(closure)
