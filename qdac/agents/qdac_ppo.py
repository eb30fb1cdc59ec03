"""QDAC's objective on-policy: the gradient of Proximal Policy Optimisation in place of Soft Actor-Critic's.

For every state s and skill z the actor maximises, as in qdac.py,

    (1 - lambda(s,z)) (1 - gamma) V(s,z)  -  lambda(s,z) || (1 - gamma) psi(s,z) - z ||

but what an action does to V and psi is not asked of a critic of actions. It is seen in the round of steps just
collected: with the advantages A_V of (1 - gamma) V and A_psi of (1 - gamma) psi (Schulman et al., 2016), an action
changes the objective by

    (1 - lambda) A_V  -  lambda u . A_psi,    u the direction of (1 - gamma) psi - z,

and PPO's clipped loss (Schulman et al., 2017) raises the probability of those that change it for the better. u, and
whether the skill counts as executed, may be of an average over a longer time than A_psi looks ahead: within a stride
the shorter one goes up and down around the skill. One network expects value, successor features and death; lambda is
learned as in QDAC. What both make of skills is in skills.py.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from qdac import nets
from qdac.agents.actor import Actor, ActorConfig, State, followed
from qdac.agents.skills import SkillConfig, SkillObjective
from qdac.agents.soft import bellman_loss
from qdac.errors import UserError
from qdac.replay import Replay
from qdac.trunk import check_schedule
from qdac.types import Array, Params, Task, Transition

MAX_LOG_RATIO = 10.0
"""Beyond it a ratio of probabilities says no more than that the policy has moved on."""


@dataclasses.dataclass(frozen=True)
class Config(SkillConfig, ActorConfig):
    """Hyper-parameters of QDAC on PPO."""

    is_on_policy: ClassVar[bool] = True
    hidden_sizes: tuple[int, ...] = (512, 512)
    """Widths of the hidden layers of actor and critic."""
    steps_per_iteration: int = 32
    """Steps of each env in a round, all of which the updates after it learn from."""
    updates_per_iteration: int = 32
    """Gradient updates in a round, each with a mini-batch drawn from it."""
    batch_size: int = 1024
    """Steps in a mini-batch."""
    replay_size: int = 1
    """What is kept is the round just collected, whatever its size: leave it."""
    return_mix: float = 0.95
    """lambda of generalised advantage estimation: 0 for one-step advantages, 1 for sums to the end of the round."""
    clip_ratio: float = 0.2
    """How far the probability of an action may move, as a share of what it was, before that gains no more."""
    max_divergence: float = 0.03
    """The actor stays as it is while it is this far, by the KL divergence in the mini-batch, from the policy that
    collected the round."""
    entropy_bonus: float = 1e-3
    """What the entropy of the policy adds to the objective, whose advantages are scaled to a deviation of 1."""
    final_noise: float = 0.0
    """Where the largest deviation of the policy's actions ends, before their tanh, which starts at 1; 0 to keep it."""
    noise_updates: int = 0
    """Updates over which it moves there, geometrically."""
    average_discount: float | None = 0.0
    """gamma of the average of features that is compared with the skill, where `feature_discount` is how far advantages
    look for what an action does to it; 0 for the same, none for ten times the task's short horizon."""
    step_reward_weight: float = 1.0
    """What the reward of an action, (1 - gamma) V, weighs against the distance; 0 for V itself, a sum."""
    multiplier_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of the multiplier."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.return_mix <= 1:
            raise UserError(f"return_mix should be in [0, 1], got {self.return_mix}")
        for name in ("clip_ratio", "max_divergence"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} should be positive, got {getattr(self, name)}")
        check_schedule(self, "final_noise", "noise_updates")
        if not 0 <= (self.average_discount or 0.0) < 1:
            raise UserError(f"average_discount should be in [0, 1), got {self.average_discount}")
        for name in ("entropy_bonus", "step_reward_weight"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} should not be negative, got {getattr(self, name)}")
        nets.check_widths(self, "multiplier_sizes")

    @property
    def window(self) -> int:
        """Returns 0: rows of mini-batches are single steps, and none of an earlier round is kept."""
        return 0

    def for_task(self, task: Task) -> Self:
        """Returns the configuration with a replay of one round."""
        size = self.num_envs * self.steps_per_iteration
        expected = {"replay_size": (1, size), "replay_parts": (1,), "warmup_steps": (0,), "uniform_warmup": (False,)}
        for name, values in expected.items():
            if getattr(self, name) not in values:
                raise UserError(
                    f"{name} should be {values[0]}, for nothing but the round just collected is kept, got "
                    f"{getattr(self, name)}; leave it out"
                )
        config = dataclasses.replace(super().for_task(task), replay_size=size)
        if config.average_discount is not None:
            return config
        return dataclasses.replace(config, average_discount=1.0 - 0.1 / config.short_horizon(task))


