"""Collection and execution on a clock whose every step is known: what is stored, and from which state."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Clock, clock_task

from qdac import rollout
from qdac.types import Array, Commands, Transition, skill_commands

START, TIME = 0, 1
"""Columns of the clock's observations."""
NUM_ENVS = 4
STEPS = 4
"""In each call of `collect`."""


class Counter(NamedTuple):
    """An explorer that remembers how often it was asked in an episode, beginning with 5."""

    commands: Commands

    def initial_carry(self, num: int) -> Array:
        return jnp.full(num, 5.0)


def explore(params, memory: Array, obs: Array, skill: Array, noise: Array) -> tuple[Array, Array]:
    """Returns random actions; none of them stops the clock."""
    return memory + 1.0, -jnp.abs(jnp.tanh(noise))


collect = jax.jit(rollout.collect, static_argnames=(
    "task", "explorer", "explore", "num_steps", "skill_steps", "action_repeat",
))  # fmt: skip


class Collected(NamedTuple):
    """Three consecutive calls of `collect`."""

    steps: Transition
    """Of all calls, [NUM_ENVS, 3 * STEPS, ...]."""
    episodes: list[rollout.Episodes]
    stats: list[rollout.EpisodeStats]


@functools.cache
def collected(
    lifetime: float = np.inf, episode_length: int = 1000, env: Clock | None = None, skill_steps: int = 0,
    action_repeat: int = 1,
) -> Collected:
    task = clock_task(lifetime, env=env, episode_length=episode_length)
    explorer = Counter(skill_commands(task))
    episodes = rollout.start_episodes(task, explorer, jax.random.PRNGKey(0), NUM_ENVS)
    calls = []
    for _ in range(3):
        episodes, *rest = collect(task, explorer, explore, (), episodes, STEPS, skill_steps, action_repeat)
        calls.append(jax.device_get((episodes, *rest)))
    states, transitions, stats = zip(*calls, strict=True)
    steps = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *transitions)
    return Collected(steps, list(states), list(stats))


def test_terminations_keep_the_true_next_observation():
    steps = collected(lifetime=3).steps
    np.testing.assert_array_equal(steps.obs[..., TIME], [[0, 1, 2] * 4] * NUM_ENVS)
    np.testing.assert_array_equal(steps.next_obs[..., TIME], [[1, 2, 3] * 4] * NUM_ENVS)
    np.testing.assert_array_equal(steps.next_obs[..., START], steps.obs[..., START])
    np.testing.assert_array_equal(steps.reward, steps.next_obs[..., TIME])
    np.testing.assert_array_equal(steps.terminated, [[0, 0, 1] * 4] * NUM_ENVS)
    np.testing.assert_array_equal(steps.truncated, 0)


def test_time_limits_are_not_terminations():
    steps = collected(episode_length=3).steps
    np.testing.assert_array_equal(steps.obs[..., TIME], [[0, 1, 2] * 4] * NUM_ENVS)
    np.testing.assert_array_equal(steps.next_obs[..., TIME], [[1, 2, 3] * 4] * NUM_ENVS)
    np.testing.assert_array_equal(steps.terminated, 0)
    np.testing.assert_array_equal(steps.truncated, [[0, 0, 1] * 4] * NUM_ENVS)


def test_a_death_on_the_last_step_is_a_termination():
    steps = collected(lifetime=3, episode_length=3).steps
    np.testing.assert_array_equal(steps.terminated, [[0, 0, 1] * 4] * NUM_ENVS)
    np.testing.assert_array_equal(steps.truncated, 0)


def test_features_belong_to_the_state_before_the_action():
    """Fresh after a reset too: the first feature of an episode is not the last of the one before."""
    steps = collected(lifetime=3).steps
    np.testing.assert_array_equal(steps.feature[..., 0], steps.obs[..., TIME])


def test_skills_change_exactly_where_episodes_start():
    steps = collected(lifetime=3).steps
    skill = steps.skill[..., 0]
    np.testing.assert_array_equal(np.diff(skill) != 0, steps.obs[:, 1:, TIME] == 0)
    assert len(np.unique(skill)) == NUM_ENVS * 4, "every episode asks for its own skill"
    assert (0 <= skill).all() and (skill <= 4).all()


