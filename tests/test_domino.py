"""DOMiNO: repulsion, bounds and averages by hand, whose rows are whose, and a set that spreads as far as it may."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import (
    BATCH,
    QUICK,
    always,
    assert_trees_close,
    clock_task,
    close,
    column,
    hill_task,
    needs_two_devices,
    small_config,
    taught,
)

from qdac import nets
from qdac import replay as replay_lib
from qdac.agents import domino
from qdac.agents.actor import Moments, State
from qdac.agents.domino import DOMiNO, diversity_direction, multiplier_loss, nearest_gaps
from qdac.errors import UserError
from qdac.trunk import Trunk
from qdac.types import Box, Params, Transition

GAMMA = 0.9
"""The discount of `small_config`."""
KEY = jax.random.PRNGKey(0)
PLANE = Box((0.0, -1.0), (4.0, 2.0), (2, 2))


def config(**fields: Any) -> domino.Config:
    return small_config(domino.Config, **{"num_policies": 2} | fields)


def of_policy(tree: Params, i: int) -> Params:
    return jax.tree.map(lambda leaf: leaf[i], tree)


# The equations.


def test_gaps_are_to_the_nearest_other_policy():
    """Of (0, 0), (3, 4) and (3, 0) the last is nearest to both others, and the first to the last."""
    gaps = nearest_gaps(jnp.array([[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]]))
    np.testing.assert_array_equal(gaps, [[-3, 0], [0, 4], [3, 0]])


def test_policies_in_one_place_have_no_gap():
    np.testing.assert_array_equal(nearest_gaps(jnp.ones((3, 2))), np.zeros((3, 2)))


@pytest.mark.parametrize(
    "gap, spacing, direction",
    [
        ([0.6, 0.8], 2.0, [0.525, 0.7]),
        ([-0.5, 0.0], 1.0, [-0.4375, 0]),
        ([0.6, 0.8], 1.0, [0, 0]),
        ([2.0, 0.0], 1.0, [-14, 0]),
        ([0.0, 0.0], 1.0, [0, 0]),
        ([3.0, 4.0], 0.0, [3, 4]),
    ],
)
def test_policies_repel_within_the_spacing_and_attract_beyond(gap, spacing, direction):
    """(1 - l³ / l_0³) of the gap: 7/8 at half the spacing, none at it, -7 at twice; all of it without a spacing."""
    close(diversity_direction(jnp.array([gap]), spacing), [direction], atol=1e-6)


@pytest.mark.parametrize("values", [[10.0, 9.5, 8.5], [-10.0, -10.5, -11.5]])
def test_multipliers_grow_above_the_bound_and_fall_below(values):
    """Bounds of 9 and -11: half above and half below it, times the slope 1/4 of the sigmoid at 0."""
    loss = functools.partial(multiplier_loss, values=jnp.array(values), optimality=0.9)
    close(jax.grad(loss)(jnp.zeros(3)), [0, -0.125, 0.125])
    close(loss(jnp.array([5.0, math.log(3), 0.0])), -0.75 * 0.5 + 0.5 * 0.5)


@pytest.mark.parametrize(
    "num_policies, space, factor, spacing",
    [(10, Box((0.0,), (4.0,), (4,)), 1.0, 0.2), (4, PLANE, 1.0, 1.0), (4, PLANE, 0.5, 0.5), (4, PLANE, 0.0, 0.0)],
)
def test_spacing_is_that_of_policies_that_fill_the_space(num_policies, space, factor, spacing):
    fields = {"num_policies": num_policies, "num_envs": 20, "batch_size": 20, "spacing": factor}
    close(DOMiNO(config(**fields), clock_task(skill_space=space)).spacing, spacing)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_policies": 1}, "num_policies should be at least 2, got 1"),
        ({"num_envs": 5}, "num_envs should be a multiple of the 2 policies, got 5"),
        ({"batch_size": 33}, "batch_size should be a multiple of the 2 policies, got 33"),
        ({"optimality": 1.1}, "optimality should be in [0, 1], got 1.1"),
        ({"value_decay": -0.1}, "value_decay should be in [0, 1], got -0.1"),
        ({"multiplier_learning_rate": 0.0}, "got 0.0 and 1.0"),
        ({"spacing": -1.0}, "got 0.001 and -1.0"),
    ],
)
def test_config_says_what_is_wrong(fields, message):
    with pytest.raises(UserError) as error:
        config(**fields)
    assert message in str(error.value)


# The losses of two policies, one row each, on the clock: N(x) = x / 2 - 1.


def constant_networks(agent: DOMiNO) -> State:
    """Returns two policies at -0.5 and 0.25 with Q 4 and 6 (targets 3 and 5), diversity's 1 and 3 (1 and 2).

    Both have a multiplier of 3/4, which is not for the first, and no entropy.
    """
    state = agent.init(KEY)
    scale = agent.output_scale(GAMMA)
    params = state.params | {
        "critic": always(state.params["critic"], scale * column(4, 6, 1, 3)),
        "log_temperature": jnp.full(2, -50.0),
        "multiplier": jnp.full(2, math.log(3)),
    }
    target = state.target | {
        "critic": always(state.target["critic"], scale * column(3, 5, 1, 2)),
        "features": jnp.array([[-0.5], [0.25]]),
    }
    return state._replace(params=params, target=target)


@pytest.mark.parametrize("average_heads", [False, True])
def test_losses_of_constant_networks(average_heads):
    """Policies 0.75 apart, with a spacing of 1: the second is paid (1 - 27/64) 3/4 of its feature N(3) = 0.5.

    It dies, so that its critics are taught 2 and that. The first's are taught 1 + 0.9 * 3, and 0 + 0.9 * 1: no
    diversity is its own. It maximises 4, the smaller head; the second 1/4 of that and 3/4 of 1.
    """
    agent = DOMiNO(config(average_heads=average_heads), clock_task())
    state = constant_networks(agent)
    _, metrics = jax.jit(agent.losses)(state.params, state.target, jnp.array(0), BATCH, KEY)
    scale = 0.1 if average_heads else 1.0
    diversity = 37 / 64 * 0.75 * 0.5
    errors = np.array([0.3, 2.3, 0.1, 2.1, 2, 4, 1 - diversity, 3 - diversity])
    close(metrics["loss/critic"], scale**2 * (errors**2).sum() / 16)
    close(metrics["loss/actor"], -(4 + 0.25 * 4 + 0.75 * 1) / 2)
    close(metrics["train/value"], 4)
    close(metrics["train/multiplier"], 0.75)
    close(metrics["train/gap"], 0.75)


@pytest.mark.parametrize("action_repeat", [1, 3])
def test_diversity_is_summed_over_the_window(action_repeat):
    """Features N(3) and N(1), then one after the end: 0.5 - 0.9 * 0.5 of the direction, and 0.81 * 1 to come.

    Rewards are sums over the env steps of an action, features are means: they count for each of those.
    """
    agent = DOMiNO(config(action_repeat=action_repeat), clock_task())
    state = constant_networks(agent)
    batch = BATCH._replace(
        rewards=np.array([[1.0, 2, 9]] * 2), features=np.array([[[3.0], [1], [9]]] * 2),
        weights=np.array([[1, 0.9, 0]] * 2), discount=np.full(2, 0.81),
    )  # fmt: skip
    _, metrics = jax.jit(agent.losses)(state.params, state.target, jnp.array(0), batch, KEY)
    goals = np.array([2.8 + 0.81 * 3] * 2 + [0.81] + [action_repeat * 37 / 64 * 0.75 * 0.05 + 0.81])
    heads = np.array([[4, 6], [4, 6], [1, 3], [1, 3]])
    close(metrics["loss/critic"], np.square(heads - goals[:, None]).sum() / 16)


def test_each_loss_teaches_its_own_networks_only():
    agent = DOMiNO(config(), clock_task())
    state = agent.init(KEY)
    target = state.target | {"values": jnp.array([10.0, 9.5]), "features": jnp.array([[-0.5], [0.25]])}

    def each_loss(params: dict[str, Params]) -> dict[str, jax.Array]:
        total, metrics = agent.losses(params, target, jnp.array(0), BATCH, KEY)
        return {"total": total, "critic": metrics["loss/critic"], "actor": metrics["loss/actor"]}

    slopes = jax.jit(jax.jacrev(each_loss))(state.params)
    assert taught(slopes["critic"]) == {"critic"} and taught(slopes["actor"]) == {"actor"}
    assert taught(slopes["total"]) == state.params.keys()
    close(slopes["total"]["multiplier"], [0, -0.125])


# Whose rows, envs and networks are whose.


@pytest.mark.parametrize("preset", [domino.Config(), domino.LAPTOP, domino.DEBUG], ids=["paper", "laptop", "debug"])
def test_rows_belong_to_the_policy_they_were_collected_by(preset):
    agent = DOMiNO(preset, clock_task())
    env = jnp.arange(preset.num_envs)
    command = jax.vmap(lambda i: agent.commands.draw(KEY, i, 1))(env)
    np.testing.assert_array_equal(np.bincount(command[:, 0, 0].astype(int)), preset.num_envs / preset.num_policies)
    nothing = jnp.zeros((preset.num_envs, 1))
    steps = Transition(
        obs=nothing[..., None], action=nothing[..., None], reward=nothing, feature=nothing[..., None],
        next_obs=nothing[..., None], terminated=nothing, truncated=nothing, skill=command,
        episode=nothing.astype(jnp.int32),
    )  # fmt: skip
    example = jax.tree.map(lambda x: x[0, 0], steps)
    replay = replay_lib.insert(replay_lib.init_replay(example, len(env), 1, 1, KEY), steps)
    draw = jax.jit(lambda key: agent.by_policy(replay_lib.sample(replay, key, preset.batch_size, GAMMA, 1)[0]))
    for key in jax.random.split(KEY, 20):
        rows = draw(key).skill[..., 0]
        assert rows.shape == (preset.num_policies, preset.batch_size // preset.num_policies)
        np.testing.assert_array_equal(rows, np.tile(np.arange(preset.num_policies)[:, None], rows.shape[1]))


def test_a_policy_learns_from_its_own_rows():
    """Another second half of the batch changes the networks and averages of the second policy only."""
    agent = DOMiNO(config(), clock_task())
    start = agent.init(KEY)
    other = BATCH._replace(obs=np.array([[0.5, 1], [0.1, 9]], np.float32), rewards=column(1, 200))
    update = jax.jit(agent.update)
    one, two = (update(start, (batch, batch), KEY)[0] for batch in (BATCH, other))
    for name in ("actor", "critic"):
        kernels = one.params[name][0]["kernel"], two.params[name][0]["kernel"]
        np.testing.assert_array_equal(*(kernel[0] for kernel in kernels))
        assert not np.allclose(*(kernel[1] for kernel in kernels), rtol=1e-5, atol=0)
    close(one.target["values"], [0.1, 0.2])
    close(two.target["values"], [0.1, 20])


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_envs_in_a_row_are_asked_together(num_devices):
    """3 policies with 4 envs each, of which a device has 12, 6 or 3."""
    fields = {"num_policies": 3, "num_envs": 12, "batch_size": 12, "normalize_observations": True}
    agent = DOMiNO(config(**fields), clock_task())
    state = agent.init(KEY)._replace(moments=Moments(jnp.array([1.0, -2.0]), jnp.array([4.0, 0.25]), jnp.ones(())))
    params = agent.policy_params(state)
    command = jax.vmap(lambda i: agent.commands.draw(KEY, i, 1)[0])(jnp.arange(12))
    obs, noise = jax.random.normal(KEY, (12, 2)), jax.random.normal(jax.random.PRNGKey(1), (12, 1))
    mean, std = agent.action_distribution(params, obs, command)
    for i in range(3):
        rows = slice(4 * i, 4 * i + 4)
        outputs = nets.apply_mlp(of_policy(state.params["actor"], i), state.moments.normalize(obs[rows]))
        assert_trees_close((mean[rows], std[rows]), nets.tanh_gaussian(outputs), rtol=1e-4, atol=1e-6)
    shares = [jnp.split(x, num_devices) for x in (obs, command, noise)]
    explored = [agent.explore(params, (), *share)[1] for share in zip(*shares, strict=True)]
    close(jnp.concatenate(explored), jnp.tanh(mean + std * noise), rtol=1e-4, atol=1e-6)


@needs_two_devices
def test_two_devices_collect_what_one_does():
    """Devices that cut the envs of the middle policy in two."""
    fields = {"num_policies": 3, "num_envs": 12, "batch_size": 12, "updates_per_iteration": 0}
    agent = DOMiNO(config(**fields), clock_task(lifetime=3))
    steps = []
    for num_devices in (1, 2):
        trunk = Trunk(agent, agent.task, jax.devices()[:num_devices])
        steps.append(jax.device_get(trunk.iterate(trunk.init(KEY))[0].replay.storage))
    assert_trees_close(*steps, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(steps[1].skill[:, 0, 0], np.repeat([0, 1, 2], 4))


def test_a_skill_is_executed_by_the_nearest_policy():
    """In units of N. The skill (6, 0.7) is N's (0.2, 0.4): sqrt(0.2) from (0, 0) and 0.6 from (0.2, 1).

    In the task's units those are (5, 0.5) and (6, 1), 1.02 and 0.3 away.
    """
    task = clock_task(skill_space=Box((0.0, 0.0), (10.0, 1.0), (2, 2)))
    agent = DOMiNO(config(num_policies=3, num_envs=3, batch_size=3), task)
    state = agent.init(KEY)
    features = jnp.array([[0.0, 0.0], [0.2, 1.0], [-1.0, -1.0]])
    params = agent.policy_params(state._replace(target=state.target | {"features": features}))
    skill, command = np.array([[6, 0.7], [6, 1], [0, 0], [5, 0.5]], np.float32), column(0, 1, 2, 0)
    np.testing.assert_array_equal(agent.command(params, skill), command)
    obs = np.tile(BATCH.obs[:1], (4, 1))
    _, action = agent.step(params, (), obs, skill)
    close(action, agent.act(params, obs, command))
    assert len(np.unique(action)) == 3


# What an update keeps.


def test_averages_are_decayed_means_of_the_first_steps():
    """Rewards 1 and 3, 2 and 4; features N(1) and N(2), N(4) and N(3): means 2 and 3, -0.25 and 0.75."""
    agent = DOMiNO(config(), clock_task())
    rows = jax.tree.map(lambda x: np.repeat(x, 2, axis=0), BATCH)
    batch = rows._replace(
        rewards=np.array([[1, 9], [3, 9], [2, 9], [4, 9]], np.float32),
        features=np.array([[1, 9], [2, 9], [4, 9], [3, 9]], np.float32)[..., None], weights=np.ones((4, 2), np.float32),
    )  # fmt: skip
    update, state = jax.jit(agent.update), agent.init(KEY)
    for share in (1, 1.9):
        state, _ = update(state, (batch, rows), KEY)
        close(state.target["values"], share * np.array([0.2, 0.3]))
        kept = 0.01 if share == 1 else 0.0199
        close(state.target["features"], kept * column(-0.25, 0.75))


def test_multipliers_move_by_their_own_rate_within_bounds():
    """Adam's first step; the first policy has none to learn, the last is beyond the bound."""
    fields = {"num_policies": 4, "num_envs": 4, "batch_size": 4, "multiplier_learning_rate": 0.25}
    agent = DOMiNO(config(**fields), clock_task())
    state = agent.init(KEY)
    state = state._replace(
        params=state.params | {"multiplier": jnp.array([0.0, 0.0, 0.0, 20.0])},
        target=state.target | {"values": jnp.array([10.0, 9.5, 8.5, 9.5])},
    )
    batch = jax.tree.map(lambda x: np.repeat(x, 2, axis=0), BATCH)
    state, _ = jax.jit(agent.update)(state, (batch, batch), KEY)
    close(state.params["multiplier"], [0, 0.25, -0.25, domino.LOGIT_BOUND], rtol=1e-4)


