"""What all forms of QDAC, on SAC, on PPO and model-based, make of skills: the second critic and the multiplier.

The paper's ablations are two fields. `skill_critic="distance"` replaces the distance of the expected feature,
|| (1 - gamma) psi - z ||, by the expected sum of distances, sum gamma^t || phi_t - z ||, and `multiplier` fixes
lambda: No-SF has the first, Fixed-lambda the second, UVFA both.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qdac import nets
from qdac.errors import UserError
from qdac.trunk import TrunkConfig, check_schedule
from qdac.types import Array, Params, Task

MIN_LIFE = 0.1
"""The smallest share of the features' time that what was lived of it is scaled up from."""


@dataclasses.dataclass(frozen=True)
class SkillConfig(TrunkConfig):
    """Hyper-parameters of the skill's side of the objective; the defaults are the paper's."""

    skill_critic: Literal["successor", "distance"] = "successor"
    """What the second critic expects: the features to come (the successor features psi), or the sum of
    their distances to the skill."""
    multiplier: float | None = None
    """lambda, if it is to stay the same; none to learn it."""
    normalize_features: bool = True
    """Work in units where the skill space is [-1, 1] (the threshold stays in the task's units)."""
    huber_scale: float = 1e-3
    """Below this the distance in the actor's objective is smooth (pseudo-Huber); above, the L2 norm."""
    feature_discount: float | None = 0.0
    """gamma of the features in psi, where they are averaged over a shorter time than Q and death look ahead; 0 for
    the same gamma, none for twice the task's short horizon."""
    death: Literal["centre", "opposite", "apart", "lived"] = "centre"
    """The feature that follows a termination, for ever: zeros (the centre of a normalised skill space), the
    skill farthest from the one asked for, or nothing but a distance, apart from all features; `lived` as well, with
    features averaged over the steps lived, as in an evaluation, so that death brings no skill closer."""
    death_distance: float | None = 2.0
    """How far from every skill death is, in units of the critics, where it is apart, and how much farther than the
    features lived; none for as far as the farthest skill, so that it is no worse than doing the opposite."""
    initial_threshold: float = 0.0
    """Where the threshold starts, in multiples of the task's; 0 to keep the task's throughout."""
    threshold_updates: int = 0
    """Updates over which the threshold moves from its start to the task's, geometrically."""
    skill_steps: int = 0
    """Actions after which an episode goes on with a fresh skill, on average, at any time; 0 for one an episode."""

    def __post_init__(self) -> None:
        if not self.huber_scale > 0:
            raise UserError(f"huber_scale should be positive, got {self.huber_scale}")
        if not 0 <= (self.feature_discount or 0.0) < 1:
            raise UserError(f"feature_discount should be in [0, 1), got {self.feature_discount}")
        if not self.skill_steps >= 0:
            raise UserError(f"skill_steps should not be negative, got {self.skill_steps}")
        if self.death_distance is not None and not self.death_distance > 0:
            raise UserError(f"death_distance should be positive, got {self.death_distance}")
        if self.multiplier is not None and not 0 <= self.multiplier <= 1:
            raise UserError(f"multiplier should be in [0, 1], or none to learn it, got {self.multiplier}")
        check_schedule(self, "initial_threshold", "threshold_updates")
        if self.multiplier is not None and self.initial_threshold:
            raise UserError(
                f"initial_threshold is for a multiplier that is learned, got {self.initial_threshold} with multiplier "
                f"{self.multiplier}; leave it out"
            )
        super().__post_init__()

    def for_task(self, task: Task) -> Self:
        config = super().for_task(task)
        if config.feature_discount is not None:
            return config
        return dataclasses.replace(config, feature_discount=1.0 - 0.5 / config.short_horizon(task))


def pseudo_huber(difference: Array, scale: float) -> Array:
    """Returns the L2 norm over the last axis, smooth below `scale`: the distance the actor minimises."""
    return scale * (jnp.sqrt(1.0 + jnp.square(difference / scale).sum(axis=-1)) - 1.0)


def multiplier_loss(logit: Array, skill_distance: Array, threshold: Array, weight: Array | float = 1.0) -> Array:
    """Eq. 5: cross-entropy towards 1 where the skill is not executed, 0 where it is; each row counts by its weight."""
    violated = (skill_distance > threshold).astype(logit.dtype)
    return (weight * optax.sigmoid_binary_cross_entropy(logit, violated)).mean()


def over_life(distance: Array, share_of_death: Array) -> Array:
    """Returns the distance of the features lived, from one in which death counts as the skill.

    Its gradient is that of a death which goes on at the distance lived: weighed by the share that is lived, so that
    the last steps before a death do not outweigh all others.
    """
    lived = jax.lax.stop_gradient(distance / jnp.maximum(1.0 - share_of_death, MIN_LIFE))
    return distance + lived * share_of_death


