"""A world model in the manner of DreamerV3: a recurrent state-space model with discrete latents, and its heads.

A latent state is (h, x): h is what a GRU remembers, x a number of categorical variables as one-hot vectors.

    h' = f(h, x, a)      x' ~ q(x' | h', o')  where o' is observed,  x' ~ p(x' | h')  where it is imagined

Heads read from (h, x) the observation and the feature, and from (h, x, a) the reward and whether the episode goes on,
and the feature too where actions last: its mean over an action's time. Observations go in and come out scaled, as
whoever uses the model sees fit; by symlog in DreamerV3, which reads reward and end from the state that follows: here
the one after an end need not exist.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdac import nets
from qdac.errors import UserError
from qdac.replay import Sequences
from qdac.twohot import Bins
from qdac.types import Array, Params


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and losses of the world model; the defaults are those of the paper's code, but for the bins' range."""

    memory_size: int = 512
    """Width of the GRU's state."""
    latents: int = 32
    """Categorical variables of a state."""
    classes: int = 32
    """Classes of each of them."""
    model_width: int = 512
    """Width of the layers between memory, latents and actions."""
    encoder_sizes: tuple[int, ...] = (1024,) * 5
    """Widths of the encoder's layers, and of the decoder's."""
    head_sizes: tuple[int, ...] = (512, 512)
    """Widths of the hidden layers of every head, of the critics and of the actor."""
    num_bins: int = 255
    """Bins of a distribution of rewards, features, values and successor features."""
    bin_limit: float = 6.0
    """Where the bins end, in units of symlog: rewards and averages beyond symexp(6) = 402 are cut off."""
    unimix: float = 0.01
    """Share of the uniform distribution in every categorical one."""
    free_nats: float = 1.0
    """Below this the two Kullback-Leibler losses do not count."""
    dynamics_scale: float = 0.5
    """Weight of the loss that teaches the imagined latents to be like the observed ones."""
    representation_scale: float = 0.1
    """Weight of the loss that keeps the observed latents close to what can be imagined."""
    feature_scale: float = 1.0
    """Weight of the loss of the features, a few numbers beside the many of an observation."""

    def __post_init__(self) -> None:
        for name in ("memory_size", "latents", "model_width"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} should be positive, got {getattr(self, name)}")
        if not 0 < self.bin_limit <= 80:
            raise UserError(f"bin_limit should be above 0 and at most 80, or bins overflow, got {self.bin_limit}")
        for name in ("classes", "num_bins"):
            if getattr(self, name) < 2:
                raise UserError(f"{name} should be at least 2, got {getattr(self, name)}")
        nets.check_widths(self, "encoder_sizes", "head_sizes")
        for name in ("free_nats", "dynamics_scale", "representation_scale", "feature_scale"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} should not be negative, got {getattr(self, name)}")
        if not 0 < self.unimix < 1:
            raise UserError(f"unimix should be in (0, 1), got {self.unimix}")


keep_products = functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False)
"""Of a step in a loop keeps the matrix products alone for the way back: the rest is made again sooner than stored."""


class Latent(NamedTuple):
    """States of the model, [..., size]."""

    memory: Array
    sample: Array
    """One-hot vectors of all variables, one after the other."""

    @property
    def vector(self) -> Array:
        """Returns what networks read."""
        return jnp.concatenate([self.memory, self.sample], axis=-1)


def straight_through(probabilities: Array, noise: Array | None = None) -> Array:
    """Returns one-hot samples of probabilities [..., classes], by uniform noise [..., 1], or the mode without.

    Their gradients are those of the probabilities.
    """
    classes = probabilities.shape[-1]
    if noise is None:
        one_hot = jax.nn.one_hot(jnp.argmax(probabilities, axis=-1), classes)
    else:
        up_to = probabilities @ jnp.triu(jnp.ones((classes, classes)))
        below = jnp.pad(up_to[..., :-1], [(0, 0)] * (up_to.ndim - 1) + [(1, 0)])
        place = noise * up_to[..., -1:]
        one_hot = ((below <= place) & (place < up_to)).astype(probabilities.dtype)
    return jax.lax.stop_gradient(one_hot - probabilities) + probabilities


