"""What the soft actor-critics have in common: configuration, acting, and one gradient step of all networks.

A soft actor-critic here is a class with its own networks and `losses`; all else is in `SoftActorCritic`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from qdac import nets
from qdac.errors import UserError
from qdac.replay import Batch, Replay, sample
from qdac.trunk import TrunkConfig, check_schedule
from qdac.types import Array, Commands, Params, Task, skill_commands


@dataclasses.dataclass(frozen=True)
class SoftConfig(TrunkConfig):
    """Hyper-parameters of every soft actor-critic."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of all networks."""
    layer_norm: bool = False
    """Normalise the hidden layers of the critics."""
    learning_rate: float = 3e-4
    """Adam's step size for all networks."""
    final_learning_rate: float = 0.0
    """Where it ends; 0 to keep it throughout."""
    learning_rate_updates: int = 0
    """Updates over which it moves to its end, geometrically."""
    temperature_learning_rate: float = 3e-4
    """Adam's step size for the logarithm of the temperature."""
    initial_temperature: float = 1.0
    """Where SAC's temperature starts."""
    target_entropy_per_action: float = -0.5
    """Target entropy of the policy for each action dimension."""
    max_gradient_norm: float = 0.0
    """Clip the gradient of each network to this norm, those of a set of policies together; 0 for no clipping."""
    target_rate: float = 0.005
    """tau: how far the target critics move towards the critics at each update."""
    actor_average_rate: float = 1.0
    """How far the policy that acts moves towards the actor that is trained at each update; 1 for the same."""
    n_step: int | None = 1
    """Steps summed in the targets of transitions that keep the command they were collected with; none for four fifths
    of the task's short horizon."""
    normalize_observations: bool = False
    """Shift and scale observations by their running mean and deviation over all steps collected."""
    average_heads: bool = False
    """Critics output (1 - discount) times the sums they stand for: numbers of order 1, not 100."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "temperature_learning_rate", "initial_temperature", "n_step"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise UserError(f"{name} should be positive, got {getattr(self, name)}")
        if not self.max_gradient_norm >= 0:
            raise UserError(f"max_gradient_norm should not be negative, got {self.max_gradient_norm}")
        for name in ("target_rate", "actor_average_rate"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"{name} should be in (0, 1], got {getattr(self, name)}")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise UserError(f"hidden_sizes should be positive widths, got {self.hidden_sizes}")
        check_schedule(self, "final_learning_rate", "learning_rate_updates")
        super().__post_init__()

    @property
    def window(self) -> int:
        return self.n_step or 1

    def for_task(self, task: Task) -> Self:
        config = super().for_task(task)
        if config.n_step is not None:
            return config
        return dataclasses.replace(config, n_step=max(1, round(0.8 * task.short_horizon)))


LAPTOP = {
    "hidden_sizes": (256, 256), "normalize_observations": True, "average_heads": True, "learning_rate": 1e-3,
    "final_learning_rate": 1e-4, "learning_rate_updates": 100_000,
    "initial_temperature": 0.02, "temperature_learning_rate": 3e-3, "target_rate": 0.01,
    "actor_average_rate": 0.005, "n_step": None, "batch_size": 128, "steps_per_iteration": 4,
    "updates_per_iteration": 64, "replay_size": 4_000_000, "warmup_steps": 20_000,
}  # fmt: skip
"""QDAC's recipe for an hour on 2 cores, as far as it is not about skills; docs/recipe.md."""

DEBUG = {
    "hidden_sizes": (32, 32), "batch_size": 32, "num_envs": 16, "steps_per_iteration": 8,
    "updates_per_iteration": 2, "replay_size": 2_048, "warmup_steps": 256,
}  # fmt: skip
"""Everything tiny."""


class Moments(NamedTuple):
    """Running mean and variance of the observations."""

    mean: Array
    variance: Array
    count: Array

    def include(self, obs: Array) -> Moments:
        """Returns the moments with [..., size] more observations."""
        obs = obs.reshape(-1, obs.shape[-1])
        num = obs.shape[0]
        mean, variance = obs.mean(axis=0), obs.var(axis=0)
        share = num / (self.count + num)
        gap = mean - self.mean
        return Moments(
            mean=self.mean + share * gap,
            variance=(1.0 - share) * self.variance + share * variance + share * (1.0 - share) * jnp.square(gap),
            count=self.count + num,
        )

    def normalize(self, obs: Array) -> Array:
        """Returns observations of zero mean and unit variance, where they vary at all, within 10 deviations."""
        return jnp.clip((obs - self.mean) * jax.lax.rsqrt(self.variance + 1e-4), -10.0, 10.0)


class State(NamedTuple):
    params: dict[str, Params]
    """actor, log_temperature, and the algorithm's own."""
    target: dict[str, Params]
    """What follows slowly: copies of the critics, of the actor where it acts by an average, and an algorithm's own."""
    optimizer: Any
    moments: Moments
    num_updates: Array


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


def adam_for_each(
    learning_rates: dict[str, optax.ScalarOrSchedule], max_gradient_norm: float
) -> optax.GradientTransformation:
    """Returns an Adam for each network, its gradient clipped to a norm unless that is 0."""
    clip = (optax.clip_by_global_norm(max_gradient_norm),) if max_gradient_norm else ()
    return optax.partition(
        {name: optax.chain(*clip, optax.adam(rate)) for name, rate in learning_rates.items()},
        {name: name for name in learning_rates},
    )


