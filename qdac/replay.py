"""The replay buffer: a ring of transitions for each env, so that consecutive steps stay neighbours."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdac.types import Array, Transition


class Replay(NamedTuple):
    storage: Transition
    """Every field as [num_envs, capacity, ...]: the last `capacity` steps of each env."""
    position: Array
    """Where the next step is written, the same for all envs."""
    size: Array
    """How many steps of each env are stored."""


class Batch(NamedTuple):
    """Rows to learn from. With n-step targets `reward` and `feature` are discounted sums over n steps."""

    obs: Array
    action: Array
    reward: Array
    feature: Array
    next_obs: Array
    """The true observation after those steps."""
    discount: Array
    """What the value at `next_obs` is worth: discount ** n, and 0 after a termination."""
    terminated: Array
    """The weight with which death, in place of a future, follows: discount ** n after a termination, else 0."""
    skill: Array


def init_replay(example: Transition, num_envs: int, capacity: int) -> Replay:
    """Returns an empty buffer for `capacity` steps of `num_envs` envs, shaped after one transition."""
    storage = jax.tree.map(lambda x: jnp.zeros((num_envs, capacity, *x.shape), x.dtype), example)
    return Replay(storage, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def insert(replay: Replay, steps: Transition) -> Replay:
    """Returns the buffer with [num_envs, num_steps, ...] more steps, over the oldest when it is full.

    The capacity must be a multiple of `num_steps`: one contiguous write, in place when donated.
    """
    num_steps = steps.reward.shape[1]
    capacity = replay.storage.reward.shape[1]
    storage = jax.tree.map(
        lambda buffer, new: jax.lax.dynamic_update_slice_in_dim(buffer, new, replay.position, axis=1),
        replay.storage,
        steps,
    )
    return Replay(
        storage,
        position=(replay.position + num_steps) % capacity,
        size=jnp.minimum(replay.size + num_steps, capacity),
    )


def sample(replay: Replay, key: Array, num: int, discount: Array | float, n_step: int) -> tuple[Batch, Batch]:
    """Returns `num` uniform transitions twice: with n-step targets, and with one-step targets.

    Rows are stratified over envs (row i comes from the i-th of `num` equal slices of the envs), which
    keeps the draw uniform, lowers its variance, and makes it the same on any number of devices.
    """
    num_envs, capacity = replay.storage.reward.shape
    key_env, key_time = jax.random.split(key)
    slot = jnp.arange(num) + jax.random.uniform(key_env, (num,))
    env = jnp.minimum((slot * (num_envs / num)).astype(jnp.int32), num_envs - 1)
    oldest = replay.position - replay.size
    age = jax.random.randint(key_time, (num,), 0, jnp.maximum(replay.size - n_step + 1, 1))
    first = (oldest + age) % capacity

    def gather(field: Array, time: Array) -> Array:
        return field.at[env, time].get(mode="promise_in_bounds")

    def window(steps: int) -> Batch:
        """Returns the rows with targets over `steps` steps, cut short where the episode ends."""
        reward = jnp.zeros(num)
        feature = jnp.zeros((num, replay.storage.feature.shape[-1]))
        weight = jnp.ones(num)
        last = first
        is_over = jnp.zeros(num, bool)
        for i in range(steps):
            time = (first + i) % capacity
            last = jnp.where(is_over, last, time)
            current = jnp.where(is_over, 0.0, weight)
            reward += current * gather(replay.storage.reward, time)
            feature += current[:, None] * gather(replay.storage.feature, time)
            weight = jnp.where(is_over, weight, weight * discount)
            ended = gather(replay.storage.terminated, time) + gather(replay.storage.truncated, time)
            is_over |= ended > 0
        terminated = gather(replay.storage.terminated, last)
        return Batch(
            obs=gather(replay.storage.obs, first),
            action=gather(replay.storage.action, first),
            reward=reward,
            feature=feature,
            next_obs=gather(replay.storage.next_obs, last),
            discount=weight * (1.0 - terminated),
            terminated=weight * terminated,
            skill=gather(replay.storage.skill, first),
        )

    one_step = window(1)
    return (window(n_step) if n_step > 1 else one_step), one_step
