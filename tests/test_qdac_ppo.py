"""QDAC on PPO: advantages and losses by hand, and a probe whose skills are known."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import always, clock_task, close, column, dial_task, small_config, taught, trained

from qdac import nets
from qdac.agents import qdac_ppo
from qdac.agents.qdac_ppo import QDACPPO, Config
from qdac.errors import UserError
from qdac.evaluation import Evaluator
from qdac.trunk import Trunk
from qdac.types import Transition

KEY = jax.random.PRNGKey(0)


def clock_agent(**fields) -> QDACPPO:
    return QDACPPO(small_config(Config, **{"replay_size": 1} | fields), clock_task())


def constant_state(agent: QDACPPO, critic: list[float], logit: float):
    """Returns a state whose critic and multiplier say the same of everything, and whose actor is N(0, s)."""
    state = agent.init(KEY)
    outputs = {"critic": critic, "multiplier": logit, "actor": 0.0}
    params = {name: always(layers, outputs[name]) for name, layers in state.params.items()}
    return state._replace(params=params)


STEPS = Transition(
    obs=np.array([[[0.5, 0], [0.5, 1]]], np.float32), action=np.array([[[0.2], [-0.4]]], np.float32),
    reward=np.array([[1, 2]], np.float32), feature=np.array([[[1], [3]]], np.float32),
    next_obs=np.array([[[0.5, 1], [0.5, 2]]], np.float32), terminated=np.array([[0, 1]], np.float32),
    truncated=np.zeros((1, 2), np.float32), skill=np.full((1, 2, 1), 2.2, np.float32),
    episode=np.zeros((1, 2), np.int32),
)  # fmt: skip
"""One env for two steps, at the end of which it dies. N(1) = -0.5, N(3) = 0.5, N(2.2) = 0.1."""


def test_advantages_are_the_sums_of_a_plain_loop():
    rng = np.random.default_rng(0)
    lived, value, next_value = rng.normal(size=(3, 4, 7, 2)).astype(np.float32)
    is_last = (rng.uniform(size=(4, 7)) < 0.3).astype(np.float32)
    discounts, mix = np.array([0.9, 0.5], np.float32), 0.8
    found = qdac_ppo.advantages(lived, value, next_value, is_last, discounts, mix)
    for env in range(4):
        later = np.zeros(2)
        for time in range(6, -1, -1):
            if is_last[env, time]:
                later = np.zeros(2)
            step = env, time
            error = (1 - discounts) * lived[step] + discounts * next_value[step] - value[step]
            later = error + discounts * mix * later
            close(found[step], later, rtol=1e-4, atol=1e-6)


def test_clipped_objective():
    """Twice as likely: 1.2 counts of what was good, 2 of what was bad. Half as likely: 0.5 and 0.8."""
    log_ratio = jnp.log(jnp.array([2.0, 2.0, 0.5, 0.5]))
    close(qdac_ppo.actor_loss(log_ratio, jnp.array([1.0, -1.0, 1.0, -1.0]), 0.2), -(1.2 - 2 + 0.5 - 0.8) / 4)
    assert np.isfinite(qdac_ppo.actor_loss(jnp.array([1e4]), jnp.array([-1.0]), 0.2))


def test_divergence():
    close(qdac_ppo.divergence(jnp.log(jnp.array([2.0, 0.5]))), (1 - math.log(2) - 0.5 + math.log(2)) / 2)
    close(qdac_ppo.divergence(jnp.zeros(3)), 0.0, atol=0)


@pytest.mark.parametrize("death, weight", [("centre", 1.0), ("apart", 1.0), ("apart", 3.0), ("apart", 0.0)])
def test_what_a_step_did_to_the_objective(death, weight):
    """One-step advantages with gamma 0.9, of a critic that expects a reward of 4, the feature 0.5, no death.

    Value: 0.1 * 1 + 0.9 * 4 - 4 = -0.3, and at death 0.1 * 2 - 4 = -3.8. Feature: -0.05 + 0.45 - 0.5 = -0.1 and then,
    if what follows is the centre, 0.05 - 0.5 = -0.45; if it is the skill 0.1, 0.05 + 0.09 - 0.5 = -0.36, and death,
    2 a step, is 0.9 * 2. The feature is above the skill: to lower it is good. lambda is 0.75. In a second env the
    rewards are 11 and 12, the values 0.1 * 10 = 1 more. Undivided, all of them count 1 / 0.1 = 10 times.
    """
    agent = clock_agent(death=death, return_mix=0.0, huber_scale=1e-6, step_reward_weight=weight)
    is_apart = death == "apart"
    state = constant_state(agent, [4.0, 0.5] + [0.0] * is_apart, math.log(3))
    steps = jax.tree.map(lambda field: np.concatenate([field, field]), STEPS)
    steps.reward[1] += 10
    rows = agent.judged(state, steps)
    goals = [[3.7, 0.4, 0.0], [0.2, 0.14 if is_apart else 0.05, 1.8]]
    close(rows.goal[0], np.array(goals)[:, : 2 + is_apart], atol=1e-5)
    of_skill = 0.75 * np.array([0.1, 0.36 - 1.8 if is_apart else 0.45])
    advantage = 0.25 * (weight or 10) * np.array([[-0.3, -3.8], [0.7, -2.8]]) + of_skill
    close(rows.advantage, (advantage - advantage.mean()) / advantage.std(), rtol=1e-4, atol=1e-5)
    close(jnp.tanh(rows.pre_tanh), steps.action)


def test_the_long_average_says_where_to_go_and_the_short_one_what_an_action_did():
    """As above, apart, with lambda 1: the feature is expected at 0.5 soon and at -0.3 in the long run. That is below
    the skill 0.1, so to raise it is good: what a step did to the short average, -0.1 and -0.36, counts with its sign
    turned around. The long average has a goal of its own, with gamma 0.95: 0.05 * -0.5 + 0.95 * -0.3, and at death
    0.05 * 0.5 + 0.95 * 0.1."""
    agent = clock_agent(
        death="apart", return_mix=0.0, huber_scale=1e-6, multiplier=1.0, average_discount=0.95, death_distance=1e-6
    )
    state = constant_state(agent, [4.0, 0.5, 0.0, -0.3], 0.0)
    rows = agent.judged(state, STEPS)
    close(rows.goal[0], [[3.7, 0.4, 0.0, -0.31], [0.2, 0.14, 0.0, 0.12]], atol=1e-5)
    close(rows.advantage[0], [1.0, -1.0], rtol=1e-3)
    _, metrics = agent.losses(state.params, jnp.array(0), rows_of(rows), KEY)
    close(metrics["train/expected_distance"], 0.8)


def test_the_share_of_death_has_a_long_average_too_where_the_steps_lived_count():
    """As above, where death is also expected to be half of the long run: what is lived is 0.4 / 0.5 away, twice that in
    the task's units. Of death a step teaches 0.9 * 0 and 0.9 for the short time, 0.95 * 0.5 and 0.95 for the long."""
    agent = clock_agent(
        death="lived", return_mix=0.0, huber_scale=1e-6, multiplier=1.0, average_discount=0.95, death_distance=1e-6
    )
    state = constant_state(agent, [4.0, 0.5, 0.0, 0.0, -0.3, 0.5], 0.0)
    rows = agent.judged(state, STEPS)
    close(rows.goal[0], [[3.7, 0.4, 0.0, 0.0, -0.31, 0.475], [0.2, 0.14, 0.9, 0.0, 0.12, 0.95]], atol=1e-5)
    _, metrics = agent.losses(state.params, jnp.array(0), rows_of(rows), KEY)
    close(metrics["train/expected_distance"], 1.6)


