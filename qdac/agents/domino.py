"""DOMiNO (Zahavy et al., 2022): a set of policies that are near-optimal and as different as that allows.

Policy i maximises (1 - lambda_i) sum gamma^t r_t + lambda_i sum gamma^t r~_t, with a critic for each sum. Its
diversity reward pushes its average features psi_i away from the nearest other ones, psi_j, as long as they are
nearer than l_0, and pulls beyond:

    r~_t = (1 - (l_i / l_0)^3) phi_t . (psi_i - psi_j),    l_i = || psi_i - psi_j ||

lambda_i grows while the policy's average reward v_i is above alpha times that of the first policy, which knows no
diversity, and falls below. All policies learn in parallel, each from the episodes of its own envs.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax

from qdac import nets
from qdac.agents import soft
from qdac.errors import UserError
from qdac.replay import Batch
from qdac.types import Array, Commands, Params, Task

LOGIT_BOUND = 15.0
"""Of the multipliers: beyond it a multiplier would take thousands of updates to come back."""


@dataclasses.dataclass(frozen=True)
class Config(soft.SoftConfig):
    """Hyper-parameters of DOMiNO; the defaults are the paper's, all sizes summed over the policies."""

    learning_rate: float = 1e-4
    temperature_learning_rate: float = 1e-4
    batch_size: int = 600
    num_envs: int = 60
    updates_per_iteration: int = 1
    replay_size: int = 1_500_000
    num_policies: int = 10
    """Policies in the set, the first one without diversity."""
    optimality: float = 0.9
    """alpha: the share of the first policy's average reward that the others are to keep."""
    multiplier_learning_rate: float = 1e-3
    """Adam's step size for the logits of the multipliers."""
    value_decay: float = 0.9
    """Of the running average reward of each policy."""
    feature_decay: float = 0.99
    """Of the running average features of each policy."""
    spacing: float = 1.0
    """l_0, in multiples of the distance between neighbours that fill the skill space evenly; 0 for repulsion
    at any distance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_policies < 2:
            raise UserError(f"num_policies should be at least 2, got {self.num_policies}")
        for name in ("num_envs", "batch_size"):
            if getattr(self, name) % self.num_policies:
                raise UserError(
                    f"{name} should be a multiple of the {self.num_policies} policies, got {getattr(self, name)}"
                )
        for name in ("optimality", "value_decay", "feature_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} should be in [0, 1], got {getattr(self, name)}")
        if not self.multiplier_learning_rate > 0 or not self.spacing >= 0:
            raise UserError(
                "multiplier_learning_rate should be positive and spacing not negative, "
                f"got {self.multiplier_learning_rate} and {self.spacing}"
            )


def nearest_gaps(average_features: Array) -> Array:
    """Returns psi_i - psi_j of each policy [num, size], j the one that is nearest to i."""
    gaps = average_features[:, None] - average_features[None]
    distances = jnp.linalg.norm(gaps, axis=-1) + jnp.diag(jnp.full(len(gaps), jnp.inf))
    return gaps[jnp.arange(len(gaps)), distances.argmin(axis=1)]


def diversity_direction(gaps: Array, spacing: float) -> Array:
    """Returns (1 - (l_i / l_0)^3) (psi_i - psi_j) for gaps psi_i - psi_j [num, size]; pure repulsion if l_0 is 0."""
    if not spacing:
        return gaps
    return (1.0 - (jnp.linalg.norm(gaps, axis=-1, keepdims=True) / spacing) ** 3) * gaps


def multiplier_loss(logits: Array, values: Array, optimality: float) -> Array:
    """The multipliers of the other policies grow where the average reward is above alpha v_1, and fall below it.

    Where v_1 is negative the bound is as far below it: alpha v_1 would be above.
    """
    bound = values[0] - (1.0 - optimality) * jnp.abs(values[0])
    return -(jax.nn.sigmoid(logits) * (values - bound))[1:].sum()


class DOMiNO(soft.SoftActorCritic):
    """The algorithm for one task. A command is the number of a policy; for a skill it is the one nearest to it."""

    def __init__(self, config: Config, task: Task):
        self.spacing = config.spacing * 2.0 / config.num_policies ** (1.0 / task.skill_size)
        """l_0 in normalised units: policies that fill the space evenly are this far apart, times `config.spacing`."""
        self.envs_per_policy = config.num_envs // config.num_policies
        numbers = Commands(1, lambda key, env, num: jnp.full((num, 1), env // self.envs_per_policy, jnp.float32))
        super().__init__(config, task, numbers)

    def condition(self, command: Array) -> Array:
        """Returns nothing: a policy need not be told which one it is."""
        return command[..., :0]

    def init_networks(self, key: Array) -> dict[str, Params]:
        """Returns the networks with a leading axis of the policies; four critics: two of the task, two of diversity."""
        config, num = self.config, self.config.num_policies
        key_actor, key_critic = jax.random.split(key)
        state_size, action_size = self.task.obs_size, self.task.action_size

        def init_critics(key: Array) -> Params:
            sizes = (state_size + action_size, *config.hidden_sizes, 1)
            return nets.init_mlp(key, sizes, members=4, layer_norm=config.layer_norm)

        return {
            "actor": nets.init_mlp(key_actor, (state_size, *config.hidden_sizes, 2 * action_size), members=num),
            "critic": jax.vmap(init_critics)(jax.random.split(key_critic, num)),
            "log_temperature": jnp.full(num, math.log(config.initial_temperature), jnp.float32),
            "multiplier": jnp.zeros(num),
        }

    def init(self, key: Array) -> soft.State:
        """Returns fresh networks, and averages that start at zero."""
        state = super().init(key)
        num = self.config.num_policies
        averages = {"values": jnp.zeros(num), "features": jnp.zeros((num, self.task.skill_size))}
        return state._replace(target=state.target | averages)

    def learning_rate(self, name: str) -> optax.ScalarOrSchedule:
        return self.config.multiplier_learning_rate if name == "multiplier" else super().learning_rate(name)

    def policy_params(self, state: soft.State) -> Params:
        """Returns what acting needs: the actors, and the average features to choose one by."""
        return {**super().policy_params(state), "features": state.target["features"]}

    def command(self, params: Params, skill: Array) -> Array:
        """Returns the number of the policy whose average features are nearest to each skill."""
        gaps = self.task.skill_space.normalize(skill)[:, None] - params["features"]
        return jnp.linalg.norm(gaps, axis=-1).argmin(axis=1)[:, None].astype(jnp.float32)

    def action_distribution(self, params: Params, obs: Array, command: Array) -> tuple[Array, Array]:
        """Returns mean and deviation of the policy that each command names: all are asked, one is heard."""
        outputs = nets.apply_mlp(params["actor"], self.normalize_obs(params["moments"], obs))
        chosen = command[:, 0].astype(jnp.int32)
        return nets.tanh_gaussian(outputs[chosen, jnp.arange(len(obs))])

    def explore(
        self, params: Params, memory: tuple[()], obs: Array, command: Array, noise: Array
    ) -> tuple[tuple[()], Array]:
        """Returns stochastic actions for collection: envs in a row have one policy, which alone is asked."""
        size = math.gcd(len(obs), self.envs_per_policy)
        chosen = command[::size, 0].astype(jnp.int32)
        obs = self.normalize_obs(params["moments"], obs).reshape(-1, size, obs.shape[-1])
        actors = jax.tree.map(lambda leaf: leaf[chosen], params["actor"])
        outputs = jax.vmap(nets.apply_mlp)(actors, obs)
        mean, std = nets.tanh_gaussian(outputs.reshape(len(noise), -1))
        return memory, jnp.tanh(mean + std * noise)

    def by_policy(self, batch: Batch) -> Batch:
        """Returns the rows of each policy, [num_policies, rows, ...]: rows are drawn in the order of the envs."""
        return jax.tree.map(lambda x: x.reshape(self.config.num_policies, -1, *x.shape[1:]), batch)

    def losses(
        self, params: dict[str, Params], target: dict[str, Params], num_updates: Array, batch: Batch, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the sum of all losses of all policies, each for its own network only, and the metrics."""
        fixed, num = jax.lax.stop_gradient, self.config.num_policies
        scale = self.output_scale(self.discount(num_updates))
        gaps = nearest_gaps(target["features"])
        direction = diversity_direction(gaps, self.spacing).at[0].set(0.0)
        weight = 1.0 - jax.nn.sigmoid(params["multiplier"]).at[0].set(0.0)

        def policy(actor: Params, obs: Array, key: Array) -> tuple[Array, Array]:
            return nets.sample_tanh_gaussian(nets.apply_mlp(actor, obs), key)

        def critics(critics: Params, obs: Array, action: Array) -> Array:
            """Returns [task or diversity, head, rows]."""
            values = nets.apply_mlp(critics, jnp.concatenate([obs, action], axis=-1))[..., 0]
            return values.reshape(2, 2, -1)

        def one_policy(
            params: dict[str, Params], target: Params, batch: Batch, direction: Array, weight: Array, key: Array
        ) -> tuple[Array, dict[str, Array]]:
            key_action, key_next_action = jax.random.split(key)
            temperature = fixed(jnp.exp(params["log_temperature"]))
            action, log_prob = policy(params["actor"], batch.obs, key_action)
            next_action, next_log_prob = policy(fixed(params["actor"]), batch.next_obs, key_next_action)
            # Summed over the env steps of an action, as its rewards are.
            diversity = self.config.action_repeat * (self.task.skill_space.normalize(batch.features) @ direction)
            sums = jnp.stack([batch.discounted_sum(batch.rewards), batch.discounted_sum(diversity)])
            goals = jax.vmap(soft.critic_target, in_axes=(0, None, 0, None, None))(
                scale * sums, batch.discount, critics(target, batch.next_obs, next_action), scale * temperature,
                next_log_prob,
            )
            loss_critic = soft.bellman_loss(critics(params["critic"], batch.obs, batch.action), fixed(goals)[:, None])
            values = critics(fixed(params["critic"]), batch.obs, action).min(axis=1) / scale
            objective = weight * values[0] + (1.0 - weight) * values[1]
            loss_actor = (temperature * log_prob - objective).mean()
            loss_temperature = soft.temperature_loss(params["log_temperature"], fixed(log_prob), self.target_entropy)
            metrics = {
                "loss/critic": loss_critic,
                "loss/actor": loss_actor,
                "train/temperature": temperature,
                "train/entropy": -log_prob.mean(),
                "train/value": values[0].mean(),
            }
            return loss_critic + loss_actor + loss_temperature, metrics

        losses, metrics = jax.vmap(one_policy)(
            params, target["critic"], self.by_policy(batch), direction, fixed(weight), jax.random.split(key, num)
        )
        metrics = jax.tree.map(jnp.mean, metrics)
        metrics |= {
            "train/multiplier": 1.0 - weight[1:].mean(),
            "train/average_reward": target["values"].mean(),
            "train/gap": jnp.linalg.norm(gaps, axis=-1).mean(),
        }
        return losses.sum() + multiplier_loss(params["multiplier"], target["values"], self.config.optimality), metrics

    def update(
        self, state: soft.State, batches: tuple[Batch, Batch], key: Array
    ) -> tuple[soft.State, dict[str, Array]]:
        """Returns the state after one step of all policies; rewards and features of the batch join the averages."""
        config = self.config
        state, metrics = super().update(state, batches, key)
        rows = self.by_policy(batches[0])
        reward = rows.rewards[:, :, 0].mean(axis=1)
        feature = self.task.skill_space.normalize(rows.features[:, :, 0]).mean(axis=1)
        values, features = state.target["values"], state.target["features"]
        averages = {
            "values": config.value_decay * values + (1.0 - config.value_decay) * reward,
            "features": config.feature_decay * features + (1.0 - config.feature_decay) * feature,
        }
        logits = jnp.clip(state.params["multiplier"], -LOGIT_BOUND, LOGIT_BOUND)
        return state._replace(params=state.params | {"multiplier": logits}, target=state.target | averages), metrics


LAPTOP = Config(
    **soft.LAPTOP
    | {"num_envs": 240, "batch_size": 320, "steps_per_iteration": 32, "replay_size": 500_000}
)
"""More steps, since each policy has a tenth of them, and a replay that its averages are of the recent past in."""
DEBUG = Config(**soft.DEBUG | {"num_envs": 20, "batch_size": 40})
