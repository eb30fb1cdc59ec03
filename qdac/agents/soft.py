"""What the soft actor-critics have in common: configuration, targets, and one gradient step of all networks.

A soft actor-critic here is a class with its own networks and `losses`; all else is in `SoftActorCritic`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import optax

from qdac.agents.actor import Actor, ActorConfig, State, followed
from qdac.errors import UserError
from qdac.replay import Batch, Replay, sample
from qdac.types import Array, Commands, Params, Task


@dataclasses.dataclass(frozen=True)
class SoftConfig(ActorConfig):
    """Hyper-parameters of every soft actor-critic."""

    layer_norm: bool = False
    """Normalise the hidden layers of the critics."""
    temperature_learning_rate: float = 3e-4
    """Adam's step size for the logarithm of the temperature."""
    initial_temperature: float = 1.0
    """Where SAC's temperature starts."""
    target_entropy_per_action: float = -0.5
    """Target entropy of the policy for each action dimension."""
    target_rate: float = 0.005
    """tau: how far the target critics move towards the critics at each update."""
    n_step: int | None = 1
    """Steps summed in the targets of transitions that keep the command they were collected with; none for four fifths
    of the task's short horizon."""
    average_heads: bool = False
    """Critics output (1 - discount) times the sums they stand for: numbers of order 1, not 100."""

    def __post_init__(self) -> None:
        for name in ("temperature_learning_rate", "initial_temperature", "n_step"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise UserError(f"{name} should be positive, got {getattr(self, name)}")
        if not 0 < self.target_rate <= 1:
            raise UserError(f"target_rate should be in (0, 1], got {self.target_rate}")
        super().__post_init__()

    @property
    def window(self) -> int:
        return self.n_step or 1

    def for_task(self, task: Task) -> Self:
        config = super().for_task(task)
        if config.n_step is not None:
            return config
        return dataclasses.replace(config, n_step=max(1, round(0.8 * config.short_horizon(task))))


LAPTOP = {
    "hidden_sizes": (256, 256), "normalize_observations": True, "average_heads": True, "learning_rate": 1e-3,
    "final_learning_rate": 1e-4, "learning_rate_updates": 100_000,
    "initial_temperature": 0.02, "temperature_learning_rate": 3e-3, "target_rate": 0.01,
    "actor_average_rate": 0.005, "action_repeat": None, "n_step": None, "batch_size": 128, "steps_per_iteration": 8,
    "updates_per_iteration": 128, "replay_size": 4_000_000, "warmup_steps": 20_000,
}  # fmt: skip
"""What all have of QDAC's recipe for an hour on 2 cores; docs/recipe.md."""

DEBUG = {
    "hidden_sizes": (32, 32), "batch_size": 32, "num_envs": 16, "steps_per_iteration": 8,
    "updates_per_iteration": 2, "replay_size": 2_048, "warmup_steps": 256,
}  # fmt: skip
"""Everything tiny."""


def critic_target(
    reward: Array, discount: Array, next_values: Array, temperature: Array, next_log_prob: Array
) -> Array:
    """Soft Bellman target of Q with the smaller of the two target critics [2, batch]."""
    return reward + discount * (next_values.min(axis=0) - temperature * next_log_prob)


def bellman_loss(prediction: Array, target: Array, in_variances: bool = False) -> Array:
    """Half the mean squared error of both heads against one target [batch, ...], or that over its variance."""
    variance = target.var(axis=0).mean() + 1e-6 if in_variances else 1.0
    return 0.5 * jnp.square(prediction - target).mean() / variance


def temperature_loss(log_temperature: Array, log_prob: Array, target_entropy: float) -> Array:
    """SAC's dual: the temperature falls while the policy's entropy is above its target."""
    return (jnp.exp(log_temperature) * (-log_prob - target_entropy)).mean()


class SoftActorCritic(Actor):
    """An actor and its critics; algorithms add networks and `losses`."""

    critic_names: tuple[str, ...] = ("critic",)
    """The networks that have a slow copy."""

    def __init__(self, config: Any, task: Task, commands: Commands | None = None):
        super().__init__(config, task, commands)
        self.target_rates |= dict.fromkeys(self.critic_names, config.target_rate)
        self.target_entropy = config.target_entropy_per_action * task.action_size

    def init_numbers(self) -> dict[str, Array]:
        """Returns SAC's temperature."""
        return {"log_temperature": jnp.log(jnp.float32(self.config.initial_temperature))}

    def learning_rate(self, name: str) -> optax.ScalarOrSchedule:
        """Returns the step size of a network or number."""
        return self.config.temperature_learning_rate if name == "log_temperature" else super().learning_rate(name)

    # What an algorithm defines.

    def rows(self, n_step: Batch, one_step: Batch, key: Array) -> Batch:
        """Returns the rows to learn from, of the same transitions with n-step and with one-step targets."""
        return n_step

    def losses(
        self, params: dict[str, Params], target: dict[str, Params], num_updates: Array, batch: Batch, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the sum of all losses, each with a gradient for its own network only, and the metrics."""
        raise NotImplementedError

    # Learning.

    def draw(self, state: State, replay: Replay, key: Array) -> tuple[Batch, Batch]:
        """Returns transitions to learn from, with n-step and with one-step targets."""
        config = self.config
        return sample(replay, key, config.batch_size, self.discount(state.num_updates), config.n_step)

    def output_scale(self, discount: Array | float) -> Array | float:
        """Returns what the critics output for a sum of 1."""
        return 1.0 - discount if self.config.average_heads else 1.0

    def update(self, state: State, batches: tuple[Batch, Batch], key: Array) -> tuple[State, dict[str, Array]]:
        """Returns the state after one gradient step of every network, and metrics."""
        key_rows, key_losses = jax.random.split(key)
        batch = self.rows(*batches, key_rows)
        batch = batch._replace(
            obs=self.normalize_obs(state.moments, batch.obs),
            next_obs=self.normalize_obs(state.moments, batch.next_obs),
        )
        gradients, metrics = jax.grad(self.losses, has_aux=True)(
            state.params, state.target, state.num_updates, batch, key_losses
        )
        updates, optimizer = self.optimizer(state.params).update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        return State(
            params, followed(state.target, params, self.target_rates), optimizer, state.moments, state.num_updates + 1
        ), metrics