def test_long_averages_are_ten_times_the_task_s_short_horizon_where_asked_for():
    """In actions: one that lasts 2 steps is worth two."""
    task = dataclasses.replace(clock_task(), short_horizon=20, action_repeat=2)
    config = small_config(Config, replay_size=1, average_discount=None, action_repeat=None).for_task(task)
    assert config.action_repeat == 2
    close(config.average_discount, 0.99)


def test_noise_shrinks_between_rounds():
    """From 1 to 0.25 over 8 updates, 4 of them a round; what collects and what judges agree."""
    agent = clock_agent(final_noise=0.25, noise_updates=8, updates_per_iteration=4)
    found = [float(agent.noise(jnp.array(num))) for num in (0, 3, 4, 7, 8, 100)]
    close(found, [1, 1, 0.5, 0.5, 0.25, 0.25])
    state = constant_state(agent, [4.0, 0.5], 0.0)._replace(num_updates=jnp.array(4))
    obs, skill, noise = jnp.zeros((1, 2)), jnp.full((1, 1), 2.2), jnp.ones((1, 1))
    _, std = agent.gaussian(jnp.zeros((1, 2)))
    _, action = agent.explore(agent.collector_params(state), (), obs, skill, noise)
    close(action, jnp.tanh(0.5 * std[:, :1]))
    judged = agent.judged(state, STEPS)
    close(judged.log_prob, nets.tanh_gaussian_log_prob(jnp.zeros(1), 0.5 * std[0, :1], judged.pre_tanh))


