"""The buffer of transitions: what it keeps, what it forgets, and the rows drawn from it."""

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
        episode=np.zeros_like(time, np.int32),
    )  # fmt: skip


def empty(steps: Transition, num_envs: int, capacity: int, parts: int = 1, seed: int = 0) -> replay_lib.Replay:
    """Returns a buffer for steps such as these."""
    example = jax.tree.map(lambda x: x[0, 0], steps)
    return replay_lib.init_replay(example, num_envs, capacity, parts, jax.random.PRNGKey(seed))


def filled(
    num_envs: int, capacity: int, num_steps: int, chunk: int, parts: int = 1, seed: int = 0
) -> replay_lib.Replay:
    """Returns a buffer after `num_steps` steps of each env, inserted `chunk` at a time."""
    replay = empty(stream(num_envs, range(1)), num_envs, capacity, parts, seed)
    for start in range(0, num_steps, chunk):
        replay = insert(replay, stream(num_envs, range(start, start + chunk)))
    return replay


def test_a_new_buffer_is_empty():
    replay = filled(3, 6, 0, 1)
    assert (int(replay.position), int(replay.size)) == (0, 0)
    assert replay.storage.obs.shape == (3, 6, 2) and replay.storage.reward.shape == (3, 6)
    assert replay.returns.shape == (3, 7)


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
    assert set(env) == {0, 1, 2, 3} and set(time) == set(stored)
    check_windows(n_step, env, time, np.minimum(3, stored[-1] + 1 - time))
    check_windows(one_step, env, time, np.ones_like(time))


def check_windows(batch: replay_lib.Batch, env: np.ndarray, time: np.ndarray, lengths: np.ndarray) -> None:
    """Asserts that rows begin at these times, have targets over so many steps, and go on after the last of them."""
    np.testing.assert_array_equal(batch.obs, np.stack([env, time], 1))
    np.testing.assert_array_equal(batch.action, batch.obs)
    np.testing.assert_array_equal(batch.skill[:, 0], env)
    np.testing.assert_array_equal(batch.next_obs, np.stack([env, time + lengths], 1))
    counts = np.arange(3) < lengths[:, None]
    times = time[:, None] + np.arange(3)
    weights = counts * GAMMA ** np.arange(3)
    np.testing.assert_allclose(batch.weights, weights, rtol=1e-6)
    np.testing.assert_array_equal(np.where(counts, batch.rewards, 0), np.where(counts, times, 0))
    np.testing.assert_allclose(batch.discounted_sum(batch.rewards), (times * weights).sum(1), rtol=1e-6)
    features = 100 * env[:, None] + times
    np.testing.assert_allclose(batch.discounted_sum(batch.features)[:, 0], (features * weights).sum(1), rtol=1e-6)
    np.testing.assert_allclose(batch.discount, GAMMA**lengths, rtol=1e-6)
    np.testing.assert_array_equal(batch.terminated, 0)


