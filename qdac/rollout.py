"""The only code that steps an env: collecting transitions, executing skills, recording one episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdac.types import Array, EnvState, Params, Policy, Task, Transition

Explore = Callable[[Params, Array, Array, Array], Array]
"""(params, obs [num, obs_size], skill [num, skill_size], noise [num, action_size]) -> actions [num, action_size].

The noise is standard normal, drawn for all steps at once: small kernels inside the scan cost more than they compute."""


class Episodes(NamedTuple):
    """Running episodes, one an env; every field has the envs as its leading axis."""

    env: EnvState
    skill: Array
    num_steps: Array
    total_reward: Array
    feature_sum: Array
    key: Array


class EpisodeStats(NamedTuple):
    """Sums over the episodes that ended: divide by `count` for means."""

    count: Array
    total_reward: Array
    length: Array
    distance: Array
    is_finite: Array


def start_episodes(task: Task, key: Array, num_envs: int) -> Episodes:
    """Returns `num_envs` fresh episodes with uniform skills."""

    def start(key: Array) -> Episodes:
        key_env, key_skill, key = jax.random.split(key, 3)
        return Episodes(
            env=task.reset(key_env),
            skill=task.skill_space.sample(key_skill, 1)[0],
            num_steps=jnp.zeros((), jnp.int32),
            total_reward=jnp.zeros(()),
            feature_sum=jnp.zeros(task.skill_size),
            key=key,
        )

    return jax.vmap(start)(jax.random.split(key, num_envs))


def collect(
    task: Task, explore: Explore, params: Params, episodes: Episodes, num_steps: int
) -> tuple[Episodes, Transition, EpisodeStats]:
    """Returns the episodes after `num_steps` more steps, the transitions [num_envs, num_steps, ...], and stats.

    An episode that ends goes on as a new one, from a fresh reset with a fresh skill. Every env has
    one fresh start prepared for each call: resets cost little however often episodes end.
    """
    keys = jax.vmap(lambda key: jax.random.split(key, 4))(episodes.key)
    episodes = episodes._replace(key=keys[:, 0])
    fresh_env = jax.vmap(task.reset)(keys[:, 1])
    noise = jax.vmap(lambda key: jax.random.normal(key, (num_steps, task.action_size)), out_axes=1)(keys[:, 2])
    fresh_skills = jax.vmap(lambda key: task.skill_space.sample(key, num_steps), out_axes=1)(keys[:, 3])

    def one_step(episodes: Episodes, drawn: tuple[Array, Array]):
        noise, fresh_skill = drawn
        obs, skill = episodes.env.obs, episodes.skill
        feature = jax.vmap(task.feature)(episodes.env)
        action = explore(params, obs, skill, noise)
        env = jax.vmap(task.step)(episodes.env, action)
        num_steps = episodes.num_steps + 1
        terminated = env.done.astype(jnp.float32)
        truncated = jnp.where(num_steps >= task.episode_length, 1.0 - terminated, 0.0)
        total_reward = episodes.total_reward + env.reward
        feature_sum = episodes.feature_sum + feature
        transition = Transition(obs, action, env.reward, feature, env.obs, terminated, truncated, skill)

        ended = terminated + truncated
        distance = jnp.linalg.norm(feature_sum / num_steps[:, None] - skill, axis=-1)
        stats = EpisodeStats(
            count=ended.sum(),
            total_reward=(ended * total_reward).sum(),
            length=(ended * num_steps).sum(),
            distance=(ended * distance).sum(),
            is_finite=jnp.isfinite(env.obs).all() & jnp.isfinite(env.reward).all(),
        )
        fresh = Episodes(
            env=fresh_env,
            skill=fresh_skill,
            num_steps=jnp.zeros_like(num_steps),
            total_reward=jnp.zeros_like(total_reward),
            feature_sum=jnp.zeros_like(feature_sum),
            key=episodes.key,
        )
        current = Episodes(env, skill, num_steps, total_reward, feature_sum, episodes.key)
        episodes = jax.tree.map(
            lambda new, old: jnp.where(ended.reshape(-1, *(1,) * (old.ndim - 1)) > 0, new, old), fresh, current
        )
        return episodes, (transition, stats)

    episodes, (transitions, stats) = jax.lax.scan(one_step, episodes, (noise, fresh_skills))
    transitions = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), transitions)
    sums = jax.tree.map(lambda x: x.sum(0) if x.dtype != bool else x.all(0), stats)
    return episodes, transitions, sums


class Rollouts(NamedTuple):
    """One executed episode for each row."""

    observed_skill: Array
    """Mean feature over the steps lived, [num, skill_size]."""
    total_reward: Array
    length: Array


def execute(task: Task, policy: Policy, params: Params, skills: Array, keys: Array) -> Rollouts:
    """Returns one episode for each skill [num, skill_size], from a fresh reset, with deterministic actions."""

    def is_running(carry) -> Array:
        *_, alive, time = carry
        return jnp.any(alive > 0) & (time < task.episode_length)

    def one_step(carry):
        env, memory, rollouts, alive, time = carry
        feature = jax.vmap(task.feature)(env)
        memory, action = policy.step(params, memory, env.obs, skills)
        env = jax.vmap(task.step)(env, action)
        rollouts = Rollouts(
            rollouts.observed_skill + jnp.where(alive[:, None] > 0, feature, 0.0),
            rollouts.total_reward + jnp.where(alive > 0, env.reward, 0.0),
            rollouts.length + alive,
        )
        return env, memory, rollouts, jnp.where(env.done > 0, 0.0, alive), time + 1

    num = skills.shape[0]
    nothing = Rollouts(jnp.zeros((num, task.skill_size)), jnp.zeros(num), jnp.zeros(num))
    start = (jax.vmap(task.reset)(keys), policy.initial_carry(num), nothing, jnp.ones(num), jnp.zeros((), jnp.int32))
    _, _, rollouts, _, _ = jax.lax.while_loop(is_running, one_step, start)
    return rollouts._replace(observed_skill=rollouts.observed_skill / rollouts.length[:, None])


class Recording(NamedTuple):
    """Consecutive steps of one episode, [num_steps, ...]; those after its end are not alive."""

    picture: Any
    """What was to be seen of the state that each step was taken in."""
    feature: Array
    reward: Array
    alive: Array


def record(
    task: Task, policy: Policy, params: Params, skill: Array, episode: tuple, num_steps: int,
    look: Callable[[EnvState, Array], Any],
) -> tuple[tuple, Recording]:
    """Returns one episode after `num_steps` more deterministic steps, and what `look(state, skill)` saw.

    An episode is (env state, memory of the policy, alive), and begins as
    `(task.reset(key), policy.initial_carry(1), 1.0)`. The time limit is left to the caller.
    """

    def one_step(episode: tuple, _: None) -> tuple[tuple, Recording]:
        env, memory, alive = episode
        picture, feature = look(env, skill), task.feature(env)
        memory, action = policy.step(params, memory, env.obs[None], skill[None])
        env = task.step(env, action[0])
        return (env, memory, jnp.where(env.done > 0, 0.0, alive)), Recording(picture, feature, env.reward, alive)

    return jax.lax.scan(one_step, episode, length=num_steps)
