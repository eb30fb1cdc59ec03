"""SMERL and Reverse SMERL: who is paid for what by hand, and a discriminator that finds the latent."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from probes import BATCH, QUICK, always, clock_task, close, column, hill_task, small_config, taught, trained

from qdac.agents.smerl import SMERL, Config, log_density, mixed_reward
from qdac.errors import UserError
from qdac.types import Box, Params

KEY = jax.random.PRNGKey(0)
STANDARD = math.atanh(3 / 7)
"""What the discriminator outputs for a deviation of 1: -5 + 3.5 (tanh + 1) = 0."""


def smerl(**fields: Any) -> SMERL:
    """Returns the agent for the clock, whose features N(x) = x / 2 - 1; returns from 9 on are near the best."""
    return SMERL(small_config(Config, **{"target_return": 10.0, "hidden_sizes": (2,)} | fields), clock_task())


def reader(agent: SMERL) -> dict[str, Params]:
    """Returns networks whose discriminator takes the normalised feature for the latent, with a deviation of 1."""
    layers = [
        {"kernel": jnp.array([[1.0, -1.0]]), "bias": jnp.zeros(2)},
        {"kernel": jnp.array([[1.0, 0.0], [-1.0, 0.0]]), "bias": jnp.array([0.0, STANDARD])},
    ]
    return agent.init(KEY).params | {"discriminator": layers}


# The equations.


def test_log_density_is_the_normal_s():
    rng = np.random.default_rng(0)
    latent, mean, log_std = rng.normal(size=(3, 8, 2))
    expected = scipy.stats.norm.logpdf(latent, mean, np.exp(log_std)).sum(axis=-1)
    close(log_density(latent, mean, log_std), expected, rtol=1e-4)


@pytest.mark.parametrize(
    "reverse, is_near_best, mixed", [(False, False, 3), (False, True, 23), (True, False, 23), (True, True, 20)]
)
def test_mixed_reward(reverse, is_near_best, mixed):
    """A reward of 3, and diversity 2 that counts ten times."""
    close(mixed_reward(jnp.array(3.0), jnp.array(2.0), jnp.array(is_near_best), reverse, 10.0), mixed)


@pytest.mark.parametrize("output, log_std", [(-50, -5), (0, -1.5), (STANDARD, 0), (50, 2)])
def test_the_deviation_is_bounded(output, log_std):
    agent = smerl()
    layers = always(agent.init(KEY).params["discriminator"], [0.25, output])
    mean, actual = agent.discriminate(layers, column(1))
    close(mean, [[0.25]])
    close(actual, [[log_std]], atol=1e-6)


@pytest.mark.parametrize("target, margin, bound", [(10.0, 0.1, 9), (-10.0, 0.1, -11), (0.0, 0.1, 0), (10.0, 0.0, 10)])
def test_near_best_is_below_the_best_whatever_its_sign(target, margin, bound):
    close(smerl(target_return=target, margin=margin).near_best, bound)


def test_the_target_is_the_task_s_unless_it_is_given():
    task = clock_task(reference_return=20.0)
    assert SMERL(small_config(Config), task).near_best == 18
    assert SMERL(small_config(Config, target_return=10.0), task).near_best == 9


def test_without_a_target_it_says_what_to_give():
    with pytest.raises(UserError) as error:
        SMERL(small_config(Config), clock_task())
    assert str(error.value).startswith("clock has no return of SAC to compare with; give --target-return")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["diversity_scale", "margin"])
def test_config_says_what_is_wrong(name):
    with pytest.raises(UserError, match=f"{name} should not be negative, got -1.0"):
        small_config(Config, **{name: -1.0})


def test_returns_need_a_replay_that_forgets_the_oldest():
    with pytest.raises(UserError, match="replay_parts should be 1, got 4"):
        small_config(Config, replay_parts=4)


# Latents and rewards.


def test_latents_are_uniform_in_a_box_of_the_skills_dimensions():
    task = clock_task(skill_space=Box((0.0, -1.0), (4.0, 2.0), (2, 2)), reference_return=0.0)
    commands = SMERL(small_config(Config), task).commands
    latents = np.asarray(commands.draw(KEY, jnp.array(0), 4000))
    assert latents.shape == (4000, commands.size) == (4000, 2) and not commands.are_skills
    close(latents.min(axis=0), [-1, -1], atol=0.01)
    close(latents.max(axis=0), [1, 1], atol=0.01)
    close(latents.mean(axis=0), [0, 0], atol=0.05)


def test_a_skill_is_executed_with_the_latent_behind_it():
    """N(3.2) = 0.6; N(5) = 1.5 and N(-1) = -1.5 are no latents."""
    agent = smerl()
    state = agent.init(KEY)
    params = agent.policy_params(state._replace(params=reader(agent)))
    skill, latent = column(3.2, 5, -1), column(0.6, 1, -1)
    close(agent.command(params, skill), latent)
    obs = np.tile(BATCH.obs[:1], (3, 1))
    _, action = agent.step(params, (), obs, skill)
    close(action, agent.act(params, obs, latent))
    assert len(np.unique(action)) == 3


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_are_paid_by_the_return_of_their_episode(reverse):
    """The episodes' returns are 6 and 10. Features (1, 4) and (3, 0) stand for latents (-0.5, 1) and (0.5, -1).

    Next to 0.5 and 0.25 those are 1, 0.5 and 0.25, 1.25 away: r~ = log 2 - log(2 pi) / 2 - distance² / 2.
    """
    agent = smerl(reverse=reverse)
    batch = BATCH._replace(
        rewards=np.array([[1, 2], [3, 4]], np.float32), features=np.array([[[1], [4]], [[3], [0]]], np.float32),
        weights=np.ones((2, 2), np.float32), skill=column(0.5, 0.25),
    )  # fmt: skip
    distance = np.array([[1, 0.5], [0.25, 1.25]])
    diversity = 10 * (math.log(2) - math.log(2 * math.pi) / 2 - distance**2 / 2)
    factors = ([[1], [0]], [[1], [1]]) if reverse else ([[1], [1]], [[0], [1]])
    close(agent.rewards(reader(agent), batch), factors[0] * batch.rewards + factors[1] * diversity)


def test_the_critic_is_taught_the_mixed_reward():
    """Of the first row, far from the best, 1; of the second, which ends with it, 2 + 10 r~."""
    agent = smerl()
    state = agent.init(KEY)
    params = reader(agent) | {"critic": always(state.params["critic"], 0.0), "log_temperature": jnp.array(-50.0)}
    target = {"critic": always(state.target["critic"], 0.0)}
    batch = BATCH._replace(skill=column(-0.5, 0.5))
    _, metrics = jax.jit(agent.losses)(params, target, jnp.array(0), batch, KEY)
    best = math.log(2) - math.log(2 * math.pi) / 2
    close(metrics["loss/critic"], (1 + (2 + 10 * best) ** 2) / 4)
    close(metrics["train/near_best"], 0.5)


def test_the_discriminator_is_taught_the_first_feature_of_a_window():
    """Latents 0.5 and 0.25 after the features N(1) = -0.5 and N(3) = 0.5: 1 and 0.25 away."""
    agent = smerl()
    state = agent.init(KEY)
    features = np.array([[[1], [4]], [[3], [0]]], np.float32)
    batch = BATCH._replace(
        rewards=np.zeros((2, 2)), features=features, weights=np.ones((2, 2)), skill=column(0.5, 0.25)
    )
    _, metrics = jax.jit(agent.losses)(reader(agent), state.target, jnp.array(0), batch, KEY)
    close(metrics["loss/discriminator"], math.log(2 * math.pi) / 2 + (1 + 0.25**2) / 4)


def test_each_loss_teaches_its_own_network_only():
    agent = smerl(hidden_sizes=(16,))
    state = agent.init(KEY)

    def each_loss(params: dict[str, Params]) -> dict[str, jax.Array]:
        total, metrics = agent.losses(params, state.target, jnp.array(0), BATCH, KEY)
        parts = {name: metrics[f"loss/{name}"] for name in ("critic", "actor", "discriminator")}
        return parts | {"log_temperature": total - sum(parts.values())}

    for loss, gradients in jax.jit(jax.jacrev(each_loss))(state.params).items():
        assert taught(gradients) == {loss}


# A probe: features that tell the latent.


def test_the_discriminator_recovers_the_latent():
    """Rows show what N takes to their latent; after training its mean is the latent and it is sure of it."""
    task = clock_task(skill_space=Box((0.0, -1.0), (4.0, 2.0), (2, 2)), reference_return=0.0)
    agent = SMERL(small_config(Config, learning_rate=3e-3), task)

    def update(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        latent = agent.commands.draw(key, jnp.array(0), 128)
        features = latent * jnp.array([2.0, 1.5]) + jnp.array([2.0, 0.5])
        rows = jax.tree.map(lambda x: jnp.repeat(x, 64, axis=0), BATCH)
        rows = rows._replace(skill=latent, features=features[:, None])
        state, metrics = agent.update(state, (rows, rows), key)
        return state, metrics["loss/discriminator"]

    state, losses = jax.jit(lambda: jax.lax.scan(update, agent.init(KEY), jax.random.split(KEY, 800)))()
    skill = np.array([[2, 0.5], [3.6, -0.7], [0.4, 1.7], [1, 0.2]], np.float32)
    mean, log_std = agent.discriminate(state.params["discriminator"], skill)
    close(mean, [[0, 0], [0.8, -0.8], [-0.8, 0.8], [-0.5, -0.2]], atol=0.1)
    assert np.exp(log_std).max() < 0.15
    assert losses[-50:].mean() < -2.0 < 1.0 < losses[0]


# A probe: a hill whose top is in the middle.


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("reverse, target, least, most", [
    (False, 40.0, 0.0, 0.1), (False, 17.0, 0.4, 0.97), (False, 0.0, 0.5, 1.1),
    (True, 40.0, 0.5, 1.1), (True, 0.0, 1.2, 2.0),
])  # fmt: skip
def test_who_is_paid_for_diversity_spreads(reverse, target, least, most):
    """Episodes of 20 steps on the hill, which pays 1 - a²: 20 at most, so that 0 is always near and 40 never. Near 17
    is what is above 15.3, within 0.485 of the top.

    SMERL stays on the top until it is near, and then trades some of the way down for diversity; Reverse SMERL does
    that until it is near, and then nothing but diversity counts.
    """
    fields = {"reverse": reverse, "target_return": target, "diversity_scale": 1.0, "initial_temperature": 0.03}
    agent = SMERL(small_config(Config, **QUICK | fields), hill_task(episode_length=20))
    state, _ = trained(agent, 60)
    latent, obs = column(*np.linspace(-0.9, 0.9, 7)), np.zeros((7, 1), np.float32)
    action = agent.act(agent.policy_params(state), obs, latent)
    assert least <= np.ptp(action) <= most
