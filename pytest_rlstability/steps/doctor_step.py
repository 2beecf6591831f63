"""A step of ``rlstability doctor``, added by the package, a kit or another plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

Stage = Callable[[str], AbstractContextManager[None]]
"""The type of ``rl_stage``, which a step's function may ask for."""


@dataclass(frozen=True)
class DoctorStep:
    """A function to call in a fresh process, to see whether it crashes, hangs or raises.

    ``DoctorStep("my simulator", "physics", "my_kit.doctor:run", needs=("my_simulator",))``. It runs if every module in
    *needs* is installed and can be imported alone. The steps of a *group* are shown together. *call* may ask for
    ``rl_stage``; *arguments* are JSON values.
    """

    name: str
    group: str
    call: str
    needs: tuple[str, ...] = ()
    arguments: Mapping[str, object] = field(default_factory=dict)
    imports: str = ""
    """The module whose import the step tries, if any."""