def kl_divergence(p: Array, q: Array) -> Array:
    """Returns KL(p || q) of probabilities [..., latents, classes], summed over the variables."""
    return (p * (jnp.log(p) - jnp.log(q))).sum(axis=(-2, -1))


class WorldModel:
    """The model for sizes of observation, action and feature; parameters go in and out of every function."""

    def __init__(
        self, config: ModelConfig, obs_size: int, action_size: int, feature_size: int, actions_last: bool = False
    ):
        self.config, self.obs_size, self.action_size, self.feature_size = config, obs_size, action_size, feature_size
        self.actions_last = actions_last
        """Whether a feature depends on the action. Of a state alone it does not: a model that sees the action there
        might read from it what the state was, and the actor then show a feature by what it does, not where it gets."""
        self.bins = Bins(config.num_bins, config.bin_limit)
        self.sample_size = config.latents * config.classes
        self.vector_size = config.memory_size + self.sample_size

    def init(self, key: Array) -> dict[str, Params]:
        """Returns fresh parameters."""
        config = self.config
        keys = iter(jax.random.split(key, 8))
        memory, width = config.memory_size, config.model_width

        def network(*sizes: int, zero_output: bool = False) -> Params:
            return nets.init_mlp(next(keys), sizes, layer_norm=True, zero_output=zero_output)

        gates = nets.init_mlp(next(keys), (width + memory, 3 * memory))[0]
        return {
            "encoder": network(self.obs_size, *config.encoder_sizes, width),
            "mix": network(self.sample_size + self.action_size, width),
            "memory": gates | {"scale": jnp.ones(3 * memory)},
            "prior": network(memory, width, self.sample_size),
            "posterior": network(memory, width, self.sample_size),
            "decoder": network(self.vector_size, *config.encoder_sizes, self.obs_size),
            "feature": network(
                self.vector_size + self.action_size * self.actions_last, *config.head_sizes,
                self.feature_size * config.num_bins, zero_output=True,
            ),
            "outcome": network(
                self.vector_size + self.action_size, *config.head_sizes, config.num_bins + 1, zero_output=True
            ),
        }

    # One step.

    def initial(self, num: int) -> Latent:
        """Returns the state before an episode: zeros."""
        return Latent(jnp.zeros((num, self.config.memory_size)), jnp.zeros((num, self.sample_size)))

    def encode(self, params: dict[str, Params], obs: Array) -> Array:
        """Returns what the first layer of the posterior has from observations: of many steps at once."""
        return nets.apply_silu_mlp(params["encoder"], obs)

    def remember(self, params: dict[str, Params], latent: Latent, action: Array) -> Array:
        """Returns the memory h' after actions in latent states."""
        mixed = nets.apply_silu_mlp(params["mix"], jnp.concatenate([latent.sample, action], axis=-1))
        inputs = jax.nn.silu(nets.rms_norm(mixed))
        gates = params["memory"]
        fused = jnp.concatenate([inputs, latent.memory], axis=-1) @ gates["kernel"]
        reset, candidate, update = jnp.split(nets.rms_norm(fused) * gates["scale"] + gates["bias"], 3, axis=-1)
        candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
        update = jax.nn.sigmoid(update - 1.0)  # Begins by keeping.
        return update * candidate + (1.0 - update) * latent.memory

    def prior(self, params: dict[str, Params], memory: Array) -> Array:
        """Returns p(x | h), [..., latents, classes]."""
        return self._probabilities(nets.apply_silu_mlp(params["prior"], memory))

    def posterior(self, params: dict[str, Params], memory: Array, embedding: Array) -> Array:
        """Returns q(x | h, o), [..., latents, classes]."""
        return self._probabilities(nets.apply_silu_mlp(params["posterior"], memory, embedding))

    def _probabilities(self, outputs: Array) -> Array:
        config = self.config
        probabilities = jax.nn.softmax(outputs.reshape(*outputs.shape[:-1], config.latents, config.classes))
        return (1.0 - config.unimix) * probabilities + config.unimix / config.classes

    def latent(self, memory: Array, probabilities: Array, noise: Array | None = None) -> Latent:
        """Returns the states with a sample of the probabilities, by noise, or with their mode."""
        sample = straight_through(probabilities, noise)
        return Latent(memory, sample.reshape(*memory.shape[:-1], self.sample_size))

    def noise(self, key: Array, *shape: int) -> Array:
        """Returns what samples are drawn by: a number in [0, 1) for each variable."""
        return jax.random.uniform(key, (*shape, self.config.latents, 1))

    # Heads.

    def decode(self, params: dict[str, Params], vector: Array) -> Array:
        """Returns the observations."""
        return nets.apply_silu_mlp(params["decoder"], vector)

    def feature(self, params: dict[str, Params], vector: Array, action: Array) -> Array:
        """Returns logits of the features, [..., feature_size, num_bins]."""
        inputs = jnp.concatenate([vector, action], axis=-1) if self.actions_last else vector
        outputs = nets.apply_silu_mlp(params["feature"], inputs)
        return outputs.reshape(*vector.shape[:-1], self.feature_size, self.config.num_bins)

    def outcome(self, params: dict[str, Params], vector: Array, action: Array) -> tuple[Array, Array]:
        """Returns logits of the reward, [..., num_bins], and the logit that the episode goes on."""
        outputs = nets.apply_silu_mlp(params["outcome"], jnp.concatenate([vector, action], axis=-1))
        return outputs[..., :-1], outputs[..., -1]

    # Many steps.

    def follow(self, params: dict[str, Params], steps: Sequences, key: Array) -> tuple[Latent, Array]:
        """Returns the latent states of observed steps [num, length], and the probabilities of their posteriors."""
        num, length = steps.reward.shape
        embeddings = self.encode(params, steps.obs)
        before = jnp.pad(steps.action[:, :-1], ((0, 0), (1, 0), (0, 0)))

        def one_step(latent: Latent, inputs: Any) -> tuple[Latent, tuple[Latent, Array]]:
            embedding, action, is_first, noise = inputs
            latent, action = jax.tree.map(lambda x: x * (1.0 - is_first[:, None]), (latent, action))
            memory = self.remember(params, latent, action)
            probabilities = self.posterior(params, memory, embedding)
            latent = self.latent(memory, probabilities, noise)
            return latent, (latent, probabilities)

        by_time = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (embeddings, before, steps.is_first))
        inputs = (*by_time, self.noise(key, length, num))
        _, found = jax.lax.scan(keep_products(one_step), self.initial(num), inputs)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), found)

    def loss(self, params: dict[str, Params], steps: Sequences, key: Array) -> tuple[Array, Latent, dict[str, Array]]:
        """Returns the loss on observed steps, the latent states they were in, and each part of the loss."""
        config, fixed = self.config, jax.lax.stop_gradient
        latent, posterior = self.follow(params, steps, key)
        vector = latent.vector
        prior = self.prior(params, latent.memory)
        is_foretold = 1.0 - steps.is_first  # What comes first follows from nothing, and is never imagined.
        reward, goes_on = self.outcome(params, vector, steps.action)
        parts = {
            "observation": jnp.square(self.decode(params, vector) - steps.obs).sum(axis=-1),
            "reward": self.bins.loss(reward, steps.reward),
            "feature": self.bins.loss(self.feature(params, vector, steps.action), steps.feature).sum(axis=-1),
            "end": optax.sigmoid_binary_cross_entropy(goes_on, 1.0 - steps.terminated),
            "dynamics": is_foretold * jnp.maximum(kl_divergence(fixed(posterior), prior), config.free_nats),
            "representation": is_foretold * jnp.maximum(kl_divergence(posterior, fixed(prior)), config.free_nats),
        }
        names = ("dynamics", "representation", "feature")
        scales = {name: getattr(config, f"{name}_scale") for name in names}
        means = {name: part.mean() for name, part in parts.items()}
        total = sum(scales.get(name, 1.0) * mean for name, mean in means.items())
        return total, latent, means

