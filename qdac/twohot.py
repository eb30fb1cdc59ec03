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
    """`num` bins from -symexp(limit) to symexp(limit), evenly spaced in units of symlog: close together near 0."""

    num: int
    limit: float

    @property
    def spacing(self) -> float:
        """The distance of two neighbours in units of symlog."""
        return 2.0 * self.limit / (self.num - 1)

    def mean(self, logits: Array) -> Array:
        """Returns the numbers that distributions [..., num] stand for."""
        probabilities = jax.nn.softmax(logits)
        lean = 0.5 * (probabilities - jnp.flip(probabilities, axis=-1))  # Bins of either sign cancel exactly.
        return lean @ symexp(jnp.linspace(-self.limit, self.limit, self.num))

    def two_hot(self, number: Array) -> Array:
        """Returns weights [..., num] of the two bins around each number whose mean it is; those beyond are cut off."""
        place = (jnp.clip(symlog(number), -self.limit, self.limit) + self.limit) / self.spacing
        below = jnp.clip(jnp.floor(place), 0, self.num - 2)
        low, high = (symexp((below + i) * self.spacing - self.limit) for i in (0, 1))
        place = below + jnp.clip((number - low) / (high - low), 0.0, 1.0)
        return jnp.maximum(0.0, 1.0 - jnp.abs(place[..., None] - jnp.arange(self.num)))

    def loss(self, logits: Array, number: Array) -> Array:
        """Returns the cross-entropy of distributions [..., num] towards numbers [...]."""
        return -(self.two_hot(number) * jax.nn.log_softmax(logits)).sum(axis=-1)
