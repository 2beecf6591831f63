"""What Stable-Baselines3 does with the attributes of a saved model when it loads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_rlstability.kits.models.carried import Carried
from pytest_rlstability.kits.models.worker import REBUILT


def replacement(attribute: str, carried: tuple[Carried, ...]) -> str:
    """Python text for a value that can stand in ``custom_objects`` for what *attribute* holds.

    A constant is read out of the closure that holds it; a schedule made by a factory becomes a call of that factory
    with the values found in its cells; anything else is left for the reader to fill in.
    """
    if attribute in REBUILT:
        return "lambda _: 0.0"
    innermost = carried[-1]
    if innermost.module == "stable_baselines3.common.utils" and innermost.name == "constant_fn.<locals>.func":
        return repr(innermost.cells.get("val"))
    factory, separator, _ = innermost.name.partition(".<locals>.")
    if separator and innermost.kind != "class" and innermost.cells and "<" not in factory:
        return f"{factory}({', '.join(f'{name}={value!r}' for name, value in innermost.cells.items())})"
    return f"your_{attribute}"


def algorithm_of(settings: Mapping[str, Any]) -> str | None:
    """The algorithm that wrote these settings, as ``module:class``: the file itself does not name it."""
    policy = settings.get("policy_class")
    module = str(policy.get("__module__", "")) if isinstance(policy, dict) else ""
    for part, algorithm in _BY_POLICY_MODULE.items():
        if part in module:
            return algorithm
    if "clip_range" in settings:
        return "stable_baselines3:PPO"
    if "n_steps" in settings and "gae_lambda" in settings:
        return "sb3_contrib:TRPO" if "cg_max_steps" in settings else "stable_baselines3:A2C"
    return None


_BY_POLICY_MODULE = {
    "sb3_contrib.common.maskable": "sb3_contrib:MaskablePPO",
    "sb3_contrib.common.recurrent": "sb3_contrib:RecurrentPPO",
    "sb3_contrib.ppo_mask": "sb3_contrib:MaskablePPO",
    "sb3_contrib.ppo_recurrent": "sb3_contrib:RecurrentPPO",
    "sb3_contrib.qrdqn": "sb3_contrib:QRDQN",
    "sb3_contrib.tqc": "sb3_contrib:TQC",
    "sb3_contrib.crossq": "sb3_contrib:CrossQ",
    "sb3_contrib.ars": "sb3_contrib:ARS",
    "stable_baselines3.dqn": "stable_baselines3:DQN",
    "stable_baselines3.sac": "stable_baselines3:SAC",
    "stable_baselines3.td3": "stable_baselines3:TD3",
}
ALGORITHMS = frozenset({
    *_BY_POLICY_MODULE.values(), "stable_baselines3:PPO", "stable_baselines3:A2C", "stable_baselines3:DDPG",
    "sb3_contrib:TRPO",
})  # fmt: skip
"""The algorithms that a file may name."""
