"""One update of a soft actor-critic, its schedules, what the networks see, and which configurations there are."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from probes import BATCH, assert_trees_close, clock_task, close, small_config

from qdac.agents import actor, qdac
from qdac.errors import UserError


@pytest.mark.parametrize("shared_critics", [False, True])
def test_update(shared_critics):
    """Adam's first step is the learning rate in every parameter with a gradient; targets follow at their rate."""
    config = small_config(
        shared_critics=shared_critics, learning_rate=1e-3, temperature_learning_rate=1e-2, target_rate=0.125
    )
    agent = qdac.QDAC(config, clock_task())
    old = agent.init(jax.random.PRNGKey(0))
    new, _ = jax.jit(agent.update)(old, (BATCH, BATCH), jax.random.PRNGKey(1))
    assert (old.num_updates, new.num_updates) == (0, 1)
    for name in old.params:
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), new.params[name], old.params[name])
        rate = 1e-2 if name == "log_temperature" else 1e-3
        close(max(jax.tree.leaves(moved)), rate, rtol=1e-3)
    critics = {name: new.params[name] for name in old.target}
    followed = jax.tree.map(lambda slow, fast: 0.875 * slow + 0.125 * fast, old.target, critics)
    assert_trees_close(new.target, followed, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("initial_discount, short_horizon", [(0.9, 20), (None, 10)])
def test_discount_widens_its_horizon_geometrically_between_iterations(initial_discount, short_horizon):
    """From a horizon of 10 to one of 1000 in 40 updates: 100 halfway, the same within an iteration of 4."""
    config = small_config(
        discount=0.999, initial_discount=initial_discount, discount_updates=40, updates_per_iteration=4
    )
    agent = qdac.QDAC(config, dataclasses.replace(clock_task(), short_horizon=short_horizon))
    for num_updates, horizon in ((0, 10), (3, 10), (20, 100), (23, 100), (40, 1000), (99, 1000)):
        close(1.0 / (1.0 - agent.discount(jnp.array(num_updates))), horizon, rtol=1e-3)


def test_learning_rate_moves_to_its_end_geometrically():
    """From 1e-3 to 1e-5 in 4 updates: a tenth in every 2, then no further. Adam's steps for a constant gradient."""
    agent = qdac.QDAC(
        small_config(
            learning_rate=1e-3, final_learning_rate=1e-5, learning_rate_updates=4, temperature_learning_rate=1e-2
        ),
        clock_task(),
    )
    params = agent.init(jax.random.PRNGKey(0)).params
    optimizer = agent.optimizer(params)
    state, steps = optimizer.init(params), []
    for _ in range(7):
        updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
        steps.append([-updates["actor"][0]["bias"][0], -updates["log_temperature"]])
    ends = [1e-3, 1e-3 * 10**-0.5, 1e-4, 1e-4 * 10**-0.5, 1e-5, 1e-5, 1e-5]
    close(steps, [[rate, 1e-2] for rate in ends], rtol=1e-3)


def test_gradients_are_clipped_network_by_network():
    """Adam's first moment after one step is a tenth of the gradient it was given."""
    agent = qdac.QDAC(small_config(max_gradient_norm=0.5), clock_task())
    params = agent.init(jax.random.PRNGKey(0)).params
    gradients = jax.tree.map(jnp.ones_like, params)
    optimizer = agent.optimizer(params)
    _, optimizer = optimizer.update(gradients, optimizer.init(params), params)
    moments = optax.tree_utils.tree_get_all_with_path(optimizer, "mu")
    close([optax.global_norm(moment) for _, moment in moments], [0.05] * len(params))


def test_moments_do_not_depend_on_how_observations_arrive():
    """Rounds of 2 x 3 and 2 x 5 observations: the mean and variance of all 16."""
    agent = qdac.QDAC(small_config(normalize_observations=True), clock_task())
    obs = np.random.default_rng(0).normal([3.0, -1.0], [2.0, 0.5], (2, 8, 2)).astype(np.float32)
    state = agent.init(jax.random.PRNGKey(0))
    for seen in (obs[:, :3], obs[:, 3:]):
        state = agent.observe(state, seen)
    close(state.moments.mean, obs.mean(axis=(0, 1)))
    close(state.moments.variance, obs.var(axis=(0, 1)))
    assert state.moments.count == 16
    close(state.moments.normalize(obs).std(axis=(0, 1)), [1, 1], rtol=1e-3)
    close(state.moments.normalize(state.moments.mean + 1e6), [10, 10])


def test_observations_reach_actor_and_critics_normalised():
    """The same step, shown in other units and normalised by its own moments, teaches the same."""
    agent = qdac.QDAC(small_config(normalize_observations=True), clock_task())
    start = agent.init(jax.random.PRNGKey(0))
    shift, scale = np.array([5.0, -2.0], np.float32), np.array([4.0, 0.5], np.float32)
    moments = [
        actor.Moments(jnp.zeros(2), jnp.ones(2) - 1e-4, jnp.ones(())),
        actor.Moments(jnp.array(shift), jnp.array(scale**2 - 1e-4), jnp.ones(())),
    ]
    batches = [BATCH, BATCH._replace(obs=BATCH.obs * scale + shift, next_obs=BATCH.next_obs * scale + shift)]
    key = jax.random.PRNGKey(1)
    noise = jax.random.normal(key, (2, agent.task.action_size))
    update = jax.jit(agent.update)
    results = []
    for of_units, batch in zip(moments, batches, strict=True):
        state = start._replace(moments=of_units)
        _, metrics = update(state, (batch, batch), key)
        _, action = agent.explore(agent.policy_params(state), (), batch.obs, batch.skill, noise)
        results.append((metrics, action))
    assert_trees_close(*results, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"learning_rate": 0.0}, "learning_rate should be positive, got 0.0"),
        ({"final_learning_rate": 1e-4}, "go together, both positive or both 0, got 0.0001 and 0"),
        ({"final_learning_rate": -1.0, "learning_rate_updates": 9}, "got -1.0 and 9"),
        ({"huber_scale": -1e-3}, "huber_scale should be positive, got -0.001"),
        ({"learning_rate": math.nan}, "learning_rate should be positive, got nan"),
        ({"n_step": 0}, "n_step should be positive, got 0"),
        ({"feature_discount": 1.0}, "feature_discount should be in [0, 1), got 1.0"),
        ({"death_distance": 0.0}, "death_distance should be positive, got 0.0"),
        ({"step_reward_weight": -1.0}, "step_reward_weight should not be negative, got -1.0"),
        ({"replay_parts": 0}, "replay_parts should be positive, got 0"),
        ({"updates_per_iteration": -1}, "updates_per_iteration should not be negative, got -1"),
        ({"initial_threshold": 8.0}, "got 8.0 and 0"),
        ({"threshold_updates": 300}, "got 0.0 and 300"),
        ({"initial_threshold": 8.0, "threshold_updates": -3}, "got 8.0 and -3"),
        ({"initial_discount": 0.5}, "got 0.5 and 0"),
        ({"initial_discount": None}, "got None and 0"),
        ({"discount_updates": 9}, "got 0.0 and 9"),
        ({"initial_discount": 1.0, "discount_updates": 9}, "initial_discount should be in [0, 1), got 1.0"),
        ({"n_step": 9, "warmup_steps": 19}, "a window of 9 steps of 4 envs, got 19"),
        ({"discount": 1.0}, "discount should be in [0, 1), got 1.0"),
        ({"target_rate": 0.0}, "target_rate should be in (0, 1], got 0.0"),
        ({"target_rate": 1.5}, "target_rate should be in (0, 1], got 1.5"),
        ({"multiplier": 1.5}, "multiplier should be in [0, 1], or none to learn it, got 1.5"),
        ({"multiplier": -0.5}, "got -0.5"),
        ({"hidden_sizes": ()}, "got ()"),
        ({"hidden_sizes": (8, 0)}, "got (8, 0)"),
    ],
)
def test_config_says_what_is_wrong(fields, message):
    with pytest.raises(UserError) as error:
        small_config(**fields)
    assert message in str(error.value)


def test_config_takes_the_limits():
    small_config(discount=0.0, target_rate=1.0, n_step=9, warmup_steps=20, updates_per_iteration=0)


def test_the_policy_that_acts_is_an_average_of_the_actor():
    """After each update it moves the given share of the way to the actor, from where the actor began."""
    agent = qdac.QDAC(small_config(actor_average_rate=0.25), clock_task())
    state = agent.init(jax.random.PRNGKey(0))
    expected = state.params["actor"]
    for seed in (1, 2):
        state, _ = agent.update(state, (BATCH, BATCH), jax.random.PRNGKey(seed))
        expected = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, expected, state.params["actor"])
        assert_trees_close(agent.policy_params(state)["actor"], expected, rtol=1e-5, atol=1e-7)
    assert not np.allclose(expected[0]["kernel"], state.params["actor"][0]["kernel"], rtol=1e-5, atol=0)


def test_the_actor_acts_itself_unless_averaged():
    agent = qdac.QDAC(small_config(), clock_task())
    state, _ = agent.update(agent.init(jax.random.PRNGKey(0)), (BATCH, BATCH), jax.random.PRNGKey(1))
    assert agent.policy_params(state)["actor"] is state.params["actor"]
    assert "actor" not in state.target
