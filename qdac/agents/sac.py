"""Soft Actor-Critic (Haarnoja et al., 2018): the task's reward and nothing else. It pays no heed to skills."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from qdac import nets
from qdac.agents import soft
from qdac.replay import Batch
from qdac.types import Array, Params


@dataclasses.dataclass(frozen=True)
class Config(soft.SoftConfig):
    """Hyper-parameters of SAC; the defaults are those of SMERL's table in the paper."""


class SAC(soft.SoftActorCritic):
    """The algorithm for one task. What is rewarded, and what the policy is told, is for its children to change."""

    def condition(self, command: Array) -> Array:
        """Returns nothing: the policy sees no command."""
        return command[..., :0]

    def init_networks(self, key: Array) -> dict[str, Params]:
        """Returns the critic, two heads of it."""
        sizes = (self.task.obs_size + self.task.action_size + self.condition_size, *self.config.hidden_sizes, 1)
        return {"critic": nets.init_mlp(key, sizes, members=2, layer_norm=self.config.layer_norm)}

    def rewards(self, params: dict[str, Params], batch: Batch) -> Array:
        """Returns what to maximise the sum of, [num, n]."""
        return batch.rewards

    def losses(
        self, params: dict[str, Params], target: dict[str, Params], num_updates: Array, batch: Batch, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the sum of all losses, each with a gradient for its own network only, and the metrics."""
        fixed = jax.lax.stop_gradient
        scale = self.output_scale(self.discount(num_updates))
        condition = self.condition(batch.skill)
        temperature = jnp.exp(params["log_temperature"])

        def policy(actor: Params, obs: Array, key: Array) -> tuple[Array, Array]:
            outputs = nets.apply_mlp(actor, jnp.concatenate([obs, condition], axis=-1))
            return nets.sample_tanh_gaussian(outputs, key)

        def critic(critic: Params, obs: Array, action: Array) -> Array:
            return nets.apply_mlp(critic, jnp.concatenate([obs, action, condition], axis=-1))[..., 0]

        key_action, key_next_action = jax.random.split(key)
        action, log_prob = policy(params["actor"], batch.obs, key_action)
        next_action, next_log_prob = policy(fixed(params["actor"]), batch.next_obs, key_next_action)
        value_target = soft.critic_target(
            scale * batch.discounted_sum(self.rewards(params, batch)), batch.discount,
            critic(target["critic"], batch.next_obs, next_action), scale * fixed(temperature), next_log_prob,
        )
        loss_critic = soft.bellman_loss(critic(params["critic"], batch.obs, batch.action), fixed(value_target))
        value = critic(fixed(params["critic"]), batch.obs, action).min(axis=0) / scale
        loss_actor = (fixed(temperature) * log_prob - value).mean()
        loss_temperature = soft.temperature_loss(params["log_temperature"], fixed(log_prob), self.target_entropy)
        metrics = {
            "loss/critic": loss_critic,
            "loss/actor": loss_actor,
            "train/temperature": temperature,
            "train/entropy": -log_prob.mean(),
            "train/value": value.mean(),
        }
        return loss_critic + loss_actor + loss_temperature, metrics


LAPTOP = Config(**soft.LAPTOP, replay_parts=32)
"""gamma is the paper's 0.99, of actions that last: 400 steps of the walker, for whom a fall after 200 pays with 100."""
DEBUG = Config(**soft.DEBUG)
