"""A task of your own, in one file: a point mass in the plane that is asked for a mean velocity.

    qdac train --task examples.point_mass:point_mass --preset debug --steps 2e4 --out RUN
    qdac evaluate RUN

A task needs five things: an env, a feature of its state, a skill space, a threshold and d_eval.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdac import Box, Task


class State(NamedTuple):
    """What an env hands on from step to step: any pytree with these three; a Brax `State` is one."""

    obs: jax.Array
    """Position and velocity, [4]."""
    reward: jax.Array
    done: jax.Array
    """1.0 where the env itself ends the episode; the time limit is the task's `episode_length`."""


class PointMass:
    """Brax's interface for a single env: pure functions of arrays, vmapped and compiled by qdac."""

    observation_size = 4
    action_size = 2

    def reset(self, rng: jax.Array) -> State:
        """Returns a mass near the origin, at rest."""
        position = 0.1 * jax.random.normal(rng, (2,))
        return State(jnp.concatenate([position, jnp.zeros(2)]), reward=jnp.zeros(()), done=jnp.zeros(()))

    def step(self, state: State, action: jax.Array) -> State:
        """Returns the mass a tenth of a second later, pushed by `action` in [-1, 1] against friction."""
        position, velocity = jnp.split(state.obs, 2)
        velocity = velocity + 0.5 * (1.2 * action - velocity)
        position = position + 0.1 * velocity
        reward = velocity[0] - 0.1 * jnp.square(action).sum()
        is_lost = (jnp.abs(position) > 50.0).any()
        return State(jnp.concatenate([position, velocity]), reward, is_lost.astype(jnp.float32))


def velocity(state: State) -> jax.Array:
    """Returns the feature: its mean over an episode is the skill that was executed."""
    return state.obs[2:]


def point_mass(episode_length: int = 100) -> Task:
    """Returns the task. Its arguments are what `qdac.make_task(name, ...)` may be given."""
    return Task(
        name="point_mass",
        env=PointMass(),
        feature_fn=velocity,
        skill_space=Box(low=(-1.0, -1.0), high=(1.0, 1.0), grid_shape=(20, 20)),
        threshold=0.05,
        d_eval=0.2,
        episode_length=episode_length,
        summary="A point mass moves at a chosen velocity, and is rewarded for moving to the right",
        feature_names=("velocity x (m/s)", "velocity y (m/s)"),
    )
