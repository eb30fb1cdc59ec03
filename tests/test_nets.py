"""The tanh-Gaussian, normalised layers and ensembles."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from probes import clock_task, close, small_config

from qdac import nets
from qdac.agents import qdac


def test_log_probabilities_follow_the_change_of_variables():
    """log N(u; mean, std) - log |d tanh(u) / du|, with the derivative 1 - a²."""
    outputs = jax.random.normal(jax.random.PRNGKey(0), (64, 4))
    action, log_prob = nets.sample_tanh_gaussian(outputs, jax.random.PRNGKey(1))
    mean, raw_std = np.split(np.asarray(outputs, np.float64), 2, axis=-1)
    std = np.log1p(np.exp(raw_std)) + 1e-3
    action = np.asarray(action, np.float64)
    before_tanh = np.arctanh(action)
    log_normal = -0.5 * ((before_tanh - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))
    expected = (log_normal - np.log(1 - action**2)).sum(axis=-1)
    close(log_prob, expected, rtol=1e-3, atol=1e-3)


def test_probabilities_integrate_to_one():
    outputs = jnp.tile(jnp.array([0.4, 0.0]), (20_000, 1))
    action, log_prob = jax.device_get(nets.sample_tanh_gaussian(outputs, jax.random.PRNGKey(0)))
    order = np.argsort(action[:, 0])
    close(np.trapezoid(np.exp(log_prob[order]), action[order, 0]), 1.0, rtol=5e-3)


def test_log_probabilities_of_saturated_actions_are_finite():
    """At u = 30 the action rounds to 1; log(1 - tanh²) is log 4 - 2 u there."""
    outputs = jnp.array([[30.0, -100.0]])
    action, log_prob = nets.sample_tanh_gaussian(outputs, jax.random.PRNGKey(0))
    assert action[0, 0] == 1.0
    noise = jax.random.normal(jax.random.PRNGKey(0), (1, 1))[0, 0]
    log_normal = -0.5 * noise**2 - math.log(1e-3 * math.sqrt(2 * math.pi))
    close(log_prob, [log_normal - (math.log(4) - 2 * (30 + 1e-3 * noise))], rtol=1e-4)


def test_layer_norm():
    x = 5.0 + 3.0 * jax.random.normal(jax.random.PRNGKey(0), (8, 64))
    normalized = np.asarray(nets._layer_norm(x))
    close(normalized.mean(axis=-1), np.zeros(8), atol=1e-5)
    close(normalized.var(axis=-1), np.ones(8), rtol=1e-4)


def test_only_critics_are_normalised():
    params = qdac.QDAC(small_config(layer_norm=True), clock_task()).init(jax.random.PRNGKey(0)).params
    for name in ("actor", "multiplier", "critic", "successor"):
        has_scale = ["scale" in layer for layer in params[name]]
        assert has_scale == [name in ("critic", "successor")] * 2 + [False], name


def test_members_of_an_ensemble_are_networks_of_their_own():
    params = nets.init_mlp(jax.random.PRNGKey(0), (3, 8, 2), members=2, layer_norm=True)
    x = jax.random.normal(jax.random.PRNGKey(1), (5, 3))
    outputs = nets.apply_mlp(params, x)
    for member in range(2):
        close(outputs[member], nets.apply_mlp(jax.tree.map(lambda p, i=member: p[i], params), x), rtol=1e-4)
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1
