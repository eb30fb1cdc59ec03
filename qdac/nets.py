"""Multi-layer perceptrons as plain pytrees, alone or in a stacked ensemble, and the tanh-Gaussian."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from qdac.errors import UserError
from qdac.types import Array

MIN_STD = 1e-3
MLPParams = list[dict[str, Array]]


def check_widths(config: Any, *names: str) -> None:
    """Raises a UserError unless each of these fields names at least one hidden layer, of one unit or more."""
    for name in names:
        if min(getattr(config, name), default=0) < 1:
            raise UserError(f"{name} should be positive widths, got {getattr(config, name)}")


def init_mlp(
    key: Array, sizes: Sequence[int], *, members: int = 0, layer_norm: bool = False, zero_output: bool = False
) -> MLPParams:
    """Returns the layers of an MLP with LeCun-uniform kernels, of the output layer zero if asked for, and zero biases.

    With `members`, every array has a leading axis: an ensemble that `apply_mlp` evaluates in one go.
    """
    lead = (members,) if members else ()
    params = []
    for i, (key_layer, fan_in, fan_out) in enumerate(
        zip(jax.random.split(key, len(sizes) - 1), sizes[:-1], sizes[1:], strict=True)
    ):
        is_output = i == len(sizes) - 2
        bound = 0.0 if zero_output and is_output else math.sqrt(3.0 / fan_in)
        layer = {
            "kernel": jax.random.uniform(key_layer, (*lead, fan_in, fan_out), minval=-bound, maxval=bound),
            "bias": jnp.zeros((*lead, fan_out)),
        }
        if layer_norm and not is_output:
            layer["scale"] = jnp.ones((*lead, fan_out))
        params.append(layer)
    return params


def apply_mlp(params: MLPParams, x: Array) -> Array:
    """Returns the outputs [..., size] for inputs [batch, in], or [members, batch, size] for an ensemble."""
    if params[0]["kernel"].ndim == 3:
        return jax.vmap(apply_mlp, in_axes=(0, None))(params, x)
    for layer in params[:-1]:
        x = x @ layer["kernel"] + layer["bias"]
        if "scale" in layer:
            x = _layer_norm(x) * layer["scale"]
        x = jax.nn.relu(x)
    return x @ params[-1]["kernel"] + params[-1]["bias"]


def apply_silu_mlp(params: MLPParams, x: Array, beside: Array | float = 0.0) -> Array:
    """Returns the outputs of an MLP with normalised hidden layers and smooth activations.

    `beside` is what the first layer has from other inputs, a product made elsewhere.
    """
    for layer in params[:-1]:
        x = jax.nn.silu(rms_norm(x @ layer["kernel"] + layer["bias"] + beside) * layer["scale"])
        beside = 0.0
    return x @ params[-1]["kernel"] + params[-1]["bias"]


def rms_norm(x: Array) -> Array:
    """Returns x with a mean square of 1 over its last axis."""
    size = x.shape[-1]
    return x * jax.lax.rsqrt(jnp.square(x) @ jnp.full((size, 1), 1.0 / size, x.dtype) + 1e-3)


def _layer_norm(x: Array) -> Array:
    """Returns x with zero mean and unit variance over its last axis.

    The means are matrix products with a column of 1 / size: XLA's CPU backend runs those on vector
    units and threads, its row reductions not.
    """
    size = x.shape[-1]
    average = jnp.full((size, 1), 1.0 / size, x.dtype)
    centred = x - x @ average
    return centred * jax.lax.rsqrt(jnp.square(centred) @ average + 1e-5)


def tanh_gaussian(outputs: Array) -> tuple[Array, Array]:
    """Returns mean and standard deviation, before the tanh, from an actor's outputs [..., 2 * action_size]."""
    mean, raw_std = jnp.split(outputs, 2, axis=-1)
    return mean, jax.nn.softplus(raw_std) + MIN_STD


def bounded_gaussian(outputs: Array) -> tuple[Array, Array]:
    """Returns mean in (-2, 2) and deviation in (0.05, 1), before the tanh, where actions tell them apart."""
    mean, std = tanh_gaussian(outputs)
    return 2.0 * jnp.tanh(0.5 * mean), 0.05 + 0.95 * jnp.tanh(std)


def tanh_gaussian_log_prob(mean: Array, std: Array, pre_tanh: Array) -> Array:
    """Returns the log-probabilities of the actions tanh(pre_tanh), [..., action_size] summed over the last axis."""
    log_normal = -0.5 * jnp.square((pre_tanh - mean) / std) - jnp.log(std) - 0.5 * math.log(2 * math.pi)
    log_det = 2.0 * (math.log(2.0) - pre_tanh - jax.nn.softplus(-2.0 * pre_tanh))
    return (log_normal - log_det).sum(axis=-1)


def sample_tanh_gaussian(outputs: Array, key: Array) -> tuple[Array, Array]:
    """Returns reparameterised actions in (-1, 1) and their log-probabilities."""
    mean, std = tanh_gaussian(outputs)
    pre_tanh = mean + std * jax.random.normal(key, mean.shape)
    return jnp.tanh(pre_tanh), tanh_gaussian_log_prob(mean, std, pre_tanh)
