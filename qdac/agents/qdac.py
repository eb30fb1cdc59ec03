"""Quality-Diversity Actor-Critic, model-free, on Soft Actor-Critic.

For every state s and skill z the actor maximises

    (1 - lambda(s,z)) Q(s,a,z)  -  lambda(s,z) || (1 - gamma) psi(s,a,z) - z ||  -  alpha log pi(a|s,z)

where psi are the successor features, (1 - gamma) psi the feature the policy is expected to show, lambda
the multiplier that says how far the skill is from being executed, and alpha SAC's temperature. Where
`death` is apart, the share of the future that follows a termination adds to the distance, and psi may have a
smaller gamma than Q, `feature_discount` (skills.py). The losses below carry the equation they implement;
every choice that the paper leaves open is a field of `Config`, with its reason in docs/deviations.md. What is
not about SAC is in skills.py, the ablations too.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from qdac import nets
from qdac.agents import soft
from qdac.agents.skills import SkillConfig, SkillObjective
from qdac.agents.soft import bellman_loss, critic_target, temperature_loss
from qdac.errors import UserError
from qdac.replay import Batch
from qdac.types import Array, Params, Task


@dataclasses.dataclass(frozen=True)
class Config(SkillConfig, soft.SoftConfig):
    """Hyper-parameters of QDAC; the defaults are the paper's."""

    hidden_sizes: tuple[int, ...] = (512, 512)
    replay_size: int = 2_000_000
    warmup_steps: int = 512_000
    relabel: bool = True
    """Repeat every mini-batch with fresh uniform skills, as the paper does."""
    shared_critics: bool = False
    """Each head of Q and the skill critic share their hidden layers: one network with all outputs."""
    balance_critics: bool = False
    """Divide the loss of Q and that of the skill critic by the variance of their targets in the mini-batch, so that
    in shared layers neither drowns the other."""
    step_reward_weight: float = 0.0
    """Weigh this many times (1 - gamma) Q, the reward of an action, against the distance of the feature expected of
    one; 0 for Q, a sum. Against a sum of distances Q stays one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.step_reward_weight >= 0:
            raise UserError(f"step_reward_weight should not be negative, got {self.step_reward_weight}")


# Losses: one function an equation. Every argument is what the equation names, already evaluated.


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


class QDAC(SkillObjective, soft.SoftActorCritic):
    """The algorithm for one task."""

    def __init__(self, config: Config, task: Task):
        self.critic_names = ("critic",) if config.shared_critics else ("critic", "successor")
        """`successor` is the skill critic, whichever of the two it is."""
        super().__init__(config, task)

    @property
    def num_rows(self) -> int:
        """Returns the rows of one update, repetition included."""
        return self.config.batch_size * (2 if self.config.relabel else 1)

    def condition(self, command: Array) -> Array:
        """Returns the skill in units of the critics."""
        return self.normalize(command)

    def init_networks(self, key: Array) -> dict[str, Params]:
        """Returns the critics, two heads each, and the multiplier if it is learned."""
        config, task = self.config, self.task
        key_multiplier, *keys_critics = jax.random.split(key, 3)
        state_size = task.obs_size + self.condition_size
        outputs = (1 + self.skill_outputs,) if config.shared_critics else (1, self.skill_outputs)
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

    def critics(self, params: dict[str, Params], obs: Array, action: Array, skill: Array) -> tuple[Array, Array]:
        """Returns Q [2, batch] and the skill critic's [2, batch, size] of both heads, in units of the outputs."""
        inputs = jnp.concatenate([obs, action, skill], axis=-1)
        outputs = [nets.apply_mlp(params[name], inputs) for name in self.critic_names]
        both = jnp.concatenate(outputs, axis=-1)
        return both[..., 0], both[..., 1:]

    def losses(
        self, params: dict[str, Params], target: dict[str, Params], num_updates: Array, batch: Batch, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the sum of all losses, each with a gradient for its own network only, and the metrics."""
        config, fixed = self.config, jax.lax.stop_gradient
        discount = self.discount(num_updates)
        discounts = self.skill_discounts(discount)
        scale, scales = self.output_scale(discount), self.output_scale(discounts)
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
        after_death = self.after_death(batch.skill) / (1.0 - discounts)
        of_features, of_all_else = (
            successor_target(
                scales * rows.discounted_sum(lived), rows.discount, next_successor, rows.terminated,
                scales * after_death,
            )
            for rows in (batch.discounted(self.feature_discount(discount)), batch)
        )  # fmt: skip
        successor_goal = jnp.where(self.are_features, of_features, of_all_else)
        loss_critic = bellman_loss(value, fixed(value_target), config.balance_critics)
        loss_successor = bellman_loss(successor, fixed(successor_goal), config.balance_critics)

        # Policy improvement: the mean of both heads judges the policy's own actions.
        judges = fixed({name: params[name] for name in self.critic_names})
        value, successor = self.critics(judges, batch.obs, action, skill)
        value = value.mean(axis=0) / scale
        distance, skill_distance = self.distances(successor.mean(axis=0) / scales, skill, discounts)
        multiplier, loss_multiplier, of_multiplier = self.multiplier_and_loss(
            params, state, skill_distance, num_updates
        )
        is_of_step = config.step_reward_weight and config.skill_critic == "successor"
        weighed = config.step_reward_weight * (1.0 - discount) * value if is_of_step else value
        loss_actor = actor_loss(weighed, distance, multiplier, fixed(temperature), log_prob)
        loss_temperature = temperature_loss(params["log_temperature"], fixed(log_prob), self.target_entropy)
        metrics = {
            "loss/critic": loss_critic,
            "loss/successor": loss_successor,
            "loss/actor": loss_actor,
            "train/temperature": temperature,
            "train/entropy": -log_prob.mean(),
            "train/value": value.mean(),
            **of_multiplier,
        }
        total = loss_critic + loss_successor + loss_actor + loss_multiplier + loss_temperature
        return total, metrics


LAPTOP = Config(
    **soft.LAPTOP,
    replay_parts=32,
    shared_critics=True,
    balance_critics=True,
    step_reward_weight=1.0,
    relabel=False,
    death="apart",
    discount=None,
    initial_discount=None,
    discount_updates=20_000,
    feature_discount=None,
)
"""An hour on 2 cores; what each departure from the paper gave is in docs/recipe.md."""

DEBUG = Config(**soft.DEBUG)