class Rows(NamedTuple):
    """Steps to learn from, [num, ...]."""

    state: Array
    """Observation and skill, as the networks see them."""
    skill: Array
    pre_tanh: Array
    """The action before its tanh."""
    log_prob: Array
    """Of the action, by the policy that collected it."""
    advantage: Array
    """How much better the action was than the policy, in deviations over the round."""
    goal: Array
    """What the critic is to expect: averages of reward, features and death, and of features over a longer time."""


# One function an equation. Every argument is what the equation names, already evaluated.


def advantages(
    lived: Array, value: Array, next_value: Array, is_last: Array, discounts: Array, return_mix: float
) -> Array:
    """Generalised advantages of averages [envs, steps, outputs], each output with a discount of its own.

    `lived` is what a step adds, `next_value` what follows it; `is_last` [envs, steps] where the episode ends.
    """
    errors = (1.0 - discounts) * lived + discounts * next_value - value

    def go_back(later: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        error, is_last = step
        found = error + discounts * return_mix * (1.0 - is_last)[:, None] * later
        return found, found

    steps = jnp.moveaxis(errors, 1, 0), is_last.T
    _, found = jax.lax.scan(go_back, jnp.zeros_like(value[:, 0]), steps, reverse=True)
    return jnp.moveaxis(found, 0, 1)


def actor_loss(log_ratio: Array, advantage: Array, clip_ratio: float) -> Array:
    """PPO's clipped objective, negated, for the logarithm of new over old probabilities of the actions."""
    ratio = jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    clipped = jnp.clip(ratio, 1.0 - clip_ratio, 1.0 + clip_ratio)
    return -jnp.minimum(ratio * advantage, clipped * advantage).mean()


def divergence(log_ratio: Array) -> Array:
    """Estimate of the KL divergence of the new policy from the old, never negative."""
    log_ratio = jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (jnp.exp(log_ratio) - 1.0 - log_ratio).mean()


class QDACPPO(SkillObjective, Actor):
    """The algorithm for one task."""

    def condition(self, command: Array) -> Array:
        """Returns the skill in units of the critic."""
        return self.normalize(command)

    def collector_params(self, state: State) -> Params:
        """Returns the actor as it is, not its average: what it is judged by must be its own steps."""
        return {
            **self.policy_params(state), "actor": state.params["actor"], "noise": self.noise(state.num_updates)
        }

    def explore(
        self, params: Params, memory: tuple[()], obs: Array, command: Array, noise: Array
    ) -> tuple[tuple[()], Array]:
        """Returns actions with the round's share of the noise."""
        return super().explore(params, memory, obs, command, params["noise"] * noise)

    def noise(self, num_updates: Array) -> Array:
        """Returns the largest deviation of actions: one value for all updates of a round."""
        config = self.config
        if not config.final_noise:
            return jnp.ones(())
        num_updates = num_updates // config.updates_per_iteration * config.updates_per_iteration
        return config.final_noise ** jnp.clip(num_updates / config.noise_updates, 0.0, 1.0)

    @property
    def num_averaged(self) -> int:
        """How many averages of features the critic expects twice, the second time over a longer time."""
        return int(self.are_features.sum()) if self.config.average_discount else 0

    def discounts(self, discount: Array | float) -> Array:
        """Returns gamma of each of the critic's numbers: value, skill critic, long averages of the features."""
        longer = jnp.full(self.num_averaged, self.config.average_discount)
        return jnp.concatenate([jnp.atleast_1d(discount), self.skill_discounts(discount), longer])

    def compared(self, average: Array) -> Array:
        """Returns what is compared with the skill, and death [..., skill_outputs], of all the critic expects."""
        skill_part = average[..., 1 : 1 + self.skill_outputs]
        if not self.num_averaged:
            return skill_part
        return jnp.concatenate([average[..., 1 + self.skill_outputs :], skill_part[..., self.num_averaged :]], axis=-1)

    def gaussian(self, outputs: Array) -> tuple[Array, Array]:
        return nets.bounded_gaussian(outputs)

    def init_networks(self, key: Array) -> dict[str, Params]:
        """Returns an actor that begins with small actions, the critic, and the multiplier if it is learned."""
        config, task = self.config, self.task
        key_actor, key_critic, key_multiplier = jax.random.split(key, 3)
        state_size = task.obs_size + self.condition_size
        actor = nets.init_mlp(key_actor, (state_size, *config.hidden_sizes, 2 * task.action_size))
        actor[-1]["kernel"] *= 0.1
        sizes = (state_size, *config.hidden_sizes, 1 + self.skill_outputs + self.num_averaged)
        networks = {"actor": actor, "critic": nets.init_mlp(key_critic, sizes)}
        if config.multiplier is None:
            sizes = (state_size, *config.multiplier_sizes, 1)
            networks["multiplier"] = nets.init_mlp(key_multiplier, sizes, zero_output=True)
        return networks

    def outputs(self, of_value: Array, of_skill: Array) -> Array:
        """Returns numbers for each output of the critic, from those of value [...] and skill critic."""
        return jnp.concatenate([of_value[..., None], of_skill, of_skill[..., : self.num_averaged]], axis=-1)

    def draw(self, state: State, replay: Replay, key: Array) -> Rows:
        """Returns a mini-batch of the round. All but which steps are in it is the same for every key."""
        rows = self.judged(state, replay.storage)
        num = rows.advantage.size
        chosen = jax.random.randint(key, (self.config.batch_size,), 0, num)
        return jax.tree.map(lambda field: field.reshape(num, *field.shape[2:])[chosen], rows)

    def judged(self, state: State, steps: Transition) -> Rows:
        """Returns all steps of a round [envs, steps, ...] with what they did to the objective."""
        config, params = self.config, state.params
        discount = self.discount(state.num_updates)
        skill = self.normalize(steps.skill)
        now, later = (
            jnp.concatenate([self.normalize_obs(state.moments, obs), skill], axis=-1)
            for obs in (steps.obs, steps.next_obs)
        )
        value = nets.apply_mlp(params["critic"], now)
        after_death = self.outputs(jnp.zeros_like(steps.reward), self.after_death(steps.skill))
        next_value = jnp.where(steps.terminated[..., None] > 0, after_death, nets.apply_mlp(params["critic"], later))
        lived = self.outputs(steps.reward, self.summed(self.normalize(steps.feature), skill))
        discounts = self.discounts(discount)
        found = advantages(
            lived, value, next_value, steps.terminated + steps.truncated, discounts, config.return_mix
        )
        long_discounts = self.compared(discounts)

        def total_distance(average: Array) -> Array:
            return self.distances(average / (1.0 - long_discounts), skill, long_discounts)[0].sum()

        direction = jax.grad(total_distance)(self.compared(value))
        change = (direction * found[..., 1 : 1 + self.skill_outputs]).sum(axis=-1)
        multiplier = self.multiplier(params, now)
        # Against a sum of distances, the value is a sum too.
        is_of_step = config.step_reward_weight and config.skill_critic == "successor"
        weight = config.step_reward_weight if is_of_step else 1.0 / (1.0 - discount)
        advantage = (1.0 - multiplier) * weight * found[..., 0] - multiplier * change
        pre_tanh = jnp.arctanh(jnp.clip(steps.action, -1.0 + 1e-6, 1.0 - 1e-6))
        mean, std = self.gaussian(nets.apply_mlp(params["actor"], now))
        std = self.noise(state.num_updates) * std
        return Rows(
            state=now,
            skill=steps.skill,
            pre_tanh=pre_tanh,
            log_prob=nets.tanh_gaussian_log_prob(mean, std, pre_tanh),
            advantage=(advantage - advantage.mean()) / (advantage.std() + 1e-6),
            goal=value + found,
        )

    def update(self, state: State, rows: Rows, key: Array) -> tuple[State, dict[str, Array]]:
        """Returns the state after one gradient step of every network, and metrics."""
        gradients, metrics = jax.grad(self.losses, has_aux=True)(state.params, state.num_updates, rows, key)
        updates, optimizer = self.optimizer(state.params).update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        # An actor that has moved on waits for the next round, and so does its Adam, which learns nothing meanwhile.
        is_near = metrics["train/divergence"] < self.config.max_divergence
        before = state.params["actor"], state.optimizer.inner_states["actor"]
        after = params["actor"], optimizer.inner_states["actor"]
        params["actor"], adam = jax.tree.map(functools.partial(jnp.where, is_near), after, before)
        optimizer = optimizer._replace(inner_states=optimizer.inner_states | {"actor": adam})
        return State(
            params, followed(state.target, params, self.target_rates), optimizer, state.moments, state.num_updates + 1
        ), metrics

    def losses(
        self, params: dict[str, Params], num_updates: Array, rows: Rows, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the sum of all losses, each with a gradient for its own network only, and the metrics."""
        config, fixed = self.config, jax.lax.stop_gradient
        value = nets.apply_mlp(params["critic"], rows.state)
        loss_critic = bellman_loss(value[:, :1], rows.goal[:, :1], in_variances=True)
        loss_successor = bellman_loss(value[:, 1:], rows.goal[:, 1:], in_variances=True)

        mean, std = self.gaussian(nets.apply_mlp(params["actor"], rows.state))
        std = self.noise(num_updates) * std
        log_ratio = nets.tanh_gaussian_log_prob(mean, std, rows.pre_tanh) - rows.log_prob
        loss_actor = actor_loss(log_ratio, rows.advantage, config.clip_ratio)
        drawn = mean + std * jax.random.normal(key, mean.shape)
        entropy = -nets.tanh_gaussian_log_prob(mean, std, drawn).mean()

        discounts = self.compared(self.discounts(self.discount(num_updates)))
        _, skill_distance = self.distances(
            self.compared(fixed(value)) / (1.0 - discounts), self.normalize(rows.skill), discounts
        )
        _, loss_multiplier, of_multiplier = self.multiplier_and_loss(params, rows.state, skill_distance, num_updates)
        metrics = {
            "loss/critic": loss_critic,
            "loss/successor": loss_successor,
            "loss/actor": loss_actor,
            "train/entropy": entropy,
            "train/divergence": divergence(log_ratio),
            "train/clipped": (jnp.abs(jnp.expm1(log_ratio)) > config.clip_ratio).mean(),
            "train/value": value[:, 0].mean() / (1.0 - self.discount(num_updates)),
            **of_multiplier,
        }
        total = loss_critic + loss_successor + loss_actor + loss_multiplier - config.entropy_bonus * entropy
        return total, metrics


LAPTOP = Config(
    hidden_sizes=(256, 256), normalize_observations=True, learning_rate=1e-3, final_learning_rate=1e-4,
    learning_rate_updates=100_000, max_gradient_norm=1.0, death="apart", discount=None, feature_discount=None,
    huber_scale=0.02, steps_per_iteration=128, updates_per_iteration=64, entropy_bonus=1e-3,
    max_divergence=0.1, skill_steps=250,
)  # fmt: skip
"""An hour on 2 cores; docs/recipe.md."""

DEBUG = Config(hidden_sizes=(32, 32), batch_size=32, num_envs=16, steps_per_iteration=8, updates_per_iteration=2)
