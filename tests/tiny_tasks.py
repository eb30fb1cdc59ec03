"""Tiny envs with the skill spaces that the point mass has not: a line, where one can fall off, and a circle."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from probes import ProbeState

from qdac.types import Array, Box, Circle, Task


class Line:
    """A place moved by the action, paid by how far right it is; off the ends is the end."""

    observation_size = 1
    action_size = 1

    def reset(self, rng: Array) -> ProbeState:
        return ProbeState(jax.random.uniform(rng, (1,), minval=-0.1, maxval=0.1), jnp.zeros(()), jnp.zeros(()))

    def step(self, state: ProbeState, action: Array) -> ProbeState:
        place = state.obs + 0.3 * action
        return ProbeState(place, place[0], (jnp.abs(place[0]) > 1.0).astype(jnp.float32))


def line(episode_length: int = 10) -> Task:
    """Returns the task whose feature is the place."""
    return Task(
        name="line", env=Line(), feature_fn=lambda state: state.obs, skill_space=Box((-1.0,), (1.0,), (8,)),
        threshold=0.1, d_eval=0.3, episode_length=episode_length,
    )  # fmt: skip


class Compass:
    """A needle turned by the action, paid 1 a step."""

    observation_size = 2
    action_size = 1

    def reset(self, rng: Array) -> ProbeState:
        return self._at(jax.random.uniform(rng, minval=-0.1, maxval=0.1), 0.0)

    def step(self, state: ProbeState, action: Array) -> ProbeState:
        return self._at(jnp.arctan2(state.obs[1], state.obs[0]) + action[0], 1.0)

    def _at(self, angle: Array, reward: float) -> ProbeState:
        return ProbeState(jnp.array([jnp.cos(angle), jnp.sin(angle)]), jnp.asarray(reward), jnp.zeros(()))


def compass(episode_length: int = 10) -> Task:
    """Returns the task whose feature is the heading."""
    return Task(
        name="compass", env=Compass(), feature_fn=lambda state: state.obs, skill_space=Circle(8),
        threshold=0.1, d_eval=0.6, episode_length=episode_length,
    )  # fmt: skip
