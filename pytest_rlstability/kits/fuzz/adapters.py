"""Envs of other kinds behind Gymnasium's interface of one env: PettingZoo's two, and vector envs.

The source of ``play(env, action)`` is copied into the written test, so it must stand alone.
"""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import numpy as np


def adapt(env: Any) -> Any:
    """*env* itself where it has Gymnasium's interface, otherwise an adapter."""
    fitting = (kind for kind in (ParallelAdapter, TurnAdapter, Sb3VectorAdapter, VectorAdapter) if kind.fits(env))
    return next((kind(env) for kind in fitting), env)


class AgentsSpace:
    """Holds observations by agent, not of all agents at once: those of one turn, or of the agents that live."""

    some_of = True

    def __init__(self, spaces: dict[Any, Any]) -> None:
        self.spaces = spaces

    def contains(self, value: Any) -> bool:
        return all(agent in self.spaces and self.spaces[agent].contains(one) for agent, one in value.items())


class Adapter:
    """What the adapters share: the env in *env* and its spaces."""

    check = "env.observation_space.contains(observation)"
    """The source of a check of the observation, for the test that is written."""
    compared = 4
    """The answer's first parts, which must be equal after the same seed and actions."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.render_mode = getattr(env, "render_mode", None)
        self.action_space, self.observation_space = self._spaces()

    def _spaces(self) -> tuple[Any, Any]:
        return self.env.action_space, self.env.observation_space

    @staticmethod
    def fits(env: Any) -> bool:
        raise NotImplementedError

    @classmethod
    def play_source(cls) -> str:
        """The function ``play``, as the test file needs it."""
        source = textwrap.dedent(inspect.getsource(cls.play))
        return source.removeprefix("@staticmethod\n").replace(": Any", "").replace(" -> Any", "")

    @staticmethod
    def play(env: Any, action: Any) -> Any:
        return env.step(action)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.env.reset(seed=seed, options=options)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


class AgentsAdapter(Adapter):
    """What PettingZoo's two kinds share: spaces that hold an action or an observation for each agent."""

    def _spaces(self) -> tuple[Any, Any]:
        from gymnasium.spaces import Dict

        env, agents = self.env, self.env.possible_agents
        observations = AgentsSpace({agent: env.observation_space(agent) for agent in agents})
        return Dict({agent: env.action_space(agent) for agent in agents}), observations


class ParallelAdapter(AgentsAdapter):
    """PettingZoo's parallel API. An action names one for every possible agent; those that live get theirs."""

    check = "all(env.observation_space(agent).contains(one) for agent, one in observation.items())"

    @staticmethod
    def fits(env: Any) -> bool:
        return hasattr(env, "possible_agents") and not hasattr(env, "agent_iter") and hasattr(env, "step")

    @staticmethod
    def play(env: Any, action: Any) -> Any:
        return env.step({agent: action[agent] for agent in env.agents if agent in action})

    def step(self, action: Any) -> Any:
        observations, rewards, _, _, infos = self.play(self.env, action)
        return dict(observations), np.array([*rewards.values()], dtype=float), not self.env.agents, False, infos


class TurnAdapter(AgentsAdapter):
    """PettingZoo's API of turns (AEC). The agent whose turn it is gets its action, a legal one where a mask says so."""

    check = "env.observation_space(env.agent_selection).contains(observation)"

    @staticmethod
    def fits(env: Any) -> bool:
        return hasattr(env, "agent_iter") and hasattr(env, "last")

    @staticmethod
    def play(env: Any, action: Any) -> Any:
        observation, _, terminated, truncated, info = env.last()
        chosen = None if terminated or truncated else action[env.agent_selection]
        mask = info.get("action_mask", observation.get("action_mask") if isinstance(observation, dict) else None)
        if isinstance(chosen, int | np.integer) and mask is not None and mask.any() and not mask[chosen]:
            legal = mask.nonzero()[0]
            chosen = legal[chosen % len(legal)]
        env.step(chosen)
        return env.last() if env.agents else (None, 0.0, True, False, {})

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.env.reset(seed=seed, options=options)
        return {self.env.agent_selection: self.env.last()[0]}, {}

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = self.play(self.env, action)
        seen = {self.env.agent_selection: observation} if self.env.agents else {}
        return seen, reward, not self.env.agents, False, info


class VectorAdapter(Adapter):
    """Gymnasium's vector envs. Their sub-envs reset themselves, so an episode has no end."""

    @staticmethod
    def fits(env: Any) -> bool:
        return hasattr(env, "single_action_space") and hasattr(env, "num_envs")

    def step(self, action: Any) -> Any:
        observations, rewards, _, _, infos = self.play(self.env, action)
        return observations, rewards, False, False, infos


class Sb3VectorAdapter(Adapter):
    """Stable-Baselines3's vector envs: an action is a row for each env, seeds are given before a reset."""

    check = "batch_space(env.observation_space, env.num_envs).contains(observation)"
    compared = 3

    def _spaces(self) -> tuple[Any, Any]:
        from gymnasium.vector.utils import batch_space

        env = self.env
        return batch_space(env.action_space, env.num_envs), batch_space(env.observation_space, env.num_envs)

    @staticmethod
    def fits(env: Any) -> bool:
        return hasattr(env, "step_async") and hasattr(env, "env_is_wrapped")

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.env.seed(seed)
        return self.env.reset(), {}

    def step(self, action: Any) -> Any:
        observations, rewards, _, infos = self.play(self.env, action)
        return observations, rewards, False, False, {"infos": infos}
