"""The replay buffer: a ring of transitions for each env, so that consecutive steps stay neighbours."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdac.types import Array, Transition


class Replay(NamedTuple):
    storage: Transition
    """Every field as [num_envs, capacity, ...]: the last `capacity` steps of each env."""
    returns: Array
    """[num_envs, capacity + 1]: the return, as far as it was lived, of episode e of each env at e % (capacity + 1).
    Episodes that steps are stored of are at most capacity + 1 apart, so that none takes another's place."""
    position: Array
    """Where the next step is written, the same for all envs."""
    size: Array
    """How many steps of each env are stored."""


class Batch(NamedTuple):
    """Rows to learn from, [num, ...], with the n steps from the first on that a target sums, [num, n, ...]."""

    obs: Array
    action: Array
    rewards: Array
    features: Array
    weights: Array
    """What each of the n steps counts in a discounted sum: discount ** i, and 0 after the end of the episode."""
    next_obs: Array
    """The true observation after those steps."""
    discount: Array
    """What the value at `next_obs` is worth: discount ** n, and 0 after a termination."""
    terminated: Array
    """The weight with which death, in place of a future, follows: discount ** n after a termination, else 0."""
    skill: Array
    episode_return: Array
    """The return of the episode it is from, or what of it was lived so far."""

    def discounted(self, discount: Array | float) -> Batch:
        """Returns the rows for another discount."""
        counts = self.weights > 0
        remaining = discount ** counts.sum(axis=1)
        return self._replace(
            weights=counts * discount ** jnp.arange(counts.shape[1]),
            discount=(self.discount > 0) * remaining,
            terminated=(self.terminated > 0) * remaining,
        )

    def discounted_sum(self, values: Array) -> Array:
        """Returns the sum over the n steps of values [num, n, ...]."""
        return jnp.einsum("bn,bn...->b...", self.weights, values)


class Sequences(NamedTuple):
    """Consecutive steps of an env, [num, length, ...], over the ends of episodes."""

    obs: Array
    action: Array
    reward: Array
    feature: Array
    terminated: Array
    is_first: Array
    """1.0 where what came before is not to be known: at the first step, and at the first of an episode."""


def init_replay(example: Transition, num_envs: int, capacity: int) -> Replay:
    """Returns an empty buffer for `capacity` steps of `num_envs` envs, shaped after one transition."""
    storage = jax.tree.map(lambda x: jnp.zeros((num_envs, capacity, *x.shape), x.dtype), example)
    returns = jnp.zeros((num_envs, capacity + 1))
    return Replay(storage, returns, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def insert(replay: Replay, steps: Transition) -> Replay:
    """Returns the buffer with [num_envs, num_steps, ...] more steps, over the oldest when it is full.

    The capacity must be a multiple of `num_steps`: one contiguous write, in place when donated.
    """
    num_envs, num_steps = steps.reward.shape
    capacity = replay.storage.reward.shape[1]
    storage = jax.tree.map(
        lambda buffer, new: jax.lax.dynamic_update_slice_in_dim(buffer, new, replay.position, axis=1),
        replay.storage,
        steps,
    )
    env, place = jnp.arange(num_envs)[:, None], steps.episode % (capacity + 1)
    has_ended = steps.terminated + steps.truncated > 0
    next_place = jnp.where(has_ended, (steps.episode + 1) % (capacity + 1), capacity + 1)
    returns = replay.returns.at[env, next_place].set(0.0, mode="drop").at[env, place].add(steps.reward)
    return Replay(
        storage,
        returns,
        position=(replay.position + num_steps) % capacity,
        size=jnp.minimum(replay.size + num_steps, capacity),
    )


def sample(replay: Replay, key: Array, num: int, discount: Array | float, n_step: int) -> tuple[Batch, Batch]:
    """Returns `num` uniform transitions twice: with n-step targets, and with one-step ones, where one step counts."""
    capacity = replay.storage.reward.shape[1]
    env, first = _draw(replay, key, num, n_step)

    def gather(field: Array, time: Array) -> Array:
        return field.at[env, time].get(mode="promise_in_bounds")

    def window(steps: int) -> Batch:
        """Returns the rows with targets over `steps` steps, cut short where the episode ends."""
        weight = jnp.ones(num)
        last = first
        is_over = jnp.zeros(num, bool)
        rewards, features, weights = [], [], []
        for i in range(steps):
            time = (first + i) % capacity
            last = jnp.where(is_over, last, time)
            rewards.append(gather(replay.storage.reward, time))
            features.append(gather(replay.storage.feature, time))
            weights.append(jnp.where(is_over, 0.0, weight))
            weight = jnp.where(is_over, weight, weight * discount)
            ended = gather(replay.storage.terminated, time) + gather(replay.storage.truncated, time)
            is_over |= ended > 0
        unused = n_step - steps
        terminated = gather(replay.storage.terminated, last)
        return Batch(
            obs=gather(replay.storage.obs, first),
            action=gather(replay.storage.action, first),
            rewards=jnp.pad(jnp.stack(rewards, axis=1), ((0, 0), (0, unused))),
            features=jnp.pad(jnp.stack(features, axis=1), ((0, 0), (0, unused), (0, 0))),
            weights=jnp.pad(jnp.stack(weights, axis=1), ((0, 0), (0, unused))),
            next_obs=gather(replay.storage.next_obs, last),
            discount=weight * (1.0 - terminated),
            terminated=weight * terminated,
            skill=gather(replay.storage.skill, first),
            episode_return=gather(replay.returns, gather(replay.storage.episode, first) % (capacity + 1)),
        )

    one_step = window(1)
    return (window(n_step) if n_step > 1 else one_step), one_step


def sample_sequences(replay: Replay, key: Array, num: int, length: int) -> Sequences:
    """Returns `num` uniform windows of `length` steps, their envs drawn as in `sample`."""
    capacity = replay.storage.reward.shape[1]
    env, first = _draw(replay, key, num, length)
    time = (first[:, None] + jnp.arange(length)) % capacity

    def gather(field: Array) -> Array:
        return field.at[env[:, None], time].get(mode="promise_in_bounds")

    steps = replay.storage
    terminated = gather(steps.terminated)
    ended = terminated + gather(steps.truncated)
    is_first = jnp.pad(ended[:, :-1], ((0, 0), (1, 0)), constant_values=1.0)
    return Sequences(
        gather(steps.obs), gather(steps.action), gather(steps.reward), gather(steps.feature), terminated, is_first
    )


def _draw(replay: Replay, key: Array, num: int, length: int) -> tuple[Array, Array]:
    """Returns envs and first places of `num` uniform windows of `length` stored steps.

    Rows are stratified over envs (row i comes from the i-th of `num` equal slices of the envs), which
    keeps the draw uniform, lowers its variance, and makes it the same on any number of devices.
    """
    num_envs, capacity = replay.storage.reward.shape
    key_env, key_time = jax.random.split(key)
    row = jnp.arange(num)
    env = ((row + jax.random.uniform(key_env, (num,))) * (num_envs / num)).astype(jnp.int32)
    env = jnp.clip(env, row * num_envs // num, -(-(row + 1) * num_envs // num) - 1)  # against rounding
    oldest = replay.position - replay.size
    age = jax.random.randint(key_time, (num,), 0, jnp.maximum(replay.size - length + 1, 1))
    return env, (oldest + age) % capacity
