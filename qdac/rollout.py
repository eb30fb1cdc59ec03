"""The only code that steps an env: collecting transitions, executing skills, recording one episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from qdac.types import Array, Commands, EnvState, Params, Policy, Task, Transition

Explore = Callable[[Params, Any, Array, Array, Array], tuple[Any, Array]]
"""(params, memory, obs [num, obs_size], command [num, size], noise [num, action_size]) -> memory, actions.

The noise is standard normal, drawn for all steps at once: small kernels inside the scan cost more than they compute."""


class Explorer(Protocol):
    """What is known of an agent while it collects, besides its `Explore`."""

    commands: Commands

    def initial_carry(self, num: int) -> Any:
        """Returns the memory of `num` episodes at their start, with the episodes as leading axis."""


class Episodes(NamedTuple):
    """Running episodes, one an env; every field has the envs as its leading axis."""

    index: Array
    """The number of the env."""
    episode: Array
    """How many episodes of the env came before; one that is told a fresh skill counts as another."""
    env: EnvState
    skill: Array
    """What the policy is told."""
    memory: Any
    """What the policy remembers."""
    num_steps: Array
    total_reward: Array
    num_told: Array
    """Steps since the policy was told its skill."""
    feature_sum: Array
    """Over those."""
    key: Array


class EpisodeStats(NamedTuple):
    """Sums over the episodes that ended: divide by `count` for means."""

    count: Array
    total_reward: Array
    length: Array
    num_skills: Array
    """How many skills the policy was told whose time is over."""
    distance: Array
    """To each of those; NaN where commands are no skills."""
    is_finite: Array


def start_episodes(task: Task, explorer: Explorer, key: Array, num_envs: int) -> Episodes:
    """Returns `num_envs` fresh episodes with fresh commands."""

    def start(key: Array, index: Array, memory: Any) -> Episodes:
        key_env, key_skill, key = jax.random.split(key, 3)
        return Episodes(
            index=index,
            episode=jnp.zeros((), jnp.int32),
            env=task.reset(key_env),
            skill=explorer.commands.draw(key_skill, index, 1)[0],
            memory=memory,
            num_steps=jnp.zeros((), jnp.int32),
            total_reward=jnp.zeros(()),
            num_told=jnp.zeros((), jnp.int32),
            feature_sum=jnp.zeros(task.skill_size),
            key=key,
        )

    memory = explorer.initial_carry(num_envs)
    return jax.vmap(start)(jax.random.split(key, num_envs), jnp.arange(num_envs), memory)


def collect(
    task: Task, explorer: Explorer, explore: Explore, params: Params, episodes: Episodes, num_steps: int,
    skill_steps: int = 0, action_repeat: int = 1,
) -> tuple[Episodes, Transition, EpisodeStats]:
    """Returns the episodes after `num_steps` more actions, the transitions [num_envs, num_steps, ...], and stats.

    An episode that ends goes on as a new one, from a fresh reset with a fresh command. Every env has
    one fresh start prepared for each call: resets cost little however often episodes end. With `skill_steps`,
    an episode is told a fresh command after that many actions on average, at any time; what was collected then reads
    as if the time limit had ended one episode, and another had begun where it was. An action lasts `action_repeat`
    env steps, or until the episode ends: its transition has the sum of their rewards and the mean of their features.
    """
    commands, fresh_memory = explorer.commands, explorer.initial_carry(episodes.index.shape[0])
    keys = jax.vmap(lambda key: jax.random.split(key, 5))(episodes.key)
    episodes = episodes._replace(key=keys[:, 0])
    fresh_env = jax.vmap(task.reset)(keys[:, 1])
    noise = jax.vmap(lambda key: jax.random.normal(key, (num_steps, task.action_size)), out_axes=1)(keys[:, 2])
    draw = jax.vmap(lambda key, index: commands.draw(key, index, num_steps), out_axes=1)
    fresh_skills = draw(keys[:, 3], episodes.index)
    chance = 1.0 / skill_steps if skill_steps else 0.0
    is_new = jax.vmap(lambda key: jax.random.bernoulli(key, chance, (num_steps,)), out_axes=1)(keys[:, 4])

    def one_step(episodes: Episodes, drawn: tuple[Array, Array, Array]):
        noise, fresh_skill, is_new = drawn
        obs, skill = episodes.env.obs, episodes.skill
        memory, action = explore(params, episodes.memory, obs, skill, noise)
        env, feature, reward, lived = act(task, episodes.env, action, episodes.num_steps, action_repeat)
        num_steps = episodes.num_steps + lived
        terminated = env.done.astype(jnp.float32)
        is_late = num_steps >= task.episode_length
        truncated = jnp.where(is_late | is_new, 1.0 - terminated, 0.0)
        total_reward = episodes.total_reward + reward
        num_told, feature_sum = episodes.num_told + lived, episodes.feature_sum + feature
        transition = Transition(
            obs, action, reward, feature / lived[:, None], env.obs, terminated, truncated, skill, episodes.episode
        )

        ended = jnp.where(is_late, 1.0, terminated)
        is_over = terminated + truncated
        if commands.are_skills:
            distance = jnp.linalg.norm(feature_sum / num_told[:, None] - skill, axis=-1)
        else:
            distance = jnp.full_like(total_reward, jnp.nan)
        stats = EpisodeStats(
            count=ended.sum(),
            total_reward=(ended * total_reward).sum(),
            length=(ended * num_steps).sum(),
            num_skills=is_over.sum(),
            distance=(is_over * distance).sum(),
            is_finite=jnp.isfinite(env.obs).all() & jnp.isfinite(reward).all(),
        )
        # What the end of an episode begins anew, and what the end of a skill's time does.
        env, memory, num_steps, total_reward = _choose(
            ended > 0,
            (fresh_env, fresh_memory, jnp.zeros_like(num_steps), jnp.zeros_like(total_reward)),
            (env, memory, num_steps, total_reward),
        )
        episode, skill, num_told, feature_sum = _choose(
            is_over > 0,
            (episodes.episode + 1, fresh_skill, jnp.zeros_like(num_told), jnp.zeros_like(feature_sum)),
            (episodes.episode, skill, num_told, feature_sum),
        )
        episodes = Episodes(
            episodes.index, episode, env, skill, memory, num_steps, total_reward, num_told, feature_sum, episodes.key
        )
        return episodes, (transition, stats)

    episodes, (transitions, stats) = jax.lax.scan(one_step, episodes, (noise, fresh_skills, is_new))
    transitions = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), transitions)
    sums = jax.tree.map(lambda x: x.sum(0) if x.dtype != bool else x.all(0), stats)
    return episodes, transitions, sums


def act(
    task: Task, env: EnvState, action: Array, num_steps: Array, action_repeat: int
) -> tuple[EnvState, Array, Array, Array]:
    """Returns the envs after actions that last up to `action_repeat` steps, their sums of features and rewards, and
    how many steps were lived, [num_envs]; `num_steps` is how many came before."""

    def one_step(env: EnvState) -> tuple[EnvState, Array, Array, Array]:
        feature, env = jax.vmap(task.feature)(env), jax.vmap(task.step)(env, action)
        return env, feature, env.reward, jnp.ones_like(num_steps)

    def one_more(sums: tuple[EnvState, Array, Array, Array], _: None):
        env, *so_far = sums
        goes_on = (env.done == 0) & (num_steps + so_far[-1] < task.episode_length)
        further, *added = one_step(env)
        return _choose(goes_on, (further, *jax.tree.map(jnp.add, so_far, added)), sums), None

    sums = one_step(env)
    return jax.lax.scan(one_more, sums, length=action_repeat - 1)[0] if action_repeat > 1 else sums


class Rollouts(NamedTuple):
    """One executed episode for each row."""

    observed_skill: Array
    """Mean feature over the steps lived, [num, skill_size]."""
    total_reward: Array
    length: Array


class Queue(NamedTuple):
    """Episodes, one a row, that a number of lanes executes.

    A lane whose episode has ended begins the next row that nobody has begun: no env waits for the longest episode.
    """

    env: EnvState
    memory: Any
    next_row: Array
    """The first row that nobody has begun, [1]."""
    row: Array
    """The row that each lane has, [num_lanes]."""
    is_running: Array
    sums: Rollouts
    """Of the episodes under way, [num_lanes]; sums of features in place of their means."""
    results: Rollouts
    """Of the episodes that have ended, [num_rows]."""


def start_queue(task: Task, policy: Policy, keys: Array, num_lanes: int) -> Queue:
    """Returns the queue of as many episodes as there are keys, none of them begun."""

    def nothing(num: int) -> Rollouts:
        return Rollouts(jnp.zeros((num, task.skill_size)), jnp.zeros(num), jnp.zeros(num))

    row = jnp.zeros(num_lanes, jnp.int32)
    env = jax.vmap(task.reset)(keys[row])
    return Queue(
        env, policy.initial_carry(num_lanes), jnp.zeros(1, jnp.int32), row, jnp.zeros(num_lanes, bool),
        nothing(num_lanes), nothing(len(keys)),
    )


def advance_queue(
    task: Task, policy: Policy, params: Params, skills: Array, keys: Array, queue: Queue, num_steps: int
) -> Queue:
    """Returns the queue after `num_steps` deterministic steps of each lane, for skills [num_rows, skill_size].

    Rows are begun at the start of a call only, by a quarter of the lanes at most: few resets, for those that need one.
    """
    num_rows, num_lanes = skills.shape[0], queue.row.shape[0]
    num_fresh = -(-num_lanes // 4)
    place = jnp.cumsum(~queue.is_running) - 1
    offered = queue.next_row + place
    begins = ~queue.is_running & (place < num_fresh) & (offered < num_rows)
    row = jnp.where(begins, offered, queue.row)
    starts = jax.vmap(task.reset)(keys[jnp.minimum(queue.next_row + jnp.arange(num_fresh), num_rows - 1)])
    fresh_env = jax.tree.map(lambda leaf: leaf[jnp.minimum(place, num_fresh - 1)], starts)
    fresh = fresh_env, policy.initial_carry(num_lanes), jax.tree.map(jnp.zeros_like, queue.sums)
    env, memory, sums = _choose(begins, fresh, (queue.env, queue.memory, queue.sums))
    was_running = queue.is_running | begins
    skill = skills[row]

    def one_step(carry, _):
        env, memory, sums, is_running = carry
        feature = jax.vmap(task.feature)(env)
        memory, action = policy.step(params, memory, env.obs, skill)
        env = jax.vmap(task.step)(env, action)
        sums = Rollouts(
            sums.observed_skill + jnp.where(is_running[:, None], feature, 0.0),
            sums.total_reward + jnp.where(is_running, env.reward, 0.0),
            sums.length + is_running,
        )
        return (env, memory, sums, is_running & (env.done == 0) & (sums.length < task.episode_length)), None

    (env, memory, sums, is_running), _ = jax.lax.scan(one_step, (env, memory, sums, was_running), length=num_steps)
    has_ended = was_running & ~is_running
    ended = sums._replace(observed_skill=sums.observed_skill / jnp.maximum(sums.length, 1.0)[:, None])
    place = jnp.where(has_ended, row, num_rows)
    results = jax.tree.map(lambda all_rows, new: all_rows.at[place].set(new, mode="drop"), queue.results, ended)
    return Queue(env, memory, queue.next_row + begins.sum(), row, is_running, sums, results)


def num_remaining(queue: Queue) -> Array:
    """Returns how many rows have not ended."""
    return queue.results.length.shape[0] - queue.next_row[0] + queue.is_running.sum()


def _choose(condition: Array, new: Any, old: Any) -> Any:
    """Returns the tree with the rows of `new` where the condition [num] holds, and of `old` elsewhere."""
    return jax.tree.map(
        lambda a, b: jnp.where(condition.reshape(-1, *(1,) * (b.ndim - 1)), a, b), new, old
    )


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
