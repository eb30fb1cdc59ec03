"""Two feet that are on the ground or not: the smallest problem in which a skill is more than a state.

    qdac train --task examples.stepping:stepping --preset debug --algo qdac --out RUN
    qdac evaluate RUN

Each of two actions lifts a foot or puts it down, and the feature says which feet are down: 0 or 1 at any moment,
so that a skill between 0 and 1 is no state that could be held, only a share of time to keep. The observation has a
clock to keep time by. docs/ablations.md shows what QDAC and its ablations make of it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdac import Box, Task

PERIOD = 10
"""Steps of a turn of the clock."""


class State(NamedTuple):
    obs: jax.Array
    """The heights of both feet, and the clock as (cos, sin), [4]."""
    reward: jax.Array
    done: jax.Array
    time: jax.Array


class Stepping:
    """Brax's interface for a single env. Paid by how high the feet are; never ends."""

    observation_size = 4
    action_size = 2

    def reset(self, rng: jax.Array) -> State:
        """Returns feet at random heights at a random time."""
        key_feet, key_time = jax.random.split(rng)
        feet = jax.random.uniform(key_feet, (2,), minval=-1.0)
        return self._state(feet, jax.random.randint(key_time, (), 0, PERIOD), jnp.zeros(()))

    def step(self, state: State, action: jax.Array) -> State:
        """Returns the feet at the heights that the action names."""
        feet = jnp.clip(action, -1.0, 1.0)
        return self._state(feet, state.time + 1, 0.1 * feet.mean())

    def _state(self, feet: jax.Array, time: jax.Array, reward: jax.Array) -> State:
        angle = 2.0 * jnp.pi * time / PERIOD
        obs = jnp.concatenate([feet, jnp.array([jnp.cos(angle), jnp.sin(angle)])])
        return State(obs, reward, jnp.zeros(()), time)


def contact(state: State) -> jax.Array:
    """Returns 1 for each foot on the ground, else 0."""
    return (state.obs[:2] < 0.0).astype(jnp.float32)


def stepping(episode_length: int = 100) -> Task:
    """Returns the task."""
    return Task(
        name="stepping",
        env=Stepping(),
        feature_fn=contact,
        skill_space=Box(low=(0.0, 0.0), high=(1.0, 1.0), grid_shape=(10, 10)),
        threshold=0.02,
        d_eval=0.2,
        episode_length=episode_length,
        summary="Two feet stand on the ground a chosen share of the time, and are rewarded for being off it",
        feature_names=("right foot contact (share of time)", "left foot contact (share of time)"),
    )
