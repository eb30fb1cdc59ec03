"""The training loop on the clock: what it compiles, where it keeps things, and when it learns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import assert_trees_close, clock_task, needs_two_devices, small_config

from qdac.agents.qdac import QDAC
from qdac.device import even_share
from qdac.errors import UserError
from qdac.trunk import Trunk, TrunkState

KEY = jax.random.PRNGKey(0)
STEPS = 16
"""Env steps in an iteration of `small_config`."""


def clock_trunk(num_devices: int = 1, num_learners: int | None = None, **fields: Any) -> Trunk:
    """Returns the loop on a clock that ends after three steps."""
    task = clock_task(lifetime=3)
    learners = None if num_learners is None else jax.devices()[:num_learners]
    return Trunk(QDAC(small_config(**fields), task), task, jax.devices()[:num_devices], learners)


def iterated(trunk: Trunk, state: TrunkState, times: int) -> TrunkState:
    for _ in range(times):
        state, _, _ = trunk.iterate(state)
    return state


def num_bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


# Compilation and memory.


@pytest.mark.parametrize("num_devices", [1, pytest.param(2, marks=needs_two_devices)])
def test_nothing_is_compiled_twice(num_devices, caplog):
    """One round of warm-up and one of updates see all there is to compile."""
    trunk = clock_trunk(num_devices, warmup_steps=STEPS)
    state = iterated(trunk, trunk.init(KEY), 2)
    num_traces = dict(trunk.task.env.num_traces)
    caplog.clear()
    with jax.log_compiles():
        state = iterated(trunk, state, 3)
    assert state.agent.num_updates == 16
    assert trunk.task.env.num_traces == num_traces
    assert [record.message for record in caplog.records] == []


@pytest.mark.parametrize("num_devices", [1, pytest.param(2, marks=needs_two_devices)])
def test_replay_is_updated_in_place(num_devices):
    """Its memory is given to the outputs, and what is needed besides is less than a copy would take."""
    trunk = clock_trunk(num_devices, replay_size=100_000)
    state = trunk.init(KEY)
    actor = jax.device_put(trunk.agent.collector_params(state.agent), trunk.actor_everywhere)
    _, steps, _ = trunk.collect(actor, state.episodes)
    steps = jax.device_put(steps, trunk.replay_by_env)
    replay = num_bytes(state.replay)
    lowered = {
        "insert": trunk._insert.lower(state.agent, state.replay, steps),
        "learn": trunk._learn.lower(state.agent, state.replay, steps, KEY),
    }
    for name, program in lowered.items():
        memory = program.compile().memory_analysis()
        assert memory.alias_size_in_bytes >= replay, name
        assert memory.temp_size_in_bytes < 0.1 * replay, name


def test_iterate_consumes_its_state():
    trunk = clock_trunk()
    state = trunk.init(KEY)
    iterated(trunk, state, 1)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state.agent, state.replay.storage, state.replay.returns)))


# Devices.


@needs_two_devices
@pytest.mark.parametrize("num_learners", [1, 2])
def test_two_devices_do_what_one_does(num_learners):
    trunks = clock_trunk(), clock_trunk(2, num_learners)
    one, two = (iterated(trunk, trunk.init(KEY), 4) for trunk in trunks)
    assert len(two.replay.storage.obs.sharding.device_set) == num_learners
    assert len(two.episodes.skill.sharding.device_set) == 2
    assert_trees_close(jax.device_get(two), jax.device_get(one), rtol=1e-4, atol=2e-5)


@needs_two_devices
def test_uneven_envs_use_fewer_devices():
    trunk = clock_trunk(2, num_envs=3)
    state = iterated(trunk, trunk.init(KEY), 2)
    assert len(state.episodes.skill.sharding.device_set) == 1
    assert state.env_steps == 2 * 3 * 4
    assert np.isfinite(state.agent.params["log_temperature"])


@needs_two_devices
@pytest.mark.parametrize(
    "fields, message",
    [({"batch_size": 31}, "2 learner devices, got 31 and 4"), ({"num_envs": 3}, "got 32 and 3")],
)
def test_learners_need_even_shares(fields, message):
    with pytest.raises(UserError, match=message):
        clock_trunk(2, 2, **fields)


@pytest.mark.parametrize("number, count", [(12, 4), (6, 3), (10, 2), (7, 1), (2, 2), (1, 1)])
def test_even_share(number, count):
    devices = ["a", "b", "c", "d"]
    assert even_share(devices, number) == devices[:count]


# Warm-up and rounds.


def test_warm_up_makes_no_updates():
    trunk = clock_trunk(warmup_steps=2 * STEPS)
    state = trunk.init(KEY)
    start = jax.device_get(state.agent)
    for i in range(2):
        state, metrics, _ = trunk.iterate(state)
        assert metrics == {} and state.env_steps == (i + 1) * STEPS
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.agent), start)
        assert state.replay.size == 4 * (i + 1)
    state, metrics, _ = trunk.iterate(state)
    assert state.agent.num_updates == 4 and state.replay.size == 12
    assert all(np.isfinite(value) for value in metrics.values()) and metrics


def test_no_updates_on_request():
    trunk = clock_trunk(updates_per_iteration=0)
    state, metrics, _ = trunk.iterate(trunk.init(KEY))
    assert metrics == {} and state.agent.num_updates == 0 and state.replay.size == 4


@pytest.mark.parametrize("uniform_warmup", [False, True])
def test_uniform_warm_up_does_not_ask_the_policy(uniform_warmup):
    """A policy of NaNs shows where it was asked: in the warm-up, unless that is uniform."""
    trunk = clock_trunk(warmup_steps=STEPS, uniform_warmup=uniform_warmup, updates_per_iteration=0)
    state = trunk.init(KEY)
    broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), state.agent.params["actor"])
    params = state.agent.params | {"actor": broken}
    state = iterated(trunk, state._replace(agent=state.agent._replace(params=params)), 2)
    action = np.asarray(state.replay.storage.action[:, :8, 0])
    is_policy = np.isnan(action)
    assert is_policy[:, :4].all() == (not uniform_warmup) and is_policy[:, 4:].all()
    if uniform_warmup:
        assert len(np.unique(action[:, :4])) == STEPS and (np.abs(action[:, :4]) <= 1).all()


@pytest.mark.parametrize(
    "fields, capacity",
    [
        ({"replay_size": 48}, 12),
        ({"replay_size": 52}, 16),
        ({"replay_size": 1}, 8),
        ({"replay_size": 1, "n_step": 5, "warmup_steps": 100}, 12),
    ],
)
def test_capacity_is_in_whole_rounds(fields, capacity):
    """Four envs, four steps a round: rounded up, and never less than a window and a round."""
    trunk = clock_trunk(**fields)
    assert trunk.capacity == capacity
    assert trunk.template().replay.storage.reward.shape == (4, capacity)


# Saving and restoring.


def test_template_has_the_shapes_of_a_state():
    trunk = clock_trunk()
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (trunk.template(), trunk.init(KEY))]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("num_devices", [1, pytest.param(2, marks=needs_two_devices)])
def test_a_placed_state_goes_on_as_if_it_had_never_left(num_devices):
    trunk = clock_trunk(num_devices, num_devices)
    state = iterated(trunk, trunk.init(KEY), 2)
    placed = trunk.place(jax.device_get(state))
    for here, there in zip(jax.tree.leaves(placed[:4]), jax.tree.leaves(state[:4]), strict=True):
        assert here.sharding.is_equivalent_to(there.sharding, there.ndim)
    ends = (jax.device_get(iterated(trunk, start, 2)) for start in (placed, state))
    jax.tree.map(np.testing.assert_array_equal, *ends)