def test_windows_stay_in_one_part():
    """Parts of 4 steps, far fewer than were seen: a window ends with its part, or at the write head."""
    replay = filled(num_envs=2, capacity=16, num_steps=46, chunk=2, parts=4)
    stored = np.asarray(replay.storage.reward[0], int)
    n_step, one_step = sample(replay, jax.random.PRNGKey(0), 2000, GAMMA, 3)
    env, time = np.asarray(one_step.obs).T
    assert set(time) == set(stored)
    lengths = {}
    for i, first in enumerate(stored):
        part = stored[i : 4 * (i // 4) + 4]
        lengths[first] = min(3, int(np.argmin(np.append(np.diff(part) == 1, False))) + 1)
    assert set(lengths.values()) == {1, 2, 3}
    check_windows(n_step, env, time, np.array([lengths[t] for t in time.astype(int)]))


def test_parts_hold_the_newest_steps_and_a_sample_of_all_times():
    """25 parts seen, 5 kept, by 400 seeds: the newest is always there, of the 24 others each in one of six cases."""
    kept = np.zeros(25)
    for seed in range(400):
        replay = filled(num_envs=1, capacity=10, num_steps=50, chunk=2, parts=5, seed=seed)
        times = np.asarray(replay.storage.reward[0], int).reshape(5, 2)
        np.testing.assert_array_equal(times[:, 1], times[:, 0] + 1)
        assert len(set(times[:, 0])) == 5 and int(replay.num_seen) == 50 and int(replay.size) == 10
        kept[times[:, 0] // 2] += 1
    assert kept[-1] == 400
    spread = np.square(kept[:-1] - 400 / 6).sum() / (400 / 6 * 5 / 6)
    assert spread < 49.7, "chi-square, 23 degrees of freedom, p = 0.001"


def test_windows_are_cut_where_the_episode_ends():
    """One env, rewards 0 to 4: it dies at step 1, and the time limit cuts it at step 3."""
    steps = stream(1, range(5))
    steps.terminated[0, 1] = 1.0
    steps.truncated[0, 3] = 1.0
    steps.next_obs[0, 3] = 99.0
    replay = insert(empty(steps, 1, 5), steps)
    n_step, one_step = sample(replay, jax.random.PRNGKey(0), 64, GAMMA, 3)
    first = np.asarray(n_step.obs[:, 1], int)
    assert set(first) == {0, 1, 2, 3, 4}

    # From 0: dead after two steps, nothing follows. From 1: dead at once. From 2 and 3: cut after two steps and one, a
    # future that was not seen follows the true last observation. From 4: nothing else is stored yet.
    weights = np.array([[1, 0.9, 0], [1, 0, 0], [1, 0.9, 0], [1, 0, 0], [1, 0, 0]])[first]
    np.testing.assert_allclose(n_step.weights, weights, rtol=1e-6)
    sums = np.array([0 + 0.9 * 1, 1, 2 + 0.9 * 3, 3, 4])[first]
    np.testing.assert_allclose(n_step.discounted_sum(n_step.rewards), sums, rtol=1e-6)
    np.testing.assert_allclose(n_step.discounted_sum(n_step.features)[:, 0], sums, rtol=1e-6)
    np.testing.assert_allclose(n_step.discount, np.array([0, 0, 0.81, 0.9, 0.9])[first], rtol=1e-6)
    np.testing.assert_allclose(n_step.terminated, np.array([0.81, 0.9, 0, 0, 0])[first], rtol=1e-6)
    np.testing.assert_array_equal(n_step.next_obs[:, 1], np.array([2, 2, 99, 99, 5])[first])

    np.testing.assert_array_equal(one_step.discounted_sum(one_step.rewards), first)
    np.testing.assert_allclose(one_step.discount, np.array([0.9, 0, 0.9, 0.9, 0.9])[first], rtol=1e-6)
    np.testing.assert_allclose(one_step.terminated, np.array([0, 0.9, 0, 0, 0])[first], rtol=1e-6)
    np.testing.assert_array_equal(one_step.next_obs[:, 1], np.array([1, 2, 3, 99, 5])[first])


def lived(replay: replay_lib.Replay, steps: Transition, chunk: int) -> replay_lib.Replay:
    """Returns the buffer after the steps, inserted `chunk` at a time."""
    for start in range(0, steps.reward.shape[1], chunk):
        replay = insert(replay, jax.tree.map(lambda x, i=start: x[:, i : i + chunk], steps))
    return replay


def history(num_steps: int, *ends: list[int]) -> Transition:
    """Returns steps of one env for each list of ends, deaths and time limits in turns; they pay 100 env + time."""
    steps = stream(len(ends), range(num_steps))
    for env, times in enumerate(ends):
        steps.terminated[env, times[::2]] = 1.0
        steps.truncated[env, times[1::2]] = 1.0
        steps.episode[env] = np.searchsorted(times, np.arange(num_steps))
    return steps._replace(reward=steps.feature[..., 0])


def episode_returns(replay: replay_lib.Replay, num_steps: int) -> np.ndarray:
    """Returns what rows of each env and time say of their episode, NaN for steps that are not stored."""
    n_step, one_step = sample(replay, jax.random.PRNGKey(0), 400, GAMMA, 1)
    np.testing.assert_array_equal(n_step.episode_return, one_step.episode_return)
    returns = np.full((len(replay.returns), num_steps), np.nan)
    env, time = np.asarray(one_step.obs, int).T
    returns[env, time] = one_step.episode_return
    return returns


def test_rows_know_the_return_of_their_episode_as_far_as_it_was_lived():
    """Episodes of three steps pay 0 + 1 + 2 and 3 + 4 + 5; of another env, 100 and all after it."""
    steps = history(8, [2, 5], [0])
    first, second = (jax.tree.map(lambda x, i=i: x[:, i : i + 4], steps) for i in (0, 4))
    halfway = lived(empty(steps, 2, 8), first, 2)
    np.testing.assert_array_equal(episode_returns(halfway, 4), [[3, 3, 3, 3], [100, 306, 306, 306]])
    in_full = [[3] * 3 + [12] * 3 + [6 + 7] * 2, [100] + [sum(range(101, 108))] * 7]
    np.testing.assert_array_equal(episode_returns(lived(halfway, second, 2), 8), in_full)


def test_returns_count_steps_that_are_overwritten():
    """A ring of 4 after 10 steps: the first env's episode began at 1, the second's at 0 and at 8."""
    steps = history(10, [0], [7])
    replay = lived(empty(steps, 2, 4), steps, 2)
    returns = episode_returns(replay, 10)
    assert np.isnan(returns[:, :6]).all()
    np.testing.assert_array_equal(returns[:, 6:], [[45] * 4, [828, 828, 108 + 109, 108 + 109]])


@pytest.mark.parametrize("capacity, chunk", [(4, 1), (4, 2), (4, 4), (6, 3)])
def test_more_episodes_than_places_for_their_returns(capacity, chunk):
    """One-step episodes pay what their step pays; a longer one after them takes a place that was used before.

    The other env's episodes are 0, then 1 and 2, then 3 and 4: of the newest, one step was lived.
    """
    steps = history(36, [*range(30)], [*range(0, 36, 2)])
    replay = empty(steps, 2, capacity)
    for start in range(0, 36, 12):
        replay = lived(replay, jax.tree.map(lambda x, i=start: x[:, i : i + 12], steps), chunk)
        stored = np.arange(start + 12 - capacity, start + 12)
        first = np.where(stored < 30, stored, sum(range(30, 36)))
        second = [2 * (100 + t) + (1 if t % 2 else -1) for t in stored[:-1]] + [100 + stored[-1]]
        np.testing.assert_array_equal(episode_returns(replay, 36)[:, stored], [first, second])


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


@pytest.mark.parametrize("num, num_envs", [(320, 240), (82, 2)])
@pytest.mark.parametrize("drawn", [0.0, 1 - 2**-23])
def test_rounding_takes_no_row_to_another_slice(num, num_envs, drawn, monkeypatch):
    """The least and the greatest uniform number, where a sum or product of floats may round to the next env."""
    replay = filled(num_envs, 2, 2, 2)
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: np.full(shape, drawn, np.float32))
    batch, _ = jax.jit(lambda: replay_lib.sample(replay, jax.random.PRNGKey(0), num, GAMMA, 1))()
    row = np.arange(num)
    exact = row * num_envs // num if drawn == 0.0 else -(-(row + 1) * num_envs // num) - 1
    np.testing.assert_array_equal(batch.obs[:, 0], exact)


@needs_two_devices
def test_the_draw_is_the_same_on_any_number_of_devices():
    replay = filled(num_envs=4, capacity=6, num_steps=8, chunk=2)
    mesh = Mesh(np.array(jax.devices()[:2]), ("envs",))
    by_env, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("envs",), ()))
    sharded = jax.device_put(replay, replay_lib.Replay(by_env, by_env, *(everywhere,) * 4))
    draw = jax.jit(lambda replay: sample(replay, jax.random.PRNGKey(0), 16, GAMMA, 3))
    assert_trees_close(draw(sharded), draw(replay), rtol=1e-6)


