"""Tiny tasks whose every number is known in closed form, in Brax's interface, and helpers to run them."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdac.agents import qdac
from qdac.types import Array, Box, Task

needs_two_devices = pytest.mark.skipif("len(__import__('jax').devices()) < 2", reason="needs 2 devices")


class ProbeState(NamedTuple):
    obs: Array
    reward: Array
    done: Array


class Clock:
    """Shows (start, time): a number drawn at reset, and the steps lived. The reward is the new time.

    Ends when `lifetime` steps are lived or the action is 1; whoever steps it after its end gets NaNs.
    `num_traces` counts how often JAX has traced each of its functions.
    """

    observation_size = 2
    action_size = 1

    def __init__(self, lifetime: float = np.inf):
        self.lifetime = lifetime
        self.num_traces = collections.Counter()

    def reset(self, rng: Array) -> ProbeState:
        self.num_traces["reset"] += 1
        return ProbeState(jnp.array([jax.random.uniform(rng), 0.0]), jnp.zeros(()), jnp.zeros(()))

    def step(self, state: ProbeState, action: Array) -> ProbeState:
        self.num_traces["step"] += 1
        start, time = state.obs
        time = jnp.where(state.done > 0, jnp.nan, time + 1.0)
        is_over = (time >= self.lifetime) | (action[0] >= 1.0)
        return ProbeState(jnp.array([start, time]), time, is_over.astype(jnp.float32))

    def feature(self, state: ProbeState) -> Array:
        self.num_traces["feature"] += 1
        return state.obs[1:]


def clock_task(lifetime: float = np.inf, **fields: Any) -> Task:
    """Returns the task whose feature is the time, with skills in [0, 4]."""
    clock = fields.pop("env", None) or Clock(lifetime)
    defaults = {"name": "clock", "env": clock, "feature_fn": clock.feature, "threshold": 0.25, "d_eval": 0.5}
    return Task(**defaults | {"skill_space": Box((0.0,), (4.0,), (4,))} | fields)


class Dial:
    """Shows the last action, and pays 1 whatever is done. Never ends."""

    observation_size = 1
    action_size = 1

    def reset(self, rng: Array) -> ProbeState:
        return ProbeState(jax.random.uniform(rng, (1,), minval=-1.0), jnp.zeros(()), jnp.zeros(()))

    def step(self, state: ProbeState, action: Array) -> ProbeState:
        return state._replace(obs=action, reward=jnp.ones(()))


def dial_task(**fields: Any) -> Task:
    """Returns the task whose feature is half the dial: of the skills in [-1, 1], half can be reached."""
    fields = {"skill_space": Box((-1.0,), (1.0,), (10,)), "threshold": 0.15, "d_eval": 0.2} | fields
    return Task(name="dial", env=Dial(), feature_fn=lambda state: 0.5 * state.obs, **fields)


def small_config(**fields: Any) -> qdac.Config:
    """Returns a configuration for probes: small networks, short horizon, no warm-up."""
    small = {"hidden_sizes": (32, 32), "batch_size": 32, "discount": 0.9, "num_envs": 4, "replay_size": 512,
             "steps_per_iteration": 4, "updates_per_iteration": 4, "warmup_steps": 0}  # fmt: skip
    return qdac.Config(**small | fields)


def assert_trees_close(actual: Any, expected: Any, **tolerance: float) -> None:
    """Asserts that two pytrees of arrays have one structure and nearly the same numbers."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), actual, expected)
