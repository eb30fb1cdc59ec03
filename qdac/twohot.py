"""Numbers of any size as distributions over bins: symlog squeezes them, two neighbouring bins share each of them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from qdac.types import Array


def symlog(x: Array) -> Array:
    """Returns x near 0, and its logarithm, with its sign, far from it."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: Array) -> Array:
    """Returns what symlog was given."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


@dataclasses.dataclass(frozen=True)
class Bins:
    """`num` bins, evenly spaced from -limit to limit in units of symlog."""

    num: int
    limit: float

    def mean(self, logits: Array) -> Array:
        """Returns the numbers that distributions [..., num] stand for."""
        return symexp(jax.nn.softmax(logits) @ jnp.linspace(-self.limit, self.limit, self.num))

    def two_hot(self, number: Array) -> Array:
        """Returns weights [..., num] of the two bins around each number whose mean it is; those beyond are cut off."""
        spacing = 2.0 * self.limit / (self.num - 1)
        position = (jnp.clip(symlog(number), -self.limit, self.limit) + self.limit) / spacing
        return jnp.maximum(0.0, 1.0 - jnp.abs(position[..., None] - jnp.arange(self.num)))

    def loss(self, logits: Array, number: Array) -> Array:
        """Returns the cross-entropy of distributions [..., num] towards numbers [...]."""
        return -(self.two_hot(number) * jax.nn.log_softmax(logits)).sum(axis=-1)