class SoftActorCritic:
    """An agent of the trunk that is also its `Policy`; algorithms add networks and `losses`."""

    critic_names: tuple[str, ...] = ("critic",)
    """The networks that have a slow copy."""

    def __init__(self, config: Any, task: Task, commands: Commands | None = None):
        self.config, self.task = config.for_task(task), task
        self.commands = commands or skill_commands(task)
        """What the policy is told while it collects."""
        self.condition_size = self.condition(jnp.zeros((1, self.commands.size))).shape[-1]
        self.target_rates = dict.fromkeys(self.critic_names, config.target_rate)
        if config.actor_average_rate < 1.0:
            self.target_rates["actor"] = config.actor_average_rate
        self.target_entropy = config.target_entropy_per_action * task.action_size

    @property
    def num_rows(self) -> int:
        """Returns the rows of one update."""
        return self.config.batch_size

    # What an algorithm defines.

    def init_networks(self, key: Array) -> dict[str, Params]:
        """Returns the networks; one that is named actor or log_temperature takes the place of the usual one."""
        raise NotImplementedError

    def condition(self, command: Array) -> Array:
        """Returns what the networks see of commands [..., size], beside the observation."""
        raise NotImplementedError

    def command(self, params: Params, skill: Array) -> Array:
        """Returns what to tell the policy in order to have it execute skills [num, skill_size]."""
        return skill

    def rows(self, n_step: Batch, one_step: Batch, key: Array) -> Batch:
        """Returns the rows to learn from, of the same transitions with n-step and with one-step targets."""
        return n_step

    def losses(
        self, params: dict[str, Params], target: dict[str, Params], num_updates: Array, batch: Batch, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the sum of all losses, each with a gradient for its own network only, and the metrics."""
        raise NotImplementedError

    # Acting.

    def policy_params(self, state: State) -> Params:
        """Returns what acting needs: the actor's parameters, and the moments its inputs are scaled by."""
        return {"actor": state.target.get("actor", state.params["actor"]), "moments": state.moments}

    def initial_carry(self, num: int) -> tuple[()]:
        return ()

    def step(self, params: Params, carry: tuple[()], obs: Array, skill: Array) -> tuple[tuple[()], Array]:
        """Returns the deterministic actions tanh(mean) for [num, obs_size] and [num, skill_size]."""
        return carry, self.act(params, obs, self.command(params, skill))

    def act(self, params: Params, obs: Array, command: Array) -> Array:
        """Returns the deterministic actions for observations and commands."""
        mean, _ = self.action_distribution(params, obs, command)
        return jnp.tanh(mean)

    def explore(
        self, params: Params, memory: tuple[()], obs: Array, command: Array, noise: Array
    ) -> tuple[tuple[()], Array]:
        """Returns stochastic actions for collection, from standard normal noise [num, action_size]."""
        mean, std = self.action_distribution(params, obs, command)
        return memory, jnp.tanh(mean + std * noise)

    def action_distribution(self, params: Params, obs: Array, command: Array) -> tuple[Array, Array]:
        """Returns mean and standard deviation of the actions before the tanh."""
        obs = self.normalize_obs(params["moments"], obs)
        inputs = jnp.concatenate([obs, self.condition(command)], axis=-1)
        return nets.tanh_gaussian(nets.apply_mlp(params["actor"], inputs))

    # Learning.

    def init(self, key: Array) -> State:
        """Returns fresh networks, their targets and optimisers."""
        config, task = self.config, self.task
        key_actor, key = jax.random.split(key)
        sizes = (task.obs_size + self.condition_size, *config.hidden_sizes, 2 * task.action_size)
        params = {
            "actor": nets.init_mlp(key_actor, sizes),
            "log_temperature": jnp.log(jnp.float32(config.initial_temperature)),
            **self.init_networks(key),
        }
        target = {name: jax.tree.map(jnp.copy, params[name]) for name in self.target_rates}
        moments = Moments(jnp.zeros(task.obs_size), jnp.ones(task.obs_size), jnp.zeros(()))
        return State(params, target, self.optimizer(params).init(params), moments, jnp.zeros((), jnp.int32))

    def optimizer(self, params: dict[str, Params]) -> optax.GradientTransformation:
        """Returns an Adam for each network."""
        return adam_for_each({name: self.learning_rate(name) for name in params}, self.config.max_gradient_norm)

    def learning_rate(self, name: str) -> optax.ScalarOrSchedule:
        """Returns the step size of a network or number."""
        config = self.config
        if name == "log_temperature":
            return config.temperature_learning_rate
        if not config.final_learning_rate:
            return config.learning_rate
        share = config.final_learning_rate / config.learning_rate
        return optax.exponential_decay(
            config.learning_rate, config.learning_rate_updates, share, end_value=config.final_learning_rate
        )

    def observe(self, state: State, obs: Array) -> State:
        """Returns the state after seeing newly collected observations [..., obs_size]."""
        if not self.config.normalize_observations:
            return state
        return state._replace(moments=state.moments.include(obs))

    def normalize_obs(self, moments: Moments, obs: Array) -> Array:
        return moments.normalize(obs) if self.config.normalize_observations else obs

    def discount(self, num_updates: Array) -> Array | float:
        """Returns gamma, or where it is on its way there."""
        return self.config.discount_at(num_updates)

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
        target = state.target | {
            name: optax.incremental_update(params[name], state.target[name], rate)
            for name, rate in self.target_rates.items()
        }
        return state._replace(
            params=params, target=target, optimizer=optimizer, num_updates=state.num_updates + 1
        ), metrics
