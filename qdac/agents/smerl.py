"""SMERL (Kumar et al., 2020) and Reverse SMERL (Zahavy et al., 2022), with continuous DIAYN on the features.

A policy conditioned on a latent z, which a discriminator q(z | phi) = N(mu(phi), sigma(phi)) tells from the
features. The diversity reward is r~ = log q(z | phi) - log p(z). Of episodes with the return R it adds

    SMERL           r + scale 1(R >= R* - epsilon) r~        diversity once the return is near the best
    Reverse SMERL   1(R < R* - epsilon) r + scale r~         the task only as long as it is not

where R* is the return that SAC reaches on the task. To have a skill executed, the latent is mu(skill).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Self

import jax
import jax.numpy as jnp

from qdac import nets
from qdac.agents import sac, soft
from qdac.errors import UserError
from qdac.replay import Batch
from qdac.types import Array, Commands, Params, Task

LOG_STD_BOUNDS = (-5.0, 2.0)
"""Of the discriminator. Without a lower one its density grows without limit where features tell all, such as at
feet that never touch the ground, and the reward with it."""


@dataclasses.dataclass(frozen=True)
class Config(sac.Config):
    """Hyper-parameters of SMERL; the defaults are the paper's."""

    reverse: bool = False
    """Reverse SMERL: diversity always, the task as long as the return is not near the best."""
    diversity_scale: float = 10.0
    """What the diversity reward of an env step is multiplied by."""
    target_return: float | None = None
    """R*; none for what SAC reached on the task."""
    margin: float = 0.1
    """epsilon, in multiples of |R*|."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("diversity_scale", "margin"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} should not be negative, got {getattr(self, name)}")
        if self.replay_parts != 1:
            raise UserError(
                f"replay_parts should be 1, got {self.replay_parts}: returns are known of the newest episodes only"
            )
        if self.target_return is not None and not math.isfinite(self.target_return):
            raise UserError(f"target_return should be a number, got {self.target_return}")

    def for_task(self, task: Task) -> Self:
        """Returns the configuration with R* written out."""
        config = super().for_task(task)
        if config.target_return is not None:
            return config
        if task.reference_return is None:
            raise UserError(
                f"{task.name} has no return of SAC to compare with; give --target-return, such as the mean_return "
                "that `qdac evaluate` finds after `qdac train --algo sac`"
            )
        return dataclasses.replace(config, target_return=task.reference_return)


def log_density(latent: Array, mean: Array, log_std: Array) -> Array:
    """Returns log q(z | phi), summed over the last axis."""
    scaled = (latent - mean) * jnp.exp(-log_std)
    return -(0.5 * jnp.square(scaled) + log_std + 0.5 * math.log(2.0 * math.pi)).sum(axis=-1)


def mixed_reward(reward: Array, diversity: Array, is_near_best: Array, reverse: bool, scale: float) -> Array:
    """Returns what SMERL or Reverse SMERL maximises the sum of."""
    if reverse:
        return jnp.where(is_near_best, 0.0, reward) + scale * diversity
    return reward + jnp.where(is_near_best, scale * diversity, 0.0)


class SMERL(sac.SAC):
    """The algorithm for one task; the latent has as many numbers as a skill, each uniform in [-1, 1]."""

    def __init__(self, config: Config, task: Task):
        config, size = config.for_task(task), task.skill_size
        self.near_best = config.target_return - config.margin * abs(config.target_return)
        latents = Commands(size, lambda key, env, num: jax.random.uniform(key, (num, size), minval=-1.0))
        super().__init__(config, task, latents)

    def condition(self, command: Array) -> Array:
        """Returns the latent."""
        return command

    def init_networks(self, key: Array) -> dict[str, Params]:
        """Returns the critic and the discriminator."""
        key_critic, key_discriminator = jax.random.split(key)
        size = self.task.skill_size
        discriminator = nets.init_mlp(key_discriminator, (size, *self.config.hidden_sizes, 2 * size))
        return {**super().init_networks(key_critic), "discriminator": discriminator}

    def discriminate(self, discriminator: Params, features: Array) -> tuple[Array, Array]:
        """Returns the mean and the logarithm of the deviation of the latent, given features [..., skill_size]."""
        outputs = nets.apply_mlp(discriminator, self.task.skill_space.normalize(features))
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        low, high = LOG_STD_BOUNDS
        return mean, low + 0.5 * (high - low) * (jnp.tanh(log_std) + 1.0)

    def policy_params(self, state: soft.State) -> Params:
        """Returns what acting needs: the actor, and the discriminator that finds the latent for a skill."""
        return {**super().policy_params(state), "discriminator": state.params["discriminator"]}

    def command(self, params: Params, skill: Array) -> Array:
        """Returns the latent that the discriminator expects behind each skill, within the latent space."""
        mean, _ = self.discriminate(params["discriminator"], skill)
        return jnp.clip(mean, -1.0, 1.0)

    def rewards(self, params: dict[str, Params], batch: Batch) -> Array:
        """Returns what to maximise the sum of, [num, n]."""
        mean, log_std = self.discriminate(params["discriminator"], batch.features)
        diversity = log_density(batch.skill[:, None], mean, log_std) + self.task.skill_size * math.log(2.0)
        is_near_best = (batch.episode_return >= self.near_best)[:, None]
        scale = self.config.diversity_scale * self.config.action_repeat
        return mixed_reward(batch.rewards, diversity, is_near_best, self.config.reverse, scale)

    def losses(
        self, params: dict[str, Params], target: dict[str, Params], num_updates: Array, batch: Batch, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Returns SAC's losses and the discriminator's: it is taught which latent a feature was shown with."""
        total, metrics = super().losses(params, target, num_updates, batch, key)
        mean, log_std = self.discriminate(params["discriminator"], batch.features[:, 0])
        loss = -log_density(batch.skill, mean, log_std).mean()
        metrics |= {
            "loss/discriminator": loss,
            "train/near_best": (batch.episode_return >= self.near_best).mean(),
        }
        return total + loss, metrics


LAPTOP = Config(**soft.LAPTOP)
DEBUG = Config(**soft.DEBUG, target_return=0.0)