def test_an_episode_that_is_told_a_fresh_skill_goes_on():
    """The clock and its policy's memory run on; the step before reads as the last of an episode that time ended."""
    steps, episodes, stats = collected(skill_steps=2)
    np.testing.assert_array_equal(steps.obs[..., TIME], [range(3 * STEPS)] * NUM_ENVS)
    np.testing.assert_array_equal(steps.terminated, 0)
    assert 8 < steps.truncated.sum() < 40, "of 48 steps, half"
    is_told = steps.truncated[:, :-1] == 1
    np.testing.assert_array_equal(np.diff(steps.skill[..., 0]) != 0, is_told)
    np.testing.assert_array_equal(np.diff(steps.episode), is_told)
    np.testing.assert_array_equal(episodes[-1].memory, [5 + 3 * STEPS] * NUM_ENVS)
    np.testing.assert_array_equal(episodes[-1].total_reward, [sum(range(3 * STEPS + 1))] * NUM_ENVS)

    distance, count = 0.0, 0
    for env in range(NUM_ENVS):
        parts = np.split(np.arange(3 * STEPS), np.flatnonzero(steps.truncated[env]) + 1)
        for part in parts[:-1]:
            distance += abs(part.mean() - steps.skill[env, part[0], 0])
            count += 1
    np.testing.assert_allclose(sum(sums.distance for sums in stats), distance, rtol=1e-6)
    assert sum(sums.num_skills for sums in stats) == count and not any(sums.count for sums in stats)


def test_a_fresh_skill_does_not_prolong_an_episode():
    steps, _, stats = collected(episode_length=3, skill_steps=2)
    np.testing.assert_array_equal(steps.obs[..., TIME], [[0, 1, 2] * 4] * NUM_ENVS)
    np.testing.assert_array_equal(steps.truncated[:, 2::3], 1)
    assert steps.truncated.sum() > NUM_ENVS * 4
    assert [int(sums.count) for sums in stats] == [NUM_ENVS, NUM_ENVS, 2 * NUM_ENVS]
    assert all(sums.length == 3 * sums.count for sums in stats)


def test_an_action_may_last():
    """Three steps each: their rewards are summed, their features averaged, and nothing in between is stored."""
    steps, episodes, _ = collected(action_repeat=3)
    time = 3 * np.arange(3 * STEPS)
    np.testing.assert_array_equal(steps.obs[..., TIME], [time] * NUM_ENVS)
    np.testing.assert_array_equal(steps.next_obs[..., TIME], [time + 3] * NUM_ENVS)
    np.testing.assert_array_equal(steps.reward, [3 * time + 1 + 2 + 3] * NUM_ENVS)
    np.testing.assert_array_equal(steps.feature[..., 0], [time + 1] * NUM_ENVS)
    np.testing.assert_array_equal(episodes[-1].num_steps, 9 * STEPS)
    np.testing.assert_array_equal(episodes[-1].memory, [5 + 3 * STEPS] * NUM_ENVS)


@pytest.mark.parametrize("limit", ["lifetime", "episode_length"])
def test_an_action_lasts_no_longer_than_the_episode(limit):
    """Four steps in actions of three: the second of each episode has one step of its own."""
    steps, _, stats = collected(**{limit: 4}, action_repeat=3)
    np.testing.assert_array_equal(steps.obs[..., TIME], [[0, 3] * 6] * NUM_ENVS)
    np.testing.assert_array_equal(steps.next_obs[..., TIME], [[3, 4] * 6] * NUM_ENVS)
    np.testing.assert_array_equal(steps.reward, [[6, 4] * 6] * NUM_ENVS)
    np.testing.assert_array_equal(steps.feature[..., 0], [[1, 3] * 6] * NUM_ENVS)
    ended = steps.terminated if limit == "lifetime" else steps.truncated
    np.testing.assert_array_equal(ended, [[0, 1] * 6] * NUM_ENVS)
    np.testing.assert_array_equal(steps.terminated + steps.truncated, ended)
    assert all(sums.length == 4 * sums.count and sums.is_finite for sums in stats)
    distance = np.abs(1.5 - steps.skill[:, 1::2, 0]).sum()
    np.testing.assert_allclose(sum(sums.distance for sums in stats), distance, rtol=1e-6)


