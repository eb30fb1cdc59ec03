"""Quality-Diversity Actor-Critic, model-free, on Soft Actor-Critic.

For every state s and skill z the actor maximises

    (1 - lambda(s,z)) Q(s,a,z)  -  lambda(s,z) || (1 - gamma) psi(s,a,z) - z ||  -  alpha log pi(a|s,z)

where psi are the successor features, (1 - gamma) psi the feature the policy is expected to show, lambda
the multiplier that says how far the skill is from being executed, and alpha SAC's temperature. The
losses below carry the equation they implement; every choice that the paper leaves open is a field of
`Config`, with its reason in docs/deviations.md.

The paper's ablations are two of those fields. `skill_critic="distance"` replaces the distance of the
expected feature by the expected distance of features, sum gamma^t || phi_t - z ||, and `multiplier` fixes
lambda: No-SF has the first, Fixed-lambda the second, UVFA both.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from qdac import nets
from qdac.agents import soft
from qdac.agents.soft import bellman_loss, critic_target, temperature_loss
from qdac.errors import UserError
from qdac.replay import Batch
from qdac.types import Array, Params, Task


@dataclasses.dataclass(frozen=True)
class Config(soft.SoftConfig):
    """Hyper-parameters of QDAC; the defaults are the paper's."""

    hidden_sizes: tuple[int, ...] = (512, 512)
    replay_size: int = 2_000_000
    warmup_steps: int = 512_000
    skill_critic: Literal["successor", "distance"] = "successor"
    """What the second critic expects: the features to come (the successor features psi), or the sum of
    their distances to the skill."""
    multiplier: float | None = None
    """lambda, if it is to stay the same; none to learn it as a function of state and skill."""
    relabel: bool = True
    """Repeat every mini-batch with fresh uniform skills, as the paper does."""
    normalize_features: bool = True
    """Work in units where the skill space is [-1, 1] (the threshold stays in the task's units)."""
    shared_critics: bool = False
    """Each head of Q and the skill critic share their hidden layers: one network with all outputs."""
    huber_scale: float = 1e-3
    """Below this the distance in the actor's objective is smooth (pseudo-Huber); above, the L2 norm."""
    death: Literal["centre", "opposite"] = "centre"
    """The feature that follows a termination, for ever: zeros (the centre of a normalised skill space), or
    the skill farthest from the one asked for."""
    initial_threshold: float = 0.0
    """Where the threshold starts, in multiples of the task's; 0 to keep the task's throughout."""
    threshold_updates: int = 0
    """Updates over which the threshold moves from its start to the task's, geometrically."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.huber_scale > 0:
            raise UserError(f"huber_scale should be positive, got {self.huber_scale}")
        if self.multiplier is not None and not 0 <= self.multiplier <= 1:
            raise UserError(f"multiplier should be in [0, 1], or none to learn it, got {self.multiplier}")
        soft.check_schedule(self, "initial_threshold", "threshold_updates")


# Losses: one function an equation. Every argument is what the equation names, already evaluated.


def pseudo_huber(difference: Array, scale: float) -> Array:
    """Returns the L2 norm over the last axis, smooth below `scale`: the distance the actor minimises."""
    return scale * (jnp.sqrt(1.0 + jnp.square(difference / scale).sum(axis=-1)) - 1.0)


def multiplier_loss(logit: Array, skill_distance: Array, threshold: Array) -> Array:
    """Eq. 5: cross-entropy towards 1 where the skill is not executed, 0 where it is."""
    violated = (skill_distance > threshold).astype(logit.dtype)
    return optax.sigmoid_binary_cross_entropy(logit, violated).mean()


def successor_target(
    feature: Array, discount: Array, next_successor: Array, terminated: Array, death: Array
) -> Array:
    """Eq. 2: Bellman target of psi with the mean of the two target heads [2, batch, size].

    `death` stands in for the successor features of whatever follows a termination.
    """
    return feature + discount[:, None] * next_successor.mean(axis=0) + terminated[:, None] * death


def actor_loss(
    value: Array, distance: Array, multiplier: Array, temperature: Array, log_prob: Array
) -> Array:
    """Negated actor objective: Eq. 4 with SAC's entropy term."""
    objective = (1.0 - multiplier) * value - multiplier * distance - temperature * log_prob
    return -objective.mean()


