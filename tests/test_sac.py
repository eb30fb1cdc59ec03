"""SAC: its losses by hand, no heed to skills, and the best action where it is known."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import (
    BATCH,
    QUICK,
    Savings,
    always,
    assert_trees_close,
    clock_task,
    close,
    column,
    dial_task,
    small_config,
    taught,
    trained,
)

from qdac import nets
from qdac.agents.sac import SAC, Config
from qdac.types import Params

GAMMA = 0.9
"""The discount of `small_config`."""
KEY = jax.random.PRNGKey(0)
UNSURE = math.log(math.e - 1)
"""What an actor outputs for a deviation of 1."""


def constant_networks(agent: SAC, temperature: float) -> tuple[dict[str, Params], dict[str, Params]]:
    """Returns networks with Q 4 and 6 (targets 3 and 5) and an actor with mean 0 and deviation 1 before the tanh."""
    state = agent.init(KEY)
    scale = agent.output_scale(GAMMA)
    params = state.params | {
        "actor": always(state.params["actor"], [0.0, UNSURE]),
        "critic": always(state.params["critic"], scale * column(4, 6)),
        "log_temperature": jnp.log(temperature),
    }
    return params, {"critic": always(state.target["critic"], scale * column(3, 5))}


def log_probs(params: dict[str, Params], key: jax.Array, num: int) -> np.ndarray:
    """Returns log pi of the actions that the constant actor draws for `num` rows."""
    outputs = jnp.tile(params["actor"][-1]["bias"], (num, 1))
    return np.asarray(nets.sample_tanh_gaussian(outputs, key)[1])


def losses(agent: SAC, params: Any, target: Any, batch: Any = BATCH) -> tuple[float, dict[str, jax.Array]]:
    return jax.jit(agent.losses)(params, target, jnp.array(0), batch, KEY)


@pytest.mark.parametrize("average_heads", [False, True])
def test_losses_of_constant_networks(average_heads):
    """Q is taught 1 + 0.9 (3 - 2 log pi'), and 2 where nothing follows; the actor maximises the smaller of 4 and 6."""
    agent = SAC(small_config(Config, average_heads=average_heads), clock_task())
    params, target = constant_networks(agent, temperature=2.0)
    total, metrics = losses(agent, params, target)
    key_action, key_next_action = jax.random.split(KEY)
    log_prob, next_log_prob = (log_probs(params, key, 2) for key in (key_action, key_next_action))
    goal = np.array([1 + GAMMA * (3 - 2 * next_log_prob[0]), 2])
    scale = 0.1 if average_heads else 1.0
    close(metrics["loss/critic"], scale**2 * ((4 - goal) ** 2 + (6 - goal) ** 2).mean() / 4)
    close(metrics["loss/actor"], 2 * log_prob.mean() - 4)
    close(metrics["train/value"], 4)
    close(metrics["train/entropy"], -log_prob.mean())
    loss_temperature = 2 * (-log_prob.mean() + 0.5)
    close(total, metrics["loss/critic"] + metrics["loss/actor"] + loss_temperature)


def test_targets_sum_the_rewards_of_a_window():
    """1 + 0.9 * 2, and a future 0.81 of 3."""
    agent = SAC(small_config(Config), clock_task())
    batch = jax.tree.map(lambda x: x[:1], BATCH)._replace(
        rewards=np.array([[1.0, 2, 99]]), features=np.zeros((1, 3, 1)), weights=np.array([[1, 0.9, 0]]),
        discount=np.array([0.81]),
    )  # fmt: skip
    _, metrics = losses(agent, *constant_networks(agent, temperature=1e-20), batch)
    goal = 2.8 + 0.81 * 3
    close(metrics["loss/critic"], ((4 - goal) ** 2 + (6 - goal) ** 2) / 4)


def test_each_loss_teaches_its_own_network_only():
    agent = SAC(small_config(Config), clock_task())
    state = agent.init(KEY)

    def each_loss(params: dict[str, Params], target: dict[str, Params]) -> dict[str, jax.Array]:
        total, metrics = agent.losses(params, target, jnp.array(0), BATCH, KEY)
        parts = {name: metrics[f"loss/{name}"] for name in ("critic", "actor")}
        return parts | {"log_temperature": total - sum(parts.values())}

    slopes = jax.jit(jax.jacrev(each_loss, argnums=(0, 1)))(state.params, state.target)
    for loss, (gradients, target_gradients) in slopes.items():
        assert taught(gradients) == {loss}
        assert not taught(target_gradients), loss


def test_skills_change_nothing():
    """Not what is done, and not what is learned."""
    agent = SAC(small_config(Config), clock_task())
    state = agent.init(KEY)
    params, other = agent.policy_params(state), BATCH._replace(skill=column(0, 4))
    assert params["actor"][0]["kernel"].shape[0] == agent.task.obs_size
    actions = [agent.step(params, (), BATCH.obs, batch.skill)[1] for batch in (BATCH, other)]
    np.testing.assert_array_equal(*actions)
    update = jax.jit(agent.update)
    assert_trees_close(*(update(state, (batch, batch), KEY) for batch in (BATCH, other)), rtol=0)


def test_the_best_action_is_learned():
    """Savings: exp(Q / alpha) is Gaussian in the action, with mean gamma / 2 and variance alpha / 2.

    At the mean Q(s, a) = s + gamma² / 4 + gamma V, where V (1 - gamma) = gamma² / 4 + alpha log(pi alpha) / 2.
    """
    alpha = 0.01
    config = small_config(Config, **QUICK | {"num_envs": 32, "initial_temperature": alpha})
    agent = SAC(config, dial_task(env=Savings(), episode_length=20))
    state, metrics = trained(agent, 25)
    shown = column(-0.8, -0.3, 0.0, 0.45, 0.8)
    _, action = agent.step(agent.policy_params(state), (), shown, np.zeros_like(shown))
    close(action, np.full_like(shown, GAMMA / 2), atol=0.1)
    close(metrics["train/entropy"], math.log(math.pi * math.e * alpha) / 2, atol=0.15)
    value = nets.apply_mlp(state.params["critic"], np.concatenate([shown, action], axis=-1))[..., 0].mean(axis=0)
    worth = (GAMMA**2 / 4 + alpha * math.log(math.pi * alpha) / 2) / (1 - GAMMA)
    close(value, shown[:, 0] + GAMMA**2 / 4 + GAMMA * worth, atol=0.1)
