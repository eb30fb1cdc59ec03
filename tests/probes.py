"""Tiny tasks whose every number is known in closed form, in Brax's interface, and helpers to run them."""

from __future__ import annotations

import collections
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdac.agents import qdac, soft
from qdac.replay import Batch
from qdac.trunk import Trunk
from qdac.types import Array, Box, Params, Task

needs_two_devices = pytest.mark.skipif("len(__import__('jax').devices()) < 2", reason="needs 2 devices")
close = functools.partial(np.testing.assert_allclose, rtol=1e-5)


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
    defaults = {"name": "dial", "env": Dial(), "feature_fn": lambda state: 0.5 * state.obs, "threshold": 0.15,
                "d_eval": 0.2, "skill_space": Box((-1.0,), (1.0,), (10,))}  # fmt: skip
    return Task(**defaults | fields)


class Savings(Dial):
    """A dial that pays what it shows, less the square of the action.

    Whatever it shows, gamma / 2 is best: it costs gamma² / 4 now and brings gamma² / 2 in the next step.
    """

    def step(self, state: ProbeState, action: Array) -> ProbeState:
        return state._replace(obs=action, reward=state.obs[0] - action[0] ** 2)


class Hill(Dial):
    """A dial that pays 1 - action²: most for 0."""

    def step(self, state: ProbeState, action: Array) -> ProbeState:
        return state._replace(obs=action, reward=1.0 - action[0] ** 2)


def hill_task(**fields: Any) -> Task:
    """Returns the task whose feature is the dial."""
    return dial_task(name="hill", env=Hill(), feature_fn=lambda state: state.obs, **fields)


def small_config(kind: type[soft.SoftConfig] = qdac.Config, **fields: Any) -> Any:
    """Returns a configuration for probes: small networks, short horizon, no warm-up."""
    small = {"hidden_sizes": (32, 32), "batch_size": 32, "discount": 0.9, "num_envs": 4, "replay_size": 512,
             "steps_per_iteration": 4, "updates_per_iteration": 4, "warmup_steps": 0}  # fmt: skip
    return kind(**small | fields)


QUICK = {"learning_rate": 3e-3, "target_rate": 0.05, "initial_temperature": 1e-3, "temperature_learning_rate": 1e-9,
         "num_envs": 16, "steps_per_iteration": 8, "updates_per_iteration": 64, "batch_size": 64,
         "replay_size": 4096}  # fmt: skip
"""Rounds of 64 quick updates, with a temperature that stays where it starts."""


def trained(agent: Any, num_rounds: int) -> tuple[Any, dict[str, Array]]:
    """Returns the agent's state after rounds of the trunk on one device, and the metrics of the last."""
    trunk = Trunk(agent, agent.task, jax.devices()[:1])
    state, metrics = trunk.init(jax.random.PRNGKey(0)), {}
    for _ in range(num_rounds):
        state, metrics, _ = trunk.iterate(state)
    return state.agent, metrics


def column(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


BATCH = Batch(
    obs=np.array([[0.5, 1], [0.5, 3]], np.float32), action=column(0.2, -0.4), rewards=column(1, 2),
    features=column(1, 3)[:, None], weights=column(1, 1), next_obs=np.array([[0.5, 2], [0.5, 4]], np.float32),
    discount=np.array([0.9, 0], np.float32), terminated=np.array([0, 0.9], np.float32), skill=column(3, 2.2),
    episode_return=np.array([6, 10], np.float32),
)  # fmt: skip
"""Two rows of the clock's task; the second ends its episode."""


def always(layers: list[dict], outputs: Any) -> list[dict]:
    """Returns the network with the given outputs, or one for all of them, whatever its inputs."""
    bias = jnp.broadcast_to(jnp.array(outputs, float), layers[-1]["bias"].shape)
    return [*layers[:-1], {"kernel": jnp.zeros_like(layers[-1]["kernel"]), "bias": bias}]


def taught(gradients: dict[str, Params]) -> set[str]:
    """Returns the names of the networks that have a gradient."""
    return {name for name, tree in gradients.items() if any(np.any(leaf) for leaf in jax.tree.leaves(tree))}


def assert_trees_close(actual: Any, expected: Any, **tolerance: float) -> None:
    """Asserts that two pytrees of arrays have one structure and nearly the same numbers."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), actual, expected)