def rows_of(steps: qdac_ppo.Rows) -> qdac_ppo.Rows:
    """Returns the steps of one env as a mini-batch."""
    return jax.tree.map(lambda field: field[0], steps)


def test_an_action_is_held_as_long_as_it_lasts():
    """Two episodes, the second begun a step later: each decides at its own first step, and then every third."""
    agent = clock_agent(action_repeat=3)
    params, skill = agent.policy_params(agent.init(KEY)), jnp.full((2, 1), 2.2)
    obs = jax.random.normal(KEY, (7, 2, 2))
    fresh, carry, actions = agent.initial_carry(2), agent.initial_carry(2), []
    for time in range(7):
        if time == 1:
            carry = jax.tree.map(lambda now, new: now.at[1].set(new[1]), carry, fresh)
        carry, action = agent.step(params, carry, obs[time], skill)
        actions.append(action)
    decided = [agent.act(params, now, skill) for now in obs]
    for time, (first, second) in enumerate(zip((0, 0, 0, 3, 3, 3, 6), (0, 1, 1, 1, 4, 4, 4), strict=True)):
        close(actions[time], jnp.stack([decided[first][0], decided[second][1]]))


def test_skills_and_rewards_weigh_as_the_multiplier_says():
    """As above, apart: with lambda near 1 death is all that counts, near 0 the reward; a fixed one counts as it is."""
    steps = STEPS._replace(reward=np.array([[1, 90]], np.float32))
    for fields, logit, better in (({}, 20.0, 0), ({}, -20.0, 1), ({"multiplier": 1.0}, 0.0, 0)):
        agent = clock_agent(death="apart", return_mix=0.0, **fields)
        advantage = agent.judged(constant_state(agent, [4.0, 0.5, 0.0], logit), steps).advantage[0]
        assert int(advantage.argmax()) == better


def rows(agent: QDACPPO, log_prob: float = 0.0) -> qdac_ppo.Rows:
    state = np.array([[0.5, 1, 0.1], [0.5, 3, 0.1]], np.float32)
    mean, std = agent.gaussian(jnp.zeros((2, 2)))
    pre_tanh = column(0.2, -0.4)
    old = nets.tanh_gaussian_log_prob(mean[:, :1], std[:, :1], pre_tanh) + log_prob
    goal = jnp.array([[3, 0.1], [5, 0.3]])
    return qdac_ppo.Rows(state, column(2.2, 2.2), pre_tanh, old, jnp.array([1.0, -1.0]), goal)


def test_losses_by_hand():
    """The critic says 4 and 0.5 where 3 and 5, 0.1 and 0.3 were right: variances 1 and 0.01. N(2.2) is 0.4 away, 0.8 in
    the task's units, more than 0.25: violated. The ratio is 1."""
    agent = clock_agent()
    state = constant_state(agent, [4.0, 0.5], math.log(3))
    gradients, metrics = jax.grad(agent.losses, has_aux=True)(state.params, jnp.array(0), rows(agent), KEY)
    close(metrics["loss/critic"], 0.5, rtol=1e-4)
    close(metrics["loss/successor"], 0.5 * (0.4**2 + 0.2**2) / 2 / 0.01, rtol=1e-3)
    close(metrics["loss/actor"], 0.0, atol=1e-6)
    close(metrics["loss/multiplier"], math.log(4 / 3))
    close(metrics["train/expected_distance"], 0.8)
    close(metrics["train/value"], 40.0, rtol=1e-4)
    assert taught(gradients) == {"actor", "critic", "multiplier"}


def test_an_actor_that_has_moved_on_waits_for_the_next_round():
    agent = clock_agent()
    state = agent.init(KEY)
    for log_prob, moves in ((0.0, True), (2.0, False)):
        updated, _ = agent.update(state, rows(agent, log_prob), KEY)
        changed = jax.tree.map(lambda a, b: bool((a != b).any()), updated.params, state.params)
        assert any(jax.tree.leaves(changed["critic"]))
        assert any(jax.tree.leaves(changed["actor"])) == moves
        memory, before = (jax.tree.leaves(s.optimizer.inner_states["actor"]) for s in (updated, state))
        assert any(np.any(new != old) for new, old in zip(memory, before, strict=True)) == moves
    # One that has learned something keeps it.
    state, _ = agent.update(state, rows(agent, 0.0), KEY)
    updated, _ = agent.update(state, rows(agent, 2.0), KEY)
    jax.tree.map(
        np.testing.assert_array_equal, updated.optimizer.inner_states["actor"], state.optimizer.inner_states["actor"]
    )


