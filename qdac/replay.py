"""The replay buffer: rows of transitions for each env, in parts within which consecutive steps are neighbours.

A replay of one part is a ring, which forgets the oldest. Of several parts, the newest steps have one, and what the
others hold is a uniform sample of all there ever was (reservoir sampling, by parts).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdac.types import Array, Transition


class Replay(NamedTuple):
    storage: Transition
    """Every field as [num_envs, capacity, ...]."""
    returns: Array
    """[num_envs, capacity + 1]: the return, as far as it was lived, of episode e of each env at e % (capacity + 1).
    In a ring, episodes that steps are stored of are at most capacity + 1 apart, so that none takes another's place."""
    position: Array
    """Where the next step is written, the same for all envs."""
    num_seen: Array
    """How many steps of each env were ever written."""
    part_size: Array
    """How many steps of each env a part holds."""
    key: Array
    """Decides which parts are written anew."""

    @property
    def capacity(self) -> int:
        return self.storage.reward.shape[1]

    @property
    def size(self) -> Array:
        """Returns how many steps of each env are stored."""
        return jnp.minimum(self.num_seen, self.capacity)

    def is_cut(self, place: Array) -> Array:
        """Returns whether what is stored after a place is something else than the step that came next."""
        following = place + 1
        is_end = (following % self.part_size == 0) & (self.part_size < self.capacity)
        return is_end | (following % self.capacity == self.position)


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
    """Consecutive steps of an env, [num, length, ...], over the ends of episodes and of what was stored together."""

    obs: Array
    action: Array
    reward: Array
    feature: Array
    terminated: Array
    is_first: Array
    """1.0 where what came before is not to be known: at the first step, at the first of an episode, and at the first
    that has something else stored before it."""


def init_replay(example: Transition, num_envs: int, capacity: int, num_parts: int, key: Array) -> Replay:
    """Returns an empty buffer for `capacity` steps of `num_envs` envs, shaped after one transition.

    The capacity must be a multiple of the parts.
    """
    storage = jax.tree.map(lambda x: jnp.zeros((num_envs, capacity, *x.shape), x.dtype), example)
    returns = jnp.zeros((num_envs, capacity + 1))
    nowhere = jnp.zeros((), jnp.int32)
    return Replay(storage, returns, nowhere, nowhere, jnp.int32(capacity // num_parts), key)


def insert(replay: Replay, steps: Transition) -> Replay:
    """Returns the buffer with [num_envs, num_steps, ...] more steps, over others when it is full.

    A part must hold a multiple of `num_steps`: one contiguous write, in place when donated.
    """
    num_envs, num_steps = steps.reward.shape
    capacity = replay.capacity
    storage = jax.tree.map(
        lambda buffer, new: jax.lax.dynamic_update_slice_in_dim(buffer, new, replay.position, axis=1),
        replay.storage,
        steps,
    )
    env, place = jnp.arange(num_envs)[:, None], steps.episode % (capacity + 1)
    has_ended = steps.terminated + steps.truncated > 0
    next_place = jnp.where(has_ended, (steps.episode + 1) % (capacity + 1), capacity + 1)
    returns = replay.returns.at[env, next_place].set(0.0, mode="drop").at[env, place].add(steps.reward)
    key, key_part = jax.random.split(replay.key)
    replay = replay._replace(
        storage=storage, returns=returns, position=replay.position + num_steps, num_seen=replay.num_seen + num_steps,
        key=key,
    )  # fmt: skip
    return replay._replace(position=_next_position(replay, key_part))


def _next_position(replay: Replay, key: Array) -> Array:
    """Returns where to go on: at the end of a part, in the next empty one, or in one that is written anew.

    Where n parts were seen for S that there are, that is any of them with probability S / n, and else the one just
    written: what the others hold is then equally likely to be of any time.
    """
    key_keep, key_part = jax.random.split(key)
    num_parts = replay.capacity // replay.part_size
    is_kept = jax.random.uniform(key_keep) * replay.num_seen < replay.capacity
    any_part = jax.random.randint(key_part, (), 0, num_parts)
    part = jnp.where(is_kept, any_part, replay.position // replay.part_size - 1)
    is_full = replay.num_seen >= replay.capacity
    is_end = replay.position % replay.part_size == 0
    return jnp.where(is_end & is_full, part * replay.part_size, replay.position)


def sample(replay: Replay, key: Array, num: int, discount: Array | float, n_step: int) -> tuple[Batch, Batch]:
    """Returns `num` uniform transitions twice: with n-step targets, and with one-step ones, where one step counts."""
    capacity = replay.capacity
    env, first = _draw(replay, key, num, 1)

    def gather(field: Array, time: Array) -> Array:
        return field.at[env, time].get(mode="promise_in_bounds")

    def window(steps: int) -> Batch:
        """Returns the rows with targets over `steps` steps, cut short where the episode ends or the next step is
        not stored."""
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
            is_over |= (ended > 0) | replay.is_cut(time)
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
    capacity = replay.capacity
    env, first = _draw(replay, key, num, length)
    time = (first[:, None] + jnp.arange(length)) % capacity

    def gather(field: Array) -> Array:
        return field.at[env[:, None], time].get(mode="promise_in_bounds")

    steps = replay.storage
    terminated = gather(steps.terminated)
    ended = jnp.where(replay.is_cut(time), 1.0, terminated + gather(steps.truncated))
    is_first = jnp.pad(ended[:, :-1], ((0, 0), (1, 0)), constant_values=1.0)
    return Sequences(
        gather(steps.obs), gather(steps.action), gather(steps.reward), gather(steps.feature), terminated, is_first
    )


def _draw(replay: Replay, key: Array, num: int, length: int) -> tuple[Array, Array]:
    """Returns envs and first places of `num` uniform windows of `length` stored steps.

    Rows are stratified over envs (row i comes from the i-th of `num` equal slices of the envs), which
    keeps the draw uniform, lowers its variance, and makes it the same on any number of devices.
    """
    num_envs = replay.storage.reward.shape[0]
    key_env, key_first = jax.random.split(key)
    row = jnp.arange(num)
    env = ((row + jax.random.uniform(key_env, (num,))) * (num_envs / num)).astype(jnp.int32)
    env = jnp.clip(env, row * num_envs // num, -(-(row + 1) * num_envs // num) - 1)  # against rounding
    is_full = replay.num_seen >= replay.capacity
    num_places = jnp.where(is_full, replay.capacity, jnp.maximum(replay.size - length + 1, 1))
    return env, jax.random.randint(key_first, (num,), 0, num_places)