def test_sequences_are_consecutive_and_know_where_episodes_begin():
    """Env 1 dies at time 3, env 2 is cut off there: both begin anew at 4, and only one of them has died."""
    steps = stream(4, range(8))
    steps.terminated[1, 3] = steps.truncated[2, 3] = 1.0
    replay = insert(empty(steps, 4, 16), steps)
    draw = jax.jit(replay_lib.sample_sequences, static_argnames=("num", "length"))
    found = draw(replay, jax.random.PRNGKey(0), 400, 5)
    env, first = np.asarray(found.obs[:, 0, 0], int), np.asarray(found.obs[:, 0, 1], int)
    assert set(zip(env, first, strict=True)) == {(e, t) for e in range(4) for t in range(4)}
    times = first[:, None] + np.arange(5)
    np.testing.assert_array_equal(found.reward, times)
    np.testing.assert_array_equal(found.feature[..., 0], 100 * env[:, None] + times)
    np.testing.assert_array_equal(found.terminated, (env[:, None] == 1) & (times == 3))
    begins = (np.arange(5) == 0) | (np.isin(env, (1, 2))[:, None] & (times == 4))
    np.testing.assert_array_equal(found.is_first, begins)


def test_sequences_begin_anew_behind_the_write_head():
    replay = filled(num_envs=2, capacity=6, num_steps=10, chunk=2)
    found = replay_lib.sample_sequences(replay, jax.random.PRNGKey(0), 200, 3)
    assert set(np.asarray(found.reward[:, 0], int)) == {4, 5, 6, 7, 8, 9}
    follows = np.diff(found.reward, axis=1) == 1
    assert not follows.all()
    np.testing.assert_array_equal(found.is_first[:, 1:], ~follows)


def test_sequences_of_a_buffer_that_is_not_full_have_stored_steps_only():
    found = replay_lib.sample_sequences(filled(2, 8, 4, 2), jax.random.PRNGKey(0), 200, 3)
    assert set(np.asarray(found.reward[:, 0], int)) == {0, 1}
    np.testing.assert_array_equal(np.diff(found.reward, axis=1), 1)