class SkillObjective:
    """What an agent with a `SkillConfig` knows of skills and features."""

    config: SkillConfig
    task: Task

    def normalize(self, skill: Array) -> Array:
        """Returns skills or features in units of the critics."""
        return self.task.skill_space.normalize(skill) if self.config.normalize_features else skill

    @functools.cached_property
    def unit(self) -> Array:
        """The task's units in one unit of the critics."""
        with jax.ensure_compile_time_eval():
            low, high = jnp.array(self.task.skill_space.low), jnp.array(self.task.skill_space.high)
            return (high - low) / (self.normalize(high) - self.normalize(low))

    @property
    def more_outputs(self) -> int:
        """How many numbers the successor features have beside the skill's: the distance of death where it is apart,
        and before it its share of the features' time where the steps lived count."""
        return {"apart": 1, "lived": 2}.get(self.config.death, 0)

    @property
    def skill_outputs(self) -> int:
        """How many numbers the skill critic expects."""
        return self.task.skill_size + self.more_outputs if self.config.skill_critic == "successor" else 1

    @functools.cached_property
    def are_features(self) -> np.ndarray:
        """Which of the skill critic's numbers are averages over the features' time, [skill_outputs]."""
        num_features = self.task.skill_size + int(self.config.death == "lived")
        return np.arange(self.skill_outputs) < (num_features if self.config.skill_critic == "successor" else 0)

    def feature_discount(self, discount: Array | float) -> Array | float:
        """Returns gamma of the features, where that of all else is `discount`."""
        return jnp.minimum(discount, self.config.feature_discount) if self.config.feature_discount else discount

    def skill_discounts(self, discount: Array | float) -> Array:
        """Returns gamma of each of the skill critic's numbers, [skill_outputs]."""
        return jnp.where(self.are_features, self.feature_discount(discount), discount)

    def threshold(self, num_updates: Array) -> Array:
        """Returns delta for the multiplier's labels: the task's, or on its way there."""
        config = self.config
        if not config.initial_threshold:
            return jnp.asarray(self.task.threshold)
        remaining = jnp.clip(1.0 - num_updates / config.threshold_updates, 0.0, 1.0)
        return self.task.threshold * config.initial_threshold**remaining

    def multiplier(self, params: dict[str, Params], inputs: Array) -> Array:
        """Returns lambda for what its network sees, [...]; the objective has no gradient for it."""
        if self.config.multiplier is not None:
            return jnp.full(inputs.shape[:-1], self.config.multiplier)
        return jax.lax.stop_gradient(jax.nn.sigmoid(nets.apply_mlp(params["multiplier"], inputs)[..., 0]))

    def multiplier_and_loss(
        self, params: dict[str, Params], inputs: Array, skill_distance: Array, num_updates: Array,
        weight: Array | float = 1.0,
    ) -> tuple[Array, Array, dict[str, Array]]:
        """Returns lambda, its loss for expected distances [..., num], 0 if it is fixed, and what to log of both."""
        threshold, skill_distance = self.threshold(num_updates), jax.lax.stop_gradient(skill_distance)
        if self.config.multiplier is None:
            logit = nets.apply_mlp(params["multiplier"], inputs)[..., 0]
            multiplier = jax.lax.stop_gradient(jax.nn.sigmoid(logit))
            loss = multiplier_loss(logit, skill_distance, threshold, weight)
        else:
            multiplier, loss = self.multiplier(params, inputs), jnp.zeros(())
        return multiplier, loss, {
            "loss/multiplier": loss,
            "train/expected_distance": skill_distance.mean(),
            "train/satisfied": (skill_distance <= threshold).mean(),
            "train/multiplier": multiplier.mean(),
            "train/threshold": threshold,
        }

    def after_death(self, skill: Array) -> Array:
        """Returns what the skill critic sums at each step after a termination, for skills in the task's units."""
        if self.config.death not in ("apart", "lived"):
            return self.summed(self.death_feature(skill), self.normalize(skill))
        if self.config.death_distance is None:
            gone = jnp.linalg.norm(self.farthest(skill) - self.normalize(skill), axis=-1, keepdims=True)
        else:
            gone = jnp.full((*skill.shape[:-1], 1), self.config.death_distance)
        if self.config.skill_critic == "distance":
            return gone
        share = jnp.ones((*skill.shape[:-1], self.more_outputs - 1))
        return jnp.concatenate([self.normalize(skill), share, gone], axis=-1)

    def death_feature(self, skill: Array) -> Array:
        """Returns the feature that follows a termination for each skill (task's units), in units of the critics."""
        return jnp.zeros_like(skill) if self.config.death == "centre" else self.farthest(skill)

    def farthest(self, skill: Array) -> Array:
        """Returns the skill farthest from each skill (task's units), in units of the critics."""
        space = self.task.skill_space
        farthest = space.opposite(space.normalize(skill))
        if self.config.normalize_features:
            return farthest
        low, high = jnp.array(space.low), jnp.array(space.high)
        origin = space.normalize(low)
        return low + (farthest - origin) * (high - low) / (space.normalize(high) - origin)

    def summed(self, features: Array, skill: Array) -> Array:
        """Returns what the skill critic sums of features [..., skill_size]: themselves, or their distances."""
        if self.config.skill_critic == "distance":
            return optax.safe_norm(features - skill, 1e-6, axis=-1, keepdims=True)  # Has a gradient at 0.
        return jnp.pad(features, [(0, 0)] * (features.ndim - 1) + [(0, self.more_outputs)])

    def distances(self, expected_sum: Array, skill: Array, discounts: Array | float) -> tuple[Array, Array]:
        """Returns the distance that the actor minimises, and the one that the threshold is for, in the task's units.

        What has no unit of its own, a share of death or a sum of distances, is compared by its average and has the
        mean unit of the dimensions. A sum of distances is one over env steps, as that of rewards beside it.
        """
        average = (1.0 - discounts) * expected_sum
        if self.config.skill_critic == "distance":
            return self.config.action_repeat * expected_sum[..., 0], average[..., 0] * self.unit.mean()
        size = skill.shape[-1]
        difference = average[..., :size] - skill
        gone = average[..., size:][..., -1:].sum(axis=-1)
        distances = pseudo_huber(difference, self.config.huber_scale), jnp.linalg.norm(difference * self.unit, axis=-1)
        if self.config.death == "lived":
            distances = tuple(over_life(distance, average[..., size]) for distance in distances)
        return distances[0] + gone, distances[1] + gone * self.unit.mean()
