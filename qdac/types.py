"""The shared vocabulary: skill spaces, tasks, transitions, policies. Imports nothing else of ours."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Params = Any
EnvState = Any
"""A Brax `State`: `obs`, `reward`, `done` (1 = terminated by the env itself), `pipeline_state`, `info`."""


class Env(Protocol):
    """What a task needs of an environment: Brax's functional interface for a single env (we vmap)."""

    observation_size: int
    action_size: int

    def reset(self, rng: Array) -> EnvState: ...
    def step(self, state: EnvState, action: Array) -> EnvState: ...


class SkillSpace(Protocol):
    """A bounded set of skills z, in the units of the task's feature."""

    size: int
    """Numbers in a skill vector."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    grid_shape: tuple[int, ...]
    """Cells of the evaluation grid along each axis; `grid()` is in C order of this shape."""

    def sample(self, key: Array, num: int) -> Array: ...
    def grid(self) -> np.ndarray: ...
    def normalize(self, skill: Array) -> Array: ...
    def opposite(self, normalized_skill: Array) -> Array: ...


@dataclasses.dataclass(frozen=True)
class Box:
    """The box [low, high], sampled uniformly; the grid is its cell centres."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    grid_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.low) == len(self.high) == len(self.grid_shape) > 0:
            raise ValueError(
                f"Box needs low, high and grid_shape of one length, got {len(self.low)}, "
                f"{len(self.high)} and {len(self.grid_shape)}"
            )
        if not all(low < high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError(f"Box needs low < high in every dimension, got {self.low} and {self.high}")

    @property
    def size(self) -> int:
        return len(self.low)

    def sample(self, key: Array, num: int) -> Array:
        """Returns `num` uniform skills, [num, size]."""
        return jax.random.uniform(
            key, (num, self.size), minval=jnp.array(self.low), maxval=jnp.array(self.high)
        )

    def grid(self) -> np.ndarray:
        """Returns the centres of the evaluation cells, [prod(grid_shape), size], last axis fastest."""
        axes = [
            low + (np.arange(n) + 0.5) / n * (high - low)
            for low, high, n in zip(self.low, self.high, self.grid_shape, strict=True)
        ]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self.size).astype(np.float32)

    def normalize(self, skill: Array) -> Array:
        """Returns skills or features scaled so that the box is [-1, 1] in every dimension."""
        low, high = jnp.array(self.low), jnp.array(self.high)
        return 2.0 * (skill - low) / (high - low) - 1.0

    def opposite(self, normalized_skill: Array) -> Array:
        """Returns the corner farthest from each skill, both in normalized units."""
        return jnp.where(normalized_skill > 0, -1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Circle:
    """Headings, as (cos, sin) so that -pi and pi are one skill; sampled uniformly in angle."""

    resolution: int = 50

    size = 2
    low = (-1.0, -1.0)
    high = (1.0, 1.0)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        return (self.resolution,)

    def sample(self, key: Array, num: int) -> Array:
        """Returns `num` uniform headings as unit vectors, [num, 2]."""
        angle = jax.random.uniform(key, (num,), minval=-math.pi, maxval=math.pi)
        return jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)

    def grid(self) -> np.ndarray:
        """Returns the headings at the middle of each of `resolution` equal arcs, [resolution, 2]."""
        angle = -math.pi + (np.arange(self.resolution) + 0.5) / self.resolution * 2 * math.pi
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)

    def normalize(self, skill: Array) -> Array:
        """Returns the skill itself: unit vectors are already in [-1, 1]."""
        return skill

    def opposite(self, normalized_skill: Array) -> Array:
        """Returns the heading farthest from each heading."""
        return -normalized_skill


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment, what a behaviour means in it, and which behaviours are asked for.

    Stands alone: `task.reset(key)`, `task.step(state, action)`, `task.feature(state)` are pure
    functions for one env; vmap them for many. The episode's time limit is `episode_length`; the
    env's own `done` means termination only.
    """

    name: str
    env: Env
    feature_fn: Callable[[EnvState], Array]
    """The feature phi of a state, [skill_space.size], in the units of the skill space."""
    skill_space: SkillSpace
    threshold: float
    """delta of the paper: the distance below which the constraint counts as satisfied."""
    d_eval: float
    """The distance below which an executed skill counts as achieved in evaluation."""
    episode_length: int = 1000
    summary: str = ""
    feature_names: Sequence[str] = ()
    """A label for each axis of the skill space, with units, for figures."""
    short_horizon: int = 20
    """Steps in which an action shows in features and survival: where a horizon that widens may start."""
    action_repeat: int = 1
    """Env steps that an action may last, for policies that decide less often than the env steps."""
    reference_return: float | None = None
    """The return of a policy trained for the reward alone, for algorithms that compare with it."""

    @functools.cached_property
    def obs_size(self) -> int:
        """Traced, because Brax's own `observation_size` simulates a reset without compiling it."""
        return jax.eval_shape(self.env.reset, jax.random.PRNGKey(0)).obs.shape[-1]

    @property
    def action_size(self) -> int:
        return self.env.action_size

    @property
    def skill_size(self) -> int:
        return self.skill_space.size

    def reset(self, key: Array) -> EnvState:
        return self.env.reset(key)

    def step(self, state: EnvState, action: Array) -> EnvState:
        return self.env.step(state, action)

    def feature(self, state: EnvState) -> Array:
        return self.feature_fn(state)


@dataclasses.dataclass(frozen=True)
class Commands:
    """What a policy is told for an episode of collection: a skill, a latent, or which policy it is to be."""

    size: int
    draw: Callable[[Array, Array, int], Array]
    """(key, number of the env, num) -> [num, size]."""
    are_skills: bool = False
    """Whether an episode's feature is meant to be what it was told."""


def skill_commands(task: Task) -> Commands:
    """Returns uniform skills of the task."""
    return Commands(task.skill_size, lambda key, env, num: task.skill_space.sample(key, num), are_skills=True)


class Transition(NamedTuple):
    """One action, and the env step it took. `next_obs` is the true next observation, before any reset.

    Where an action lasts several steps, `reward` is their sum and `feature` the mean over the states before them.
    """

    obs: Array
    action: Array
    reward: Array
    feature: Array
    """phi(s_t), of the state the action was taken in, in raw units."""
    next_obs: Array
    terminated: Array
    """1.0 where the env ended the episode: no future."""
    truncated: Array
    """1.0 where the time limit cut the episode, or a fresh skill: a future that was not seen."""
    skill: Array
    """What the policy was told: a skill, or another command."""
    episode: Array
    """How many episodes of this env came before; one that is told a fresh skill counts as another."""


class Policy(Protocol):
    """A skill-conditioned policy: all that evaluation, reports and the explorer know of an algorithm."""

    def initial_carry(self, num: int) -> Any:
        """Returns the memory of `num` episodes at their start; `()` for a policy without memory."""

    def step(self, params: Params, carry: Any, obs: Array, skill: Array) -> tuple[Any, Array]:
        """Returns the new memory and the deterministic actions for a batch of observations and skills."""