class QDAC(soft.SoftActorCritic):
    """The algorithm for one task."""

    def __init__(self, config: Config, task: Task):
        space = task.skill_space
        self.normalize = space.normalize if config.normalize_features else (lambda skill: skill)
        low, high = jnp.array(space.low), jnp.array(space.high)
        self.unit = (high - low) / (self.normalize(high) - self.normalize(low))
        """The task's units in one unit of the critics."""
        self.critic_names = ("critic",) if config.shared_critics else ("critic", "successor")
        """`successor` is the skill critic, whichever of the two it is."""
        super().__init__(config, task)

    def condition(self, command: Array) -> Array:
        """Returns the skill in units of the critics."""
        return self.normalize(command)

    def init_networks(self, key: Array) -> dict[str, Params]:
        """Returns the critics, two heads each, and the multiplier if it is learned."""
        config, task = self.config, self.task
        key_multiplier, *keys_critics = jax.random.split(key, 3)
        state_size = task.obs_size + self.condition_size
        skill_outputs = task.skill_size if config.skill_critic == "successor" else 1
        outputs = (1 + skill_outputs,) if config.shared_critics else (1, skill_outputs)
        networks = {}
        for name, key_critic, output_size in zip(self.critic_names, keys_critics[: len(outputs)], outputs, strict=True):
            sizes = (state_size + task.action_size, *config.hidden_sizes, output_size)
            networks[name] = nets.init_mlp(key_critic, sizes, members=2, layer_norm=config.layer_norm)
        if config.multiplier is None:
            networks["multiplier"] = nets.init_mlp(key_multiplier, (state_size, *config.hidden_sizes, 1))
        return networks

    def rows(self, n_step: Batch, one_step: Batch, key: Array) -> Batch:
        """Returns the mini-batch followed by its repetition with fresh uniform skills.

        The copy has one-step targets: its later actions were not meant for the new skill.
        """
        if not self.config.relabel:
            return n_step
        fresh = one_step._replace(skill=self.task.skill_space.sample(key, len(one_step.obs)))
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), n_step, fresh)

    def threshold(self, num_updates: Array) -> Array:
        """Returns delta for the multiplier's labels: the task's, or on its way there."""
        config = self.config
        if not config.initial_threshold:
            return jnp.asarray(self.task.threshold)
        remaining = jnp.clip(1.0 - num_updates / config.threshold_updates, 0.0, 1.0)
        return self.task.threshold * config.initial_threshold**remaining

    def death(self, skill: Array) -> Array:
        """Returns the feature that follows a termination for each skill (task's units), in units of the critics."""
        if self.config.death == "centre":
            return jnp.zeros_like(skill)
        space = self.task.skill_space
        farthest = space.opposite(space.normalize(skill))
        if self.config.normalize_features:
            return farthest
        low, high = jnp.array(space.low), jnp.array(space.high)
        origin = space.normalize(low)
        return low + (farthest - origin) * (high - low) / (space.normalize(high) - origin)

    def critics(self, params: dict[str, Params], obs: Array, action: Array, skill: Array) -> tuple[Array, Array]:
        """Returns Q [2, batch] and the skill critic's [2, batch, size] of both heads, in units of the outputs."""
        inputs = jnp.concatenate([obs, action, skill], axis=-1)
        outputs = [nets.apply_mlp(params[name], inputs) for name in self.critic_names]
        both = jnp.concatenate(outputs, axis=-1)
        return both[..., 0], both[..., 1:]

    def summed(self, features: Array, skill: Array) -> Array:
        """Returns what the skill critic sums of features [..., skill_size]: themselves, or their distances."""
        if self.config.skill_critic == "successor":
            return features
        return jnp.linalg.norm(features - skill, axis=-1, keepdims=True)

    def distances(self, expected_sum: Array, skill: Array, discount: Array | float) -> tuple[Array, Array]:
        """Returns the distance that the actor minimises, and the one that the threshold is for, in the task's units.

        The sum of distances is compared by its average, and has one unit: the mean of those of the dimensions.
        """
        if self.config.skill_critic == "successor":
            difference = (1.0 - discount) * expected_sum - skill
            return pseudo_huber(difference, self.config.huber_scale), jnp.linalg.norm(difference * self.unit, axis=-1)
        total = expected_sum[..., 0]
        return total, (1.0 - discount) * total * self.unit.mean()

    def losses(
        self, params: dict[str, Params], target: dict[str, Params], num_updates: Array, batch: Batch, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the sum of all losses, each with a gradient for its own network only, and the metrics."""
        config, fixed = self.config, jax.lax.stop_gradient
        discount, threshold = self.discount(num_updates), self.threshold(num_updates)
        scale = self.output_scale(discount)
        skill = self.normalize(batch.skill)
        state = jnp.concatenate([batch.obs, skill], axis=-1)
        next_state = jnp.concatenate([batch.next_obs, skill], axis=-1)
        temperature = jnp.exp(params["log_temperature"])

        key_action, key_next_action = jax.random.split(key)
        action, log_prob = nets.sample_tanh_gaussian(nets.apply_mlp(params["actor"], state), key_action)
        next_action, next_log_prob = nets.sample_tanh_gaussian(
            nets.apply_mlp(fixed(params["actor"]), next_state), key_next_action
        )

        # Policy evaluation: both critics against their Bellman targets.
        next_value, next_successor = self.critics(target, batch.next_obs, next_action, skill)
        value, successor = self.critics(params, batch.obs, batch.action, skill)
        value_target = critic_target(
            scale * batch.discounted_sum(batch.rewards), batch.discount, next_value, scale * fixed(temperature),
            next_log_prob,
        )
        lived = self.summed(self.normalize(batch.features), skill[:, None])
        after_death = self.summed(self.death(batch.skill), skill) / (1.0 - discount)
        successor_goal = successor_target(
            scale * batch.discounted_sum(lived), batch.discount, next_successor, batch.terminated, scale * after_death
        )
        loss_critic = bellman_loss(value, fixed(value_target))
        loss_successor = bellman_loss(successor, fixed(successor_goal))

        # Policy improvement: the mean of both heads judges the policy's own actions.
        judges = fixed({name: params[name] for name in self.critic_names})
        value, successor = self.critics(judges, batch.obs, action, skill)
        value = value.mean(axis=0) / scale
        distance, skill_distance = self.distances(successor.mean(axis=0) / scale, skill, discount)
        if config.multiplier is None:
            logit = nets.apply_mlp(params["multiplier"], state)[..., 0]
            multiplier = fixed(jax.nn.sigmoid(logit))
            loss_multiplier = multiplier_loss(logit, fixed(skill_distance), threshold)
        else:
            multiplier, loss_multiplier = jnp.full_like(value, config.multiplier), jnp.zeros(())
        loss_actor = actor_loss(value, distance, multiplier, fixed(temperature), log_prob)
        loss_temperature = temperature_loss(params["log_temperature"], fixed(log_prob), self.target_entropy)
        metrics = {
            "loss/critic": loss_critic,
            "loss/successor": loss_successor,
            "loss/actor": loss_actor,
            "loss/multiplier": loss_multiplier,
            "train/temperature": temperature,
            "train/entropy": -log_prob.mean(),
            "train/value": value.mean(),
            "train/expected_distance": skill_distance.mean(),
            "train/satisfied": (skill_distance <= threshold).mean(),
            "train/multiplier": multiplier.mean(),
            "train/threshold": threshold,
        }
        total = loss_critic + loss_successor + loss_actor + loss_multiplier + loss_temperature
        return total, metrics


LAPTOP = Config(
    **soft.LAPTOP,
    shared_critics=True,
    death="opposite",
    initial_discount=0.95,
    discount_updates=300_000,
)
"""An hour on 2 cores; what each departure from the paper gave is in docs/recipe.md."""

DEBUG = Config(**soft.DEBUG)
