"""The world model: its pieces against known answers, and a system small enough to be learned in seconds."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from probes import close

from qdac.agents.world_model import Latent, ModelConfig, WorldModel, kl_divergence, straight_through
from qdac.errors import UserError
from qdac.replay import Sequences

KEY = jax.random.PRNGKey(0)
SMALL = ModelConfig(
    memory_size=12, latents=3, classes=4, model_width=10, encoder_sizes=(8,), head_sizes=(8,), num_bins=11,
    bin_limit=3.0,
)  # fmt: skip


def random_steps(num: int, length: int, obs_size: int = 3, action_size: int = 2) -> Sequences:
    keys = jax.random.split(KEY, 4)
    return Sequences(
        obs=jax.random.normal(keys[0], (num, length, obs_size)),
        action=jax.random.uniform(keys[1], (num, length, action_size), minval=-1.0),
        reward=jax.random.normal(keys[2], (num, length)),
        feature=jax.random.uniform(keys[3], (num, length, 1)),
        terminated=jnp.zeros((num, length)),
        is_first=jnp.zeros((num, length)).at[:, 0].set(1.0),
    )


@pytest.fixture
def model() -> WorldModel:
    """A model that draws no noise: each sample is the mode."""
    model = WorldModel(SMALL, obs_size=3, action_size=2, feature_size=1)
    model.noise = lambda key, *shape: None
    return model


def test_kl_divergence_sums_over_variables():
    """One variable of (1/2, 1/2) against (1/4, 3/4), and one that is the same."""
    p = jnp.array([[0.5, 0.5], [0.3, 0.7]])
    q = jnp.array([[0.25, 0.75], [0.3, 0.7]])
    close(kl_divergence(p, q), 0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    close(kl_divergence(p, p), 0.0, atol=1e-7)


PROBABILITIES = jnp.array([0.2, 0.5, 0.3])


@pytest.mark.parametrize("noise, value", [(None, 2.0), (0.1, 1.0), (0.2, 2.0), (0.69, 2.0), (0.71, 4.0)])
def test_samples_are_one_hot_with_the_gradient_of_the_probabilities(noise, value):
    noise = None if noise is None else jnp.array([noise])
    weights = jnp.array([1.0, 2.0, 4.0])
    sample, gradient = jax.value_and_grad(lambda p: straight_through(p, noise) @ weights)(PROBABILITIES)
    close(sample, value)
    close(gradient, weights)


def test_samples_follow_the_probabilities():
    noise = jax.random.uniform(KEY, (20_000, 1))
    samples = straight_through(jnp.broadcast_to(PROBABILITIES, (20_000, 3)), noise)
    close(samples.sum(axis=-1), 1.0)
    close(samples.mean(axis=0), PROBABILITIES, atol=0.02)


def test_no_class_is_ever_impossible(model):
    params = model.init(KEY)
    params["prior"][-1]["bias"] = 100.0 * jnp.arange(12)
    probabilities = model.prior(params, jnp.zeros((1, 12)))
    close(probabilities.sum(axis=-1), 1.0)
    close(probabilities.min(), SMALL.unimix / SMALL.classes)


def gradients_of(scales: dict[str, float], free_nats: float) -> dict[str, float]:
    """Returns the norms of the gradients of prior and posterior when nothing but the two divergences counts.

    The memory is made of the actions: nothing that is observed gets from one step to the next.
    """
    config = dataclasses.replace(SMALL, free_nats=free_nats, dynamics_scale=1.0, representation_scale=1.0)
    model = WorldModel(config, obs_size=3, action_size=2, feature_size=1)
    model.remember = lambda params, latent, action: jnp.tile(action, (1, 6))
    params, steps = model.init(KEY), random_steps(4, 3)

    def loss(params):
        _, _, parts = model.loss(params, steps, KEY)
        return sum(scale * parts[name] for name, scale in scales.items())

    gradients = jax.grad(loss)(params)
    return {name: float(optax.tree.norm(gradients[name])) for name in ("prior", "posterior")}


def test_each_divergence_teaches_its_own_side():
    """What is imagined learns from the first, what is observed from the second."""
    first = gradients_of({"dynamics": 1.0}, free_nats=0.0)
    second = gradients_of({"representation": 1.0}, free_nats=0.0)
    assert first["prior"] > 0 and first["posterior"] == 0
    assert second["prior"] == 0 and second["posterior"] > 0
    assert gradients_of({"dynamics": 1.0, "representation": 1.0}, free_nats=100.0) == {"prior": 0, "posterior": 0}


def test_what_comes_first_need_not_be_foretold(model):
    """Two steps that both begin an episode have no divergence; the second of one episode has."""
    steps = random_steps(4, 2)
    params = model.init(KEY)
    names = ("dynamics", "representation")
    _, _, alone = model.loss(params, steps._replace(is_first=jnp.ones((4, 2))), KEY)
    _, _, parts = model.loss(params, steps, KEY)
    assert all(alone[name] == 0 and parts[name] >= 0.5 * SMALL.free_nats for name in names)


def test_the_first_step_of_an_episode_knows_nothing_of_what_came_before(model):
    steps = random_steps(2, 6)
    steps = steps._replace(is_first=steps.is_first.at[0, 4].set(1.0))
    params = model.init(KEY)
    latent, _ = model.follow(params, steps, KEY)
    alone = jax.tree.map(lambda x: x[:, 4:], steps)
    alone, _ = model.follow(params, alone._replace(is_first=jnp.array([[1.0, 0.0]] * 2)), KEY)
    close(latent.memory[0, 4:], alone.memory[0])
    assert not np.allclose(latent.memory[1, 4:], alone.memory[1])


def test_following_is_remembering_and_seeing_in_turn(model):
    steps = random_steps(2, 4)
    params = model.init(KEY)
    latent, probabilities = model.follow(params, steps, KEY)
    state, action = model.initial(2), jnp.zeros((2, 2))
    for t in range(4):
        memory = model.remember(params, state, action)
        state = model.latent(memory, model.posterior(params, memory, model.encode(params, steps.obs[:, t])))
        close(state.vector, latent.vector[:, t], atol=1e-5)
        action = steps.action[:, t]
    close(probabilities.sum(axis=-1), 1.0)


def test_losses_of_an_untrained_model(model):
    """The heads begin at 0: every reward and feature has the loss of even odds, and so has the end."""
    _, _, parts = model.loss(model.init(KEY), random_steps(4, 3), KEY)
    close(parts["reward"], np.log(11))
    close(parts["feature"], np.log(11))
    close(parts["end"], np.log(2))


def test_it_learns_a_small_system():
    """A place moved by a third of the action, which ends beyond 1; rewarded by the place, its feature too.

    After 600 updates and 2 steps of context, 5 steps are foretold from the actions alone: place and feature within
    0.1, reward within 0.1, and ends with less than half of the surprise that knowing how many there are leaves.
    """
    config = ModelConfig(
        memory_size=32, latents=4, classes=8, model_width=32, encoder_sizes=(32,), head_sizes=(32,), num_bins=21,
        bin_limit=1.0,
    )  # fmt: skip
    model = WorldModel(config, obs_size=1, action_size=1, feature_size=1)
    optimizer = optax.adam(3e-3)

    def live(key: jax.Array, num: int = 32, length: int = 8) -> Sequences:
        key_start, key_action = jax.random.split(key)
        action = jax.random.uniform(key_action, (num, length, 1), minval=-1.0)

        def step(place, action):
            moved = place + action / 3.0
            ended = (jnp.abs(moved) > 1.0).astype(jnp.float32)
            return jnp.where(ended, 0.0, moved), (place, moved[:, 0], ended[:, 0])

        start = jax.random.uniform(key_start, (num, 1), minval=-0.5, maxval=0.5)
        _, (place, moved, ended) = jax.lax.scan(step, start, jnp.moveaxis(action, 0, 1))
        place, moved, ended = (jnp.moveaxis(x, 0, 1) for x in (place, moved, ended))
        is_first = jnp.pad(ended[:, :-1], ((0, 0), (1, 0)), constant_values=1.0)
        return Sequences(place, action, moved, place, ended, is_first)

    def update(state, key):
        params, moments = state
        gradient = jax.grad(lambda params: model.loss(params, live(key), key)[0])(params)
        updates, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(params, updates), moments), None

    params = model.init(KEY)
    keys = jax.random.split(KEY, 600)
    (params, _), _ = jax.jit(lambda state: jax.lax.scan(update, state, keys))((params, optimizer.init(params)))

    steps = live(jax.random.PRNGKey(1), num=1000, length=7)
    latents, _ = jax.jit(model.follow)(params, steps, KEY)
    latent = Latent(latents.memory[:, 1], latents.sample[:, 1])
    is_same_episode = jnp.cumprod(1.0 - steps.terminated, axis=1)
    errors, surprises, ends = [], [], []
    for t in range(1, 7):
        mine = is_same_episode[:, t - 1] > 0
        reward, goes_on = model.outcome(params, latent.vector, steps.action[:, t])
        seen = model.decode(params, latent.vector)[:, 0]
        feature = model.bins.mean(model.feature(params, latent.vector, steps.action[:, t]))[:, 0]
        for told, truth in ((seen, steps.obs[:, t, 0]), (feature, steps.feature[:, t, 0]),
                            (model.bins.mean(reward), steps.reward[:, t])):  # fmt: skip
            errors.append(jnp.abs(told - truth)[mine].mean())
        surprises.append(optax.sigmoid_binary_cross_entropy(goes_on, 1.0 - steps.terminated[:, t])[mine])
        ends.append(steps.terminated[:, t][mine])
        memory = model.remember(params, latent, steps.action[:, t])
        latent = model.latent(memory, model.prior(params, memory))
    assert max(errors) < 0.1, np.round(errors, 3)
    rate = np.concatenate(ends).mean()
    known = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    surprise = np.concatenate(surprises).mean()
    assert surprise < 0.5 * known, (surprise, known)


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"classes": 1}, "classes should be at least 2, got 1"),
        ({"memory_size": 0}, "memory_size should be positive, got 0"),
        ({"head_sizes": ()}, "head_sizes should be positive widths, got ()"),
        ({"unimix": 1.0}, "unimix should be in (0, 1), got 1.0"),
        ({"free_nats": -1.0}, "free_nats should not be negative, got -1.0"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(fields, line):
    with pytest.raises(UserError) as refused:
        dataclasses.replace(SMALL, **fields)
    assert line in str(refused.value)
