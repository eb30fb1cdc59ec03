"""All losses of QDAC together against numbers worked out by hand, and which network each of them teaches."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import BATCH, always, assert_trees_close, clock_task, close, column, dial_task, small_config, taught

from qdac.agents import qdac
from qdac.replay import Batch
from qdac.types import Box, Circle, Params

GAMMA = 0.9
"""The discount of `small_config`."""


# The losses together, in the clock's task: skills in [0, 4], so N(x) = x / 2 - 1 and a unit is 2.


def constant_networks(agent: qdac.QDAC) -> tuple[dict[str, Params], dict[str, Params]]:
    """Returns networks with Q 4 and 6 (targets 3 and 5), psi -2 and 4 (1 and 3), multiplier 3/4, no entropy.

    Where the skill critic expects distances, it is their sums that are -2 and 4 (1 and 3).
    """
    state = agent.init(jax.random.PRNGKey(0))

    def critics(layers: dict[str, Params], value: np.ndarray, successor: np.ndarray) -> dict[str, Params]:
        value = agent.output_scale(GAMMA) * value
        scales = np.broadcast_to(agent.output_scale(agent.skill_discounts(GAMMA)), agent.skill_outputs)
        successor = scales * np.repeat(successor, agent.skill_outputs, axis=-1)
        outputs = {"critic": value, "successor": successor}
        if agent.config.shared_critics:
            outputs = {"critic": np.concatenate([value, successor], axis=-1)}
        return {name: always(layers[name], outputs[name]) for name in outputs}

    params = state.params | critics(state.params, column(4, 6), column(-2, 4))
    params["log_temperature"] = jnp.array(-50.0)
    if agent.config.multiplier is None:
        params["multiplier"] = always(params["multiplier"], math.log(3))
    return params, critics(state.target, column(3, 5), column(1, 3))


def losses(agent: qdac.QDAC, params: Any, target: Any, batch: Batch = BATCH) -> dict[str, jax.Array]:
    return jax.jit(agent.losses)(params, target, jnp.array(0), batch, jax.random.PRNGKey(0))[1]


@pytest.mark.parametrize("death", ["centre", "opposite"])
@pytest.mark.parametrize("average_heads", [False, True])
@pytest.mark.parametrize("shared_critics", [False, True])
def test_all_losses_of_constant_networks(shared_critics, average_heads, death):
    """The expected feature is 0.1 (2.2 in the task's units): the first skill is 0.8 away, the second there.

    Q is taught 1 + 0.9 * 3 and 2. psi is taught N(1) + 0.9 * 2, and N(3) + 0 at the death: or, since the
    skill 2.2 is right of the centre, N(3) + 0.9 * -1 / (1 - 0.9). Averages have errors 0.1 times as large.
    """
    config = small_config(shared_critics=shared_critics, average_heads=average_heads, death=death)
    agent = qdac.QDAC(config, clock_task())
    metrics = losses(agent, *constant_networks(agent))
    scale = 0.1 if average_heads else 1.0
    end = {"centre": 0.5, "opposite": -8.5}[death]
    close(metrics["loss/critic"], scale**2 * (0.3**2 + 2.3**2 + 2**2 + 4**2) / 8)
    close(metrics["loss/successor"], scale**2 * (3.3**2 + 2.7**2 + (-2 - end) ** 2 + (4 - end) ** 2) / 8)
    close(metrics["loss/actor"], -0.25 * 5 + 0.75 * (0.4 - 0.001) / 2, rtol=1e-4)
    close(metrics["loss/multiplier"], (math.log(4 / 3) + math.log(4)) / 2)
    close(metrics["train/value"], 5)
    close(metrics["train/expected_distance"], 0.8 / 2)
    close(metrics["train/satisfied"], 0.5)
    close(metrics["train/multiplier"], 0.75)


@pytest.mark.parametrize("average_heads", [False, True])
def test_the_actor_may_weigh_the_reward_of_a_step(average_heads):
    """As above, with 3 times 0.1 of the value of 5; only the actor sees it. A sum of distances, 1, has the whole."""
    agent = qdac.QDAC(small_config(step_reward_weight=3.0, average_heads=average_heads), clock_task())
    metrics = losses(agent, *constant_networks(agent))
    close(metrics["loss/actor"], -0.25 * 1.5 + 0.75 * (0.4 - 0.001) / 2, rtol=1e-4)
    close(metrics["train/value"], 5)
    config = small_config(step_reward_weight=3.0, average_heads=average_heads, skill_critic="distance")
    agent = qdac.QDAC(config, clock_task())
    close(losses(agent, *constant_networks(agent))["loss/actor"], -0.25 * 5 + 0.75 * 1, rtol=1e-4)


@pytest.mark.parametrize("average_heads", [False, True])
def test_balanced_critics_count_errors_in_variances_of_their_targets(average_heads):
    """As above: Q is taught 3.7 and 2, of variance 0.85^2; psi 1.3 and 0.5, of variance 0.4^2; units cancel."""
    agent = qdac.QDAC(small_config(balance_critics=True, average_heads=average_heads), clock_task())
    metrics = losses(agent, *constant_networks(agent))
    close(metrics["loss/critic"], (0.3**2 + 2.3**2 + 2**2 + 4**2) / 8 / 0.85**2, rtol=1e-3)
    close(metrics["loss/successor"], (3.3**2 + 2.7**2 + 2.5**2 + 3.5**2) / 8 / 0.4**2, rtol=1e-3)


@pytest.mark.parametrize("average_heads", [False, True])
@pytest.mark.parametrize("shared_critics", [False, True])
def test_losses_where_death_is_apart(shared_critics, average_heads):
    """psi has a second number, the share of the future that is death times its distance, 3; of both 0.1 is expected.

    The skills' own is taught N(1) + 0.9 * 2, and N(3) + 0.9 N(2.2) / (1 - 0.9): the dead do as they were asked. Of
    death it is taught 0 + 0.9 * 2 and 0.9 * 3 / (1 - 0.9).
    """
    config = small_config(shared_critics=shared_critics, average_heads=average_heads, death="apart", death_distance=3.0)
    agent = qdac.QDAC(config, clock_task())
    metrics = losses(agent, *constant_networks(agent))
    scale = 0.1 if average_heads else 1.0
    errors = [head - goal for head in (-2, 4) for goal in (1.3, 1.4, 1.8, 27.0)]
    close(metrics["loss/successor"], scale**2 * np.square(errors).mean() / 2, rtol=1e-4)
    close(metrics["loss/actor"], -0.25 * 5 + 0.75 * ((0.4 - 0.001) / 2 + 0.1), rtol=1e-4)
    close(metrics["train/expected_distance"], 0.4 + 0.2, rtol=1e-4)


@pytest.mark.parametrize("average_heads", [False, True])
@pytest.mark.parametrize("shared_critics", [False, True])
def test_features_may_have_a_shorter_horizon_than_death(shared_critics, average_heads):
    """gamma is 0.5 for the features and 0.9 for death: 0.5 and 0.1 are expected, both from sums of 1.

    Features are taught N(1) + 0.5 * 2, and N(3) + 0.5 N(2.2) / (1 - 0.5); death as before.
    """
    config = small_config(
        shared_critics=shared_critics, average_heads=average_heads, death="apart", death_distance=3.0,
        feature_discount=0.5,
    )  # fmt: skip
    agent = qdac.QDAC(config, clock_task())
    metrics = losses(agent, *constant_networks(agent))
    scales = [0.5, 0.5, 0.1, 0.1] if average_heads else [1.0] * 4
    errors = np.subtract.outer([-2, 4], [0.5, 0.6, 1.8, 27.0]) * scales
    close(metrics["loss/successor"], np.square(errors).mean() / 2, rtol=1e-4)
    close(metrics["loss/actor"], -0.25 * 5 + 0.75 * ((0.4 - 0.001) / 2 + 0.1), rtol=1e-4)
    close(metrics["train/expected_distance"], 0.4 + 0.2, rtol=1e-4)


@pytest.mark.parametrize("shared_critics", [False, True])
def test_losses_where_the_steps_lived_count(shared_critics):
    """psi has two more numbers, the share of death in the features' time and death's distance, 3; all heads sum to 1.

    gamma is 0.5 for the features and the share, 0.9 for death. Half of the future is lived, so that the features lived
    are twice as far as where death is apart, and 0.1 is death. The share is taught 0.5 * 2 and 0.5 / (1 - 0.5), the
    rest as there.
    """
    config = small_config(shared_critics=shared_critics, death="lived", death_distance=3.0, feature_discount=0.5)
    agent = qdac.QDAC(config, clock_task())
    metrics = losses(agent, *constant_networks(agent))
    errors = np.subtract.outer([-2, 4], [0.5, 0.6, 1.0, 1.0, 1.8, 27.0])
    close(metrics["loss/successor"], np.square(errors).mean() / 2, rtol=1e-4)
    close(metrics["loss/actor"], -0.25 * 5 + 0.75 * (2 * (0.4 - 0.001) / 2 + 0.1), rtol=1e-4)
    close(metrics["train/expected_distance"], 2 * 0.4 + 0.2, rtol=1e-4)


def test_horizons_are_the_task_s_where_asked_for():
    """A short horizon of 4 steps: 8 for features, 20 for Q and death, so 1 / (1 - 7/8) and 1 / (1 - 0.95)."""
    task = dataclasses.replace(clock_task(), short_horizon=4)
    agent = qdac.QDAC(small_config(discount=None, feature_discount=None, death="apart"), task)
    close(agent.skill_discounts(agent.discount(jnp.array(0))), [0.875, 0.95])


@pytest.mark.parametrize("short_horizon, n_step", [(2, 2), (5, 4), (20, 16), (33, 26)])
def test_windows_are_four_fifths_of_the_task_s_short_horizon_where_asked_for(short_horizon, n_step):
    task = dataclasses.replace(clock_task(), short_horizon=short_horizon)
    agent = qdac.QDAC(small_config(n_step=None, warmup_steps=1_000), task)
    assert agent.config.n_step == agent.config.window == n_step


def test_the_horizon_of_features_is_never_longer_than_gamma_s():
    agent = qdac.QDAC(
        small_config(discount=0.99, initial_discount=0.5, discount_updates=4, feature_discount=0.9, death="apart"),
        clock_task(),
    )
    for num_updates, expected in ((0, [0.5, 0.5]), (99, [0.9, 0.99])):
        close(agent.skill_discounts(agent.discount(jnp.array(num_updates))), expected)


def test_death_apart_is_a_distance_like_others_in_a_sum_of_distances():
    """As with the farthest feature, 0.4 and 0.9 times ten steps, but 3 away and not 1.1."""
    agent = qdac.QDAC(small_config(skill_critic="distance", death="apart", death_distance=3.0), clock_task())
    end = 0.4 + 27.0
    close(
        losses(agent, *constant_networks(agent))["loss/successor"],
        (4.8**2 + 1.2**2 + (-2 - end) ** 2 + (4 - end) ** 2) / 8, rtol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize(
    "normalize_features, expected", [(True, [[0.1, 1.1], [-0.5, 1.5]]), (False, [[2.2, 2.2], [1, 3]])]
)
def test_death_may_be_as_far_as_the_farthest_skill(normalize_features, expected):
    """In the space from 0 to 4, 0 is the farthest from 2.2 and 4 from 1; in the critics' units -1 and 1."""
    config = small_config(death="apart", death_distance=None, normalize_features=normalize_features)
    close(qdac.QDAC(config, clock_task()).after_death(np.array([[2.2], [1.0]], np.float32)), expected)


def test_averaged_heads_leave_the_actor_its_objective():
    """The same networks with outputs (1 - gamma) times as large stand for the same sums."""
    sums = qdac.QDAC(small_config(), clock_task())
    averages = qdac.QDAC(dataclasses.replace(sums.config, average_heads=True), sums.task)
    state = sums.init(jax.random.PRNGKey(0))

    def scaled(layers: list[dict]) -> list[dict]:
        return [*layers[:-1], jax.tree.map(lambda x: (1 - GAMMA) * x, layers[-1])]

    critics = {name: scaled(state.params[name]) for name in averages.critic_names}
    target = {name: scaled(state.target[name]) for name in averages.critic_names}
    expected = losses(sums, state.params, state.target)
    actual = losses(averages, state.params | critics, target)
    for name in ("loss/critic", "loss/successor"):
        expected[name] *= (1 - GAMMA) ** 2
    assert_trees_close(actual, expected, rtol=1e-4)


@pytest.mark.parametrize("skill_critic", ["successor", "distance"])
@pytest.mark.parametrize("shared_critics", [False, True])
def test_each_loss_teaches_its_own_network_only(shared_critics, skill_critic):
    agent = qdac.QDAC(small_config(shared_critics=shared_critics, skill_critic=skill_critic), clock_task())
    state = agent.init(jax.random.PRNGKey(0))

    def each_loss(params: dict[str, Params], target: dict[str, Params]) -> dict[str, jax.Array]:
        total, metrics = agent.losses(params, target, jnp.array(0), BATCH, jax.random.PRNGKey(0))
        parts = {name: metrics[f"loss/{name}"] for name in ("critic", "successor", "actor", "multiplier")}
        return parts | {"log_temperature": total - sum(parts.values())}

    slopes = jax.jit(jax.jacrev(each_loss, argnums=(0, 1)))(state.params, state.target)
    for loss, (gradients, target_gradients) in slopes.items():
        owner = "critic" if shared_critics and loss == "successor" else loss
        assert taught(gradients) == {owner}, loss
        assert not taught(target_gradients), loss


@pytest.mark.parametrize("feature_discount", [0.0, 0.5])
@pytest.mark.parametrize("normalize_features", [True, False])
@pytest.mark.parametrize("num_steps, is_dead", [(1, False), (3, False), (2, True)])
def test_targets_sum_what_counts_of_a_window(num_steps, is_dead, normalize_features, feature_discount):
    """Rewards and normalised features of three steps, of which the first 1, 2 or 3 were before the end."""
    space = Box((0.0, -1.0), (4.0, 2.0), (2, 2))
    config = small_config(
        normalize_features=normalize_features, death="opposite", feature_discount=feature_discount
    )
    agent = qdac.QDAC(config, clock_task(skill_space=space))
    rewards, features = np.array([1, 2, 4]), np.array([[1, 2], [3, -1], [0.5, 0]])
    weights = GAMMA ** np.arange(3) * (np.arange(3) < num_steps)
    remaining = np.array([GAMMA**num_steps])
    batch = jax.tree.map(lambda x: x[:1], BATCH)._replace(
        rewards=rewards[None], features=features[None], weights=weights[None], skill=np.array([[3.0, 0.0]]),
        discount=remaining * (not is_dead), terminated=remaining * is_dead,
    )  # fmt: skip
    metrics = losses(agent, *constant_networks(agent), batch)
    if normalize_features:
        features, far = features * [0.5, 2 / 3] - [1, 1 / 3], np.array([-1, 1])
    else:
        far = np.array([0, 2])
    value = weights @ rewards + batch.discount * 3
    gamma = feature_discount or GAMMA
    future = gamma**num_steps * (far / (1 - gamma) if is_dead else 2)
    successor = gamma ** np.arange(num_steps) @ features[:num_steps] + future
    close(metrics["loss/critic"], ((4 - value) ** 2 + (6 - value) ** 2).mean() / 4)
    close(metrics["loss/successor"], ((-2 - successor) ** 2 + (4 - successor) ** 2).mean() / 4)


# The ablations.


@pytest.mark.parametrize("death", ["centre", "opposite"])
@pytest.mark.parametrize("average_heads", [False, True])
@pytest.mark.parametrize("shared_critics", [False, True])
def test_losses_of_expected_distances(shared_critics, average_heads, death):
    """The skills are N(3) = 0.5 and N(2.2) = 0.1, the features N(1) = -0.5 and N(3) = 0.5, the expected sum 1.

    It is taught 1 + 0.9 * 2, and at the death 0.4 and 0.9 times ten steps at 0, 0.1 away, or at -1, 1.1 away.
    Its average of 0.1, 0.2 in the task's units, is within the threshold for both.
    """
    config = small_config(
        skill_critic="distance", shared_critics=shared_critics, average_heads=average_heads, death=death
    )
    agent = qdac.QDAC(config, clock_task())
    metrics = losses(agent, *constant_networks(agent))
    scale = 0.1 if average_heads else 1.0
    end = {"centre": 1.3, "opposite": 10.3}[death]
    close(metrics["loss/critic"], scale**2 * (0.3**2 + 2.3**2 + 2**2 + 4**2) / 8)
    close(metrics["loss/successor"], scale**2 * (4.8**2 + 1.2**2 + (-2 - end) ** 2 + (4 - end) ** 2) / 8)
    close(metrics["loss/actor"], -0.25 * 5 + 0.75 * 1, rtol=1e-4)
    close(metrics["loss/multiplier"], math.log(4))
    close(metrics["train/expected_distance"], 0.2)
    close(metrics["train/satisfied"], 1)


def test_distances_are_norms_summed_over_the_window():
    """Steps (3, 4), (0, 5) and one after the end, from the skill (0, 0): 5 + 0.9 * 5, then 0.81 * 2."""
    space = Box((-1.0, -1.0), (1.0, 1.0), (2, 2))
    agent = qdac.QDAC(small_config(skill_critic="distance"), clock_task(skill_space=space))
    batch = jax.tree.map(lambda x: x[:1], BATCH)._replace(
        rewards=np.zeros((1, 3)), features=np.array([[[3.0, 4.0], [0.0, 5.0], [9.0, 9.0]]]),
        weights=np.array([[1, GAMMA, 0]]), discount=np.array([0.81]), skill=np.zeros((1, 2)),
    )  # fmt: skip
    params, target = constant_networks(agent)
    assert params["successor"][-1]["bias"].shape == (2, 1)
    goal = 9.5 + 0.81 * 2
    close(losses(agent, params, target, batch)["loss/successor"], ((-2 - goal) ** 2 + (4 - goal) ** 2) / 4)


def test_the_unit_of_a_distance_is_the_mean_of_the_dimensions():
    """Units of 2 and 1.5, so that a sum of 4 distances over ten actions is 0.4 * 1.75 on average. Of actions that last
    3 env steps, over which the rewards beside them are summed, it is a sum of 12."""
    space = Box((0.0, -1.0), (4.0, 2.0), (2, 2))
    for action_repeat in (1, 3):
        config = small_config(skill_critic="distance", action_repeat=action_repeat)
        agent = qdac.QDAC(config, clock_task(skill_space=space))
        distance, skill_distance = agent.distances(jnp.array([[4.0]]), jnp.zeros((1, 2)), GAMMA)
        close(distance, [4 * action_repeat])
        close(skill_distance, [0.7])


@pytest.mark.parametrize("multiplier", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("skill_critic, distance", [("successor", (0.4 - 0.001) / 2), ("distance", 1.0)])
def test_a_fixed_multiplier_is_no_network(skill_critic, distance, multiplier):
    agent = qdac.QDAC(small_config(skill_critic=skill_critic, multiplier=multiplier), clock_task())
    params, target = constant_networks(agent)
    assert params.keys() == {"actor", "critic", "successor", "log_temperature"}
    metrics = losses(agent, params, target)
    close(metrics["loss/actor"], -(1 - multiplier) * 5 + multiplier * distance, rtol=1e-4)
    assert (metrics["loss/multiplier"], metrics["train/multiplier"]) == (0, multiplier)


# What the agent does around its losses.


@pytest.mark.parametrize("normalize_features, farthest", [(True, [[1], [-1]]), (False, [[5], [1]])])
def test_opposite_of_a_box_is_its_far_corner(normalize_features, farthest):
    """In [1, 5] the corner far from 2 is 5, from 4 it is 1; in units of the critics."""
    task = dial_task(skill_space=Box((1.0,), (5.0,), (4,)))
    agent = qdac.QDAC(small_config(normalize_features=normalize_features, death="opposite"), task)
    close(agent.death_feature(jnp.array([[2.0], [4.0]])), farthest)


@pytest.mark.parametrize("normalize_features", [True, False])
def test_opposite_of_a_heading_is_behind(normalize_features):
    config = small_config(normalize_features=normalize_features, death="opposite")
    agent = qdac.QDAC(config, dial_task(skill_space=Circle()))
    close(agent.death_feature(jnp.array([[0.6, -0.8]])), [[-0.6, 0.8]])


def test_threshold_falls_geometrically():
    """From 8 times 0.25, halved every 100 updates, to 0.25 after 300 and ever after."""
    agent = qdac.QDAC(small_config(initial_threshold=8.0, threshold_updates=300), clock_task())
    close([agent.threshold(n) for n in (0, 100, 200, 300, 1000)], [2, 1, 0.5, 0.25, 0.25])


def test_threshold_is_the_task_s_by_default():
    agent = qdac.QDAC(small_config(), clock_task())
    close([agent.threshold(n) for n in (0, 1000)], [0.25, 0.25])


def test_relabelled_rows_have_fresh_skills_and_one_step_targets():
    agent = qdac.QDAC(small_config(), clock_task())
    one_step = BATCH._replace(rewards=column(7, 8))
    rows = agent.rows(BATCH, one_step, jax.random.PRNGKey(0))
    first, second = (jax.tree.map(lambda x, i=i: x[i : i + 2], rows) for i in (0, 2))
    assert_trees_close(first, BATCH)
    assert_trees_close(second._replace(skill=BATCH.skill), one_step)
    assert not np.isin(second.skill, BATCH.skill).any()
    assert (0 <= second.skill).all() and (second.skill <= 4).all()


def test_without_relabel_the_batch_stays_as_it_is():
    agent = qdac.QDAC(small_config(relabel=False), clock_task())
    assert agent.rows(BATCH, BATCH, jax.random.PRNGKey(0)) is BATCH
