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
from qdac.replay import Batch
from qdac.types import Array, Commands, Params, Task, skill_commands


@dataclasses.dataclass(frozen=True)
class SoftConfig:
    """Hyper-parameters of every soft actor-critic."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of all networks."""
    layer_norm: bool = False
    """Normalise the hidden layers of the critics."""
    learning_rate: float = 3e-4
    """Adam's step size for all networks."""
    temperature_learning_rate: float = 3e-4
    """Adam's step size for the logarithm of the temperature."""
    initial_temperature: float = 1.0
    """Where SAC's temperature starts."""
    target_entropy_per_action: float = -0.5
    """Target entropy of the policy for each action dimension."""
    max_gradient_norm: float = 0.0
    """Clip the gradient of each network to this norm, those of a set of policies together; 0 for no clipping."""
    discount: float = 0.99
    """gamma."""
    initial_discount: float = 0.0
    """Where gamma starts; 0 to keep it throughout. A short horizon shows sooner what an action does."""
    discount_updates: int = 0
    """Updates over which gamma moves from its start, its horizon 1 / (1 - gamma) geometrically."""
    target_rate: float = 0.005
    """tau: how far the target critics move towards the critics at each update."""
    actor_average_rate: float = 1.0
    """How far the policy that acts moves towards the actor that is trained at each update; 1 for the same."""
    n_step: int = 1
    """Steps summed in the targets of transitions that keep the command they were collected with."""
    batch_size: int = 256
    """Transitions in a mini-batch."""
    normalize_observations: bool = False
    """Shift and scale observations by their running mean and deviation over all steps collected."""
    average_heads: bool = False
    """Critics output (1 - discount) times the sums they stand for: numbers of order 1, not 100."""

    num_envs: int = 256
    """Envs stepped in parallel."""
    steps_per_iteration: int = 1
    """Steps of each env between two rounds of updates."""
    updates_per_iteration: int = 256
    """Gradient updates in a round."""
    replay_size: int = 1_000_000
    """Transitions kept."""
    warmup_steps: int = 0
    """Env steps collected before the first update."""
    uniform_warmup: bool = False
    """Collect the warm-up with uniform random actions rather than the initial policy."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "temperature_learning_rate", "initial_temperature", "batch_size", "n_step",
                     "num_envs", "steps_per_iteration", "replay_size"):  # fmt: skip
            if not getattr(self, name) > 0:
                raise UserError(f"{name} should be positive, got {getattr(self, name)}")
        for name in ("updates_per_iteration", "warmup_steps", "max_gradient_norm"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} should not be negative, got {getattr(self, name)}")
        check_schedule(self, "initial_discount", "discount_updates")
        if self.warmup_steps < self.num_envs * (self.n_step - self.steps_per_iteration):
            raise UserError(
                f"warmup_steps should fill a window of {self.n_step} steps of {self.num_envs} envs, "
                f"got {self.warmup_steps}"
            )
        for name in ("discount", "initial_discount"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} should be in [0, 1), got {getattr(self, name)}")
        for name in ("target_rate", "actor_average_rate"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"{name} should be in (0, 1], got {getattr(self, name)}")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise UserError(f"hidden_sizes should be positive widths, got {self.hidden_sizes}")

    def for_task(self, task: Task) -> Self:
        """Returns the configuration with everything that depends on the task written out."""
        return self


def check_schedule(config: SoftConfig, start: str, updates: str) -> None:
    """Raises a UserError unless both fields of a schedule are given, or neither."""
    values = getattr(config, start), getattr(config, updates)
    if not min(values) >= 0 or (values[0] > 0) != (values[1] > 0):
        raise UserError(f"{start} and {updates} go together, both positive or both 0, got {values[0]} and {values[1]}")


LAPTOP = {
    "hidden_sizes": (256, 256), "normalize_observations": True, "average_heads": True, "learning_rate": 1e-3,
    "initial_temperature": 0.02, "temperature_learning_rate": 3e-3, "target_rate": 0.01,
    "actor_average_rate": 0.005, "n_step": 5, "batch_size": 128, "steps_per_iteration": 16,
    "updates_per_iteration": 64, "replay_size": 1_000_000, "warmup_steps": 20_000,
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


def bellman_loss(prediction: Array, target: Array) -> Array:
    """Half the mean squared error of both heads against one target."""
    return 0.5 * jnp.square(prediction - target).mean()


def temperature_loss(log_temperature: Array, log_prob: Array, target_entropy: float) -> Array:
    """SAC's dual: the temperature falls while the policy's entropy is above its target."""
    return (jnp.exp(log_temperature) * (-log_prob - target_entropy)).mean()


class SoftActorCritic:
    """An agent (`init`, `explore`, `update`) that is also its `Policy`; algorithms add networks and `losses`."""

    critic_names: tuple[str, ...] = ("critic",)
    """The networks that have a slow copy."""

    def __init__(self, config: Any, task: Task, commands: Commands | None = None):
        self.config, self.task = config, task
        self.commands = commands or skill_commands(task)
        """What the policy is told while it collects."""
        self.condition_size = self.condition(jnp.zeros((1, self.commands.size))).shape[-1]
        self.target_rates = dict.fromkeys(self.critic_names, config.target_rate)
        if config.actor_average_rate < 1.0:
            self.target_rates["actor"] = config.actor_average_rate
        self.target_entropy = config.target_entropy_per_action * task.action_size

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

    def explore(self, params: Params, obs: Array, command: Array, noise: Array) -> Array:
        """Returns stochastic actions for collection, from standard normal noise [num, action_size]."""
        mean, std = self.action_distribution(params, obs, command)
        return jnp.tanh(mean + std * noise)

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
        config = self.config
        clip = (optax.clip_by_global_norm(config.max_gradient_norm),) if config.max_gradient_norm else ()
        return optax.partition(
            {name: optax.chain(*clip, optax.adam(self.learning_rate(name))) for name in params},
            {name: name for name in params},
        )

    def learning_rate(self, name: str) -> float:
        """Returns the step size of a network or number."""
        return self.config.temperature_learning_rate if name == "log_temperature" else self.config.learning_rate

    def observe(self, state: State, obs: Array) -> State:
        """Returns the state after seeing newly collected observations [..., obs_size]."""
        if not self.config.normalize_observations:
            return state
        return state._replace(moments=state.moments.include(obs))

    def normalize_obs(self, moments: Moments, obs: Array) -> Array:
        return moments.normalize(obs) if self.config.normalize_observations else obs

    def discount(self, num_updates: Array) -> Array | float:
        """Returns gamma, or where it is on its way there: one value for all updates of an iteration."""
        config = self.config
        if not config.initial_discount:
            return config.discount
        num_updates = num_updates // config.updates_per_iteration * config.updates_per_iteration
        remaining = jnp.clip(1.0 - num_updates / config.discount_updates, 0.0, 1.0)
        widening = (1.0 - config.initial_discount) / (1.0 - config.discount)
        return 1.0 - (1.0 - config.discount) * widening**remaining

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