def test_episodes_are_numbered_for_each_env():
    steps, episodes, _ = collected(lifetime=3)
    np.testing.assert_array_equal(steps.episode, [[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]] * NUM_ENVS)
    np.testing.assert_array_equal(episodes[0].episode, [1] * NUM_ENVS)
    for state in episodes:
        np.testing.assert_array_equal(state.index, range(NUM_ENVS))


def test_commands_are_drawn_for_the_env_they_are_for():
    """What a policy is told need be no skill: here it is the env's number twice, and nothing is a distance to it."""
    task = clock_task(lifetime=3)
    explorer = Counter(Commands(2, lambda key, env, num: jnp.full((num, 2), env, jnp.float32)))
    episodes = rollout.start_episodes(task, explorer, jax.random.PRNGKey(0), NUM_ENVS)
    half = jax.tree.map(lambda x: x[2:], episodes)
    half, steps, stats = collect(task, explorer, explore, (), half, STEPS)
    np.testing.assert_array_equal(steps.skill, np.tile([[[2.0]], [[3.0]]], (1, STEPS, 2)))
    np.testing.assert_array_equal(half.skill, [[2, 2], [3, 3]])
    assert (stats.count, stats.total_reward) == (2, 12) and np.isnan(stats.distance)


def test_memory_begins_anew_with_every_episode():
    for state in collected(lifetime=3).episodes:
        np.testing.assert_array_equal(state.memory, 5 + state.num_steps)


def test_every_reset_is_fresh():
    """No env returns to a state it started from before: the four episodes have four starts."""
    starts = collected(lifetime=3).steps.obs[..., START]
    assert len(np.unique(starts)) == NUM_ENVS * 4


def test_every_action_has_its_own_randomness():
    actions = collected(lifetime=3).steps.action
    assert len(np.unique(actions)) == actions.size


def test_envs_do_not_depend_on_their_neighbours():
    """Each env carries its own key: half of the envs alone live the same lives, so they can be sharded."""
    task = clock_task(lifetime=3)
    explorer = Counter(skill_commands(task))
    episodes = rollout.start_episodes(task, explorer, jax.random.PRNGKey(0), NUM_ENVS)
    half = jax.tree.map(lambda x: x[2:], episodes)
    _, alone, _ = collect(task, explorer, explore, (), half, STEPS)
    together = collected(lifetime=3).steps
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[2:, :STEPS], b), together, alone)


def test_episode_stats_are_sums_over_the_episodes_that_ended():
    """An episode of three steps: return 1 + 2 + 3, mean feature (0 + 1 + 2) / 3; calls cut some in two."""
    steps, _, stats = collected(lifetime=3)
    for call, num_ended in enumerate((1, 1, 2)):
        count, sums = NUM_ENVS * num_ended, stats[call]
        assert (sums.count, sums.total_reward, sums.length) == (count, 6 * count, 3 * count)
        rows = slice(call * STEPS, (call + 1) * STEPS)
        distances = np.abs(1.0 - steps.skill[:, rows, 0]) * steps.terminated[:, rows]
        np.testing.assert_allclose(sums.distance, distances.sum(), rtol=1e-6)
        assert sums.is_finite


def test_stats_are_zero_where_nothing_ended():
    _, _, stats = collected()
    assert all((sums.count, sums.total_reward, sums.length, sums.distance) == (0, 0, 0, 0) for sums in stats)


def test_running_totals_start_anew_with_the_episode():
    """After 8 steps the third episode is 2 steps old."""
    steps, episodes, _ = collected(lifetime=3)
    np.testing.assert_array_equal(episodes[1].num_steps, [2] * NUM_ENVS)
    np.testing.assert_array_equal(episodes[1].total_reward, [1 + 2] * NUM_ENVS)
    np.testing.assert_array_equal(episodes[1].feature_sum, [[0 + 1]] * NUM_ENVS)
    np.testing.assert_array_equal(episodes[1].skill, steps.skill[:, 2 * STEPS])


