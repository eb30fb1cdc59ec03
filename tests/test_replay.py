"""The ring of transitions: what it keeps, what it forgets, and the rows drawn from it."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from probes import assert_trees_close, needs_two_devices

from qdac import replay as replay_lib
from qdac.types import Transition

GAMMA = 0.9
insert = jax.jit(replay_lib.insert)
sample = jax.jit(replay_lib.sample, static_argnames=("num", "discount", "n_step"))


def stream(num_envs: int, times: range) -> Transition:
    """Returns transitions [num_envs, len(times), ...] whose every field says which env and time it is of."""
    env, time = np.meshgrid(np.arange(num_envs, dtype=np.float32), np.array(times, np.float32), indexing="ij")
    return Transition(
        obs=np.stack([env, time], -1), action=np.stack([env, time], -1), reward=time,
        feature=(100 * env + time)[..., None], next_obs=np.stack([env, time + 1], -1),
        terminated=np.zeros_like(time), truncated=np.zeros_like(time), skill=env[..., None],
    )  # fmt: skip


def filled(num_envs: int, capacity: int, num_steps: int, chunk: int) -> replay_lib.Replay:
    """Returns a buffer after `num_steps` steps of each env, inserted `chunk` at a time."""
    example = jax.tree.map(lambda x: x[0, 0], stream(num_envs, range(1)))
    replay = replay_lib.init_replay(example, num_envs, capacity)
    for start in range(0, num_steps, chunk):
        replay = insert(replay, stream(num_envs, range(start, start + chunk)))
    return replay


def test_a_new_buffer_is_empty():
    replay = filled(3, 6, 0, 1)
    assert (int(replay.position), int(replay.size)) == (0, 0)
    assert replay.storage.obs.shape == (3, 6, 2) and replay.storage.reward.shape == (3, 6)


def test_the_oldest_steps_are_overwritten():
    replay = filled(num_envs=2, capacity=6, num_steps=8, chunk=2)
    assert (int(replay.position), int(replay.size)) == (2, 6)
    np.testing.assert_array_equal(replay.storage.reward, [[6, 7, 2, 3, 4, 5]] * 2)
    np.testing.assert_array_equal(replay.storage.obs[1, :, 0], 1)


def test_a_full_round_comes_back_to_the_start():
    replay = filled(num_envs=2, capacity=6, num_steps=6, chunk=2)
    assert (int(replay.position), int(replay.size)) == (0, 6)


@pytest.mark.parametrize(
    "num_steps, stored", [(4, range(4)), (6, range(6)), (8, range(2, 8)), (22, range(16, 22))]
)
def test_windows_stay_in_one_env_and_never_cross_the_write_head(num_steps, stored):
    replay = filled(num_envs=4, capacity=6, num_steps=num_steps, chunk=2)
    n_step, one_step = sample(replay, jax.random.PRNGKey(0), 2000, GAMMA, 3)
    env, time = np.asarray(one_step.obs).T
    assert set(env) == {0, 1, 2, 3}
    assert set(time) == set(stored[:-2]), "a window of 3 starts at any stored step but the last 2"

    for batch, steps in ((n_step, 3), (one_step, 1)):
        weights = GAMMA ** np.arange(steps)
        times = time[:, None] + np.arange(steps)
        np.testing.assert_array_equal(batch.obs, np.stack([env, time], 1))
        np.testing.assert_array_equal(batch.action, batch.obs)
        np.testing.assert_array_equal(batch.skill[:, 0], env)
        np.testing.assert_array_equal(batch.next_obs, np.stack([env, time + steps], 1))
        np.testing.assert_allclose(batch.reward, times @ weights, rtol=1e-6)
        np.testing.assert_allclose(batch.feature[:, 0], (100 * env[:, None] + times) @ weights, rtol=1e-6)
        np.testing.assert_allclose(batch.discount, GAMMA**steps, rtol=1e-6)
        np.testing.assert_array_equal(batch.terminated, 0)


def test_windows_are_cut_where_the_episode_ends():
    """One env, rewards 0 to 4: it dies at step 1, and the time limit cuts it at step 3."""
    steps = stream(1, range(5))
    steps.terminated[0, 1] = 1.0
    steps.truncated[0, 3] = 1.0
    steps.next_obs[0, 3] = 99.0
    example = jax.tree.map(lambda x: x[0, 0], steps)
    replay = insert(replay_lib.init_replay(example, 1, 5), steps)
    n_step, one_step = sample(replay, jax.random.PRNGKey(0), 64, GAMMA, 3)
    first = np.asarray(n_step.obs[:, 1], int)
    assert set(first) == {0, 1, 2}

    # From 0: dead after two steps, nothing follows. From 1: dead at once. From 2: cut after two steps, a
    # future that was not seen follows the true last observation.
    np.testing.assert_allclose(n_step.reward, np.array([0 + 0.9 * 1, 1, 2 + 0.9 * 3])[first], rtol=1e-6)
    np.testing.assert_allclose(n_step.feature[:, 0], n_step.reward, rtol=1e-6)
    np.testing.assert_allclose(n_step.discount, np.array([0, 0, 0.81])[first], rtol=1e-6)
    np.testing.assert_allclose(n_step.terminated, np.array([0.81, 0.9, 0])[first], rtol=1e-6)
    np.testing.assert_array_equal(n_step.next_obs[:, 1], np.array([2, 2, 99])[first])

    np.testing.assert_array_equal(one_step.reward, first)
    np.testing.assert_allclose(one_step.discount, np.array([0.9, 0, 0.9])[first], rtol=1e-6)
    np.testing.assert_allclose(one_step.terminated, np.array([0, 0.9, 0])[first], rtol=1e-6)
    np.testing.assert_array_equal(one_step.next_obs[:, 1], first + 1)


def test_without_n_step_targets_both_batches_are_the_same():
    n_step, one_step = sample(filled(2, 6, 6, 2), jax.random.PRNGKey(0), 8, GAMMA, 1)
    jax.tree.map(np.testing.assert_array_equal, n_step, one_step)


def test_every_stored_step_is_equally_likely():
    """Chi-square over 4 envs x 8 steps: 31 degrees of freedom, p = 0.001."""
    replay = filled(num_envs=4, capacity=8, num_steps=12, chunk=4)
    batch, _ = sample(replay, jax.random.PRNGKey(0), 32_000, GAMMA, 1)
    env, time = np.asarray(batch.obs, int).T
    counts = np.bincount(8 * env + time - 4, minlength=32)
    assert (np.square(counts - 1000) / 1000).sum() < 61.1


@pytest.mark.parametrize("num, num_envs", [(2, 8), (8, 4), (3, 4), (5, 3)])
def test_rows_are_stratified_over_envs(num, num_envs):
    """Row i comes from the i-th of `num` equal slices of the envs, and each env as often as the others."""
    replay = filled(num_envs, 2, 2, 2)
    keys = jax.random.split(jax.random.PRNGKey(0), 4000)
    batch, _ = jax.vmap(lambda key: sample(replay, key, num, GAMMA, 1))(keys)
    env = np.asarray(batch.obs[..., 0], int)
    row = np.arange(num)
    assert (env >= np.floor(row * num_envs / num)).all()
    assert (env <= np.ceil((row + 1) * num_envs / num) - 1).all()
    shares = np.bincount(env.ravel(), minlength=num_envs) / env.size
    np.testing.assert_allclose(shares, 1 / num_envs, rtol=0.05)


@needs_two_devices
def test_the_draw_is_the_same_on_any_number_of_devices():
    replay = filled(num_envs=4, capacity=6, num_steps=8, chunk=2)
    mesh = Mesh(np.array(jax.devices()[:2]), ("envs",))
    by_env, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("envs",), ()))
    sharded = jax.device_put(replay, replay_lib.Replay(by_env, everywhere, everywhere))
    draw = jax.jit(lambda replay: sample(replay, jax.random.PRNGKey(0), 16, GAMMA, 3))
    assert_trees_close(draw(sharded), draw(replay), rtol=1e-6)