def test_an_average_of_the_actor_is_the_policy_and_the_actor_itself_collects():
    agent = clock_agent(actor_average_rate=0.25)
    state = agent.init(KEY)
    start = state.params["actor"]
    state, _ = agent.update(state, rows(agent), KEY)
    actor = state.params["actor"]
    expected = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, start, actor)
    jax.tree.map(close, agent.policy_params(state)["actor"], expected)
    assert agent.collector_params(state)["actor"] is actor
    assert not np.allclose(start[-1]["kernel"], actor[-1]["kernel"], atol=1e-6)


def test_steps_are_judged_by_the_policy_that_collected_them(monkeypatch):
    """Whose observations are scaled by moments that have not seen the round."""
    agent = clock_agent(normalize_observations=True)
    monkeypatch.setattr(agent, "draw", lambda state, replay, key: state.moments.count[None])
    monkeypatch.setattr(agent, "update", lambda state, count, key: (state, {"count": count[0]}))
    trunk = Trunk(agent, agent.task, jax.devices()[:1])
    state = trunk.init(KEY)
    for count in (0, 16, 32):
        state, metrics, _ = trunk.iterate(state)
        assert metrics["count"] == count


def test_actions_tell_what_they_were_before_the_tanh():
    mean, std = nets.bounded_gaussian(jnp.array([[-100.0, 0.0, 100.0, -100.0, 0.0, 100.0]]))
    close(mean, [[-2, 0, 2]])
    assert (std >= 0.05).all() and (std <= 1.0).all()
    far = jnp.array([-5.0, 0.3, 5.0])
    close(jnp.arctanh(jnp.tanh(far)), far, rtol=1e-3)


def test_learns_from_the_round_it_has_just_collected():
    agent = clock_agent(steps_per_iteration=4)
    trunk = Trunk(agent, agent.task, jax.devices()[:1])
    assert trunk.capacity == 4
    state = trunk.init(KEY)
    for _ in range(2):
        state, _, _ = trunk.iterate(state)
    assert int(state.replay.position) == 0
    np.testing.assert_array_equal(state.replay.storage.obs[:, :, 1], [[4, 5, 6, 7]] * 4)


def test_executes_the_skills_that_can_be_executed():
    """Half the dial is shown, so of the skills in [-1, 1] those within 0.5 can be had, and the end for the others."""
    config = small_config(
        Config, num_envs=64, steps_per_iteration=16, updates_per_iteration=32, batch_size=256, learning_rate=2e-3,
        entropy_bonus=0.0, replay_size=1,
    )  # fmt: skip
    agent = QDACPPO(config, dial_task(threshold=0.01))
    state, metrics = trained(agent, 200)
    skill = column(-0.9, -0.4, 0.0, 0.3, 0.8)
    executed = Evaluator(agent.task, agent)(agent.policy_params(state), skill, num_rollouts=1, seed=0)
    np.testing.assert_allclose(executed.observed_skills[:, 0], np.clip(skill, -0.5, 0.5), atol=0.2)
    assert metrics["train/multiplier"] > 0.8


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"return_mix": 1.5}, "return_mix should be in [0, 1], got 1.5"),
        ({"clip_ratio": 0.0}, "clip_ratio should be positive, got 0.0"),
        ({"max_divergence": -1.0}, "max_divergence should be positive, got -1.0"),
        ({"entropy_bonus": -1.0}, "entropy_bonus should not be negative, got -1.0"),
        ({"step_reward_weight": -1.0}, "step_reward_weight should not be negative, got -1.0"),
        ({"action_repeat": 0}, "action_repeat should be positive, got 0"),
        ({"average_discount": 1.0}, "average_discount should be in [0, 1), got 1.0"),
        ({"final_noise": 0.2}, "final_noise and noise_updates go together"),
        ({"skill_steps": -1}, "skill_steps should not be negative, got -1"),
        ({"multiplier_sizes": ()}, "multiplier_sizes should be positive widths, got ()"),
        ({"replay_size": 10_000}, "replay_size should be 1, for nothing but the round just collected is kept"),
        ({"replay_parts": 3}, "replay_parts should be 1"),
        ({"warmup_steps": 64}, "warmup_steps should be 0"),
        ({"uniform_warmup": True}, "uniform_warmup should be False"),
    ],
)
def test_config_says_what_is_wrong(fields, message):
    with pytest.raises(UserError) as error:
        clock_agent(**fields)
    assert message in str(error.value)