class Broken(Clock):
    """Shows or pays NaN in its sixth step."""

    def __init__(self, field: str):
        super().__init__()
        self.field = field

    def step(self, state, action):
        state = super().step(state, action)
        value = jnp.where(state.obs[TIME] == 6, jnp.nan, getattr(state, self.field))
        return state._replace(**{self.field: value})


@pytest.mark.parametrize("field", ["obs", "reward"])
def test_a_broken_env_is_noticed(field):
    first, second, _ = collected(env=Broken(field)).stats
    assert first.is_finite and not second.is_finite


class Mortal:
    """A policy that stops the clock after as many steps as the skill says; it remembers how many it made."""

    def initial_carry(self, num: int) -> Array:
        return jnp.zeros(num)

    def step(self, params, carry: Array, obs: Array, skill: Array) -> tuple[Array, Array]:
        carry += 1.0
        return carry, jnp.where(carry[:, None] >= skill, params, 0.0)


advance_queue = jax.jit(rollout.advance_queue, static_argnames=("task", "policy", "num_steps"))


def execute(task, policy, params, skills: Array, keys: Array, num_lanes: int, num_steps: int) -> rollout.Rollouts:
    """Returns the episodes of a queue that was advanced until none was left, as it should be step by step."""
    queue = rollout.start_queue(task, policy, keys, num_lanes)
    remaining = [int(rollout.num_remaining(queue))]
    while remaining[-1]:
        queue = advance_queue(task, policy, params, skills, keys, queue, num_steps)
        remaining.append(int(rollout.num_remaining(queue)))
    assert remaining[0] == len(keys) and remaining == sorted(remaining, reverse=True)
    return queue.results


def executed(skills: list[float], episode_length: int, num_lanes: int = 2, num_steps: int = 3) -> rollout.Rollouts:
    keys = jax.random.split(jax.random.PRNGKey(0), len(skills))
    task = clock_task(episode_length=episode_length)
    return execute(task, Mortal(), jnp.ones(()), jnp.array(skills)[:, None], keys, num_lanes, num_steps)


@pytest.mark.parametrize("num_lanes, num_steps", [(1, 7), (2, 1), (3, 3), (4, 3)])
def test_rollouts_count_only_the_steps_lived(num_lanes, num_steps):
    """k steps: mean feature (0 + ... + k-1) / k, return 1 + ... + k. The clock shows NaNs after its end."""
    rollouts = executed([1, 2, 5, 3], 10, num_lanes, num_steps)
    np.testing.assert_array_equal(rollouts.length, [1, 2, 5, 3])
    np.testing.assert_allclose(rollouts.observed_skill, [[0], [0.5], [2], [1]], rtol=1e-6)
    np.testing.assert_allclose(rollouts.total_reward, [1, 3, 15, 6], rtol=1e-6)


def test_rollouts_end_at_the_time_limit():
    rollouts = executed([2, 100], episode_length=4)
    np.testing.assert_array_equal(rollouts.length, [2, 4])
    np.testing.assert_allclose(rollouts.observed_skill, [[0.5], [1.5]], rtol=1e-6)
    np.testing.assert_allclose(rollouts.total_reward, [3, 10], rtol=1e-6)


def test_rollouts_start_from_their_own_keys():
    class Opener(Mortal):
        """Lives one step."""

        def step(self, params, carry, obs, skill):
            return carry, jnp.ones((obs.shape[0], 1))

    task = clock_task(feature_fn=lambda state: state.obs[:1])
    keys = jax.random.split(jax.random.PRNGKey(0), 5)
    rollouts = execute(task, Opener(), (), jnp.zeros((5, 1)), keys, num_lanes=2, num_steps=2)
    expected = [jax.random.uniform(key) for key in keys]
    np.testing.assert_allclose(rollouts.observed_skill[:, 0], expected, rtol=1e-6)