# A probe: a hill whose top is in the middle.


@pytest.mark.usefixtures("optimized")
def test_policies_spread_as_far_as_their_reward_allows():
    """The hill pays 1 - a². The first policy stays on its top, the others go down both sides to 0.9 of its reward.

    The lambda at which they stay there makes them repel: lambda gamma / (2 (1 - lambda)) (1 - (l / l_0)³) = 1.
    """
    fields = {"num_policies": 3, "num_envs": 15, "batch_size": 96, "replay_size": 240, "learning_rate": 1e-3,
              "initial_temperature": 0.03, "feature_decay": 0.95, "spacing": 0.75}  # fmt: skip
    agent = DOMiNO(config(**QUICK | fields), hill_task(episode_length=20))
    trunk = Trunk(agent, agent.task, jax.devices()[:1])
    state, seen = trunk.init(KEY), []
    for _ in range(200):
        state, metrics, _ = trunk.iterate(state)
        averages = state.agent.target["values"], state.agent.target["features"]
        seen.append(jax.device_get((*averages, metrics["train/multiplier"])))
    values, features, multiplier = jax.tree.map(lambda *x: np.mean(x, axis=0), *seen[-100:])
    assert values[0] > 0.95
    close(values[1:], [0.9 * values[0]] * 2, atol=0.03)
    close(np.sort(features[:, 0]), [-0.23, 0, 0.23], atol=0.06)
    strength = multiplier * GAMMA / (2 * (1 - multiplier))
    close(strength * (1 - (0.23 / agent.spacing) ** 3), 1, atol=0.2)
