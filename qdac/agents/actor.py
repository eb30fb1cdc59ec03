"""What agents with a Gaussian actor have in common: its configuration, its acting, and what their state is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdac import nets
from qdac.errors import UserError
from qdac.trunk import TrunkConfig, check_schedule
from qdac.types import Array, Commands, Params, Task, skill_commands


@dataclasses.dataclass(frozen=True)
class ActorConfig(TrunkConfig):
    """Hyper-parameters of networks and optimisers."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of all networks."""
    learning_rate: float = 3e-4
    """Adam's step size for all networks."""
    final_learning_rate: float = 0.0
    """Where it ends; 0 to keep it throughout."""
    learning_rate_updates: int = 0
    """Updates over which it moves to its end, geometrically."""
    max_gradient_norm: float = 0.0
    """Clip the gradient of each network to this norm, those of a set of policies together; 0 for no clipping."""
    actor_average_rate: float = 1.0
    """How far the policy moves towards the actor that is trained at each update; 1 for the same. Off-policy it also
    collects."""
    normalize_observations: bool = False
    """Shift and scale observations by their running mean and deviation over all steps collected."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise UserError(f"learning_rate should be positive, got {self.learning_rate}")
        if not self.max_gradient_norm >= 0:
            raise UserError(f"max_gradient_norm should not be negative, got {self.max_gradient_norm}")
        if not 0 < self.actor_average_rate <= 1:
            raise UserError(f"actor_average_rate should be in (0, 1], got {self.actor_average_rate}")
        nets.check_widths(self, "hidden_sizes")
        check_schedule(self, "final_learning_rate", "learning_rate_updates")
        super().__post_init__()


class Moments(NamedTuple):
    """Running mean and variance of the observations."""

    mean: Array
    variance: Array
    count: Array

    @classmethod
    def of_nothing(cls, size: int) -> Moments:
        """Returns the moments before any observation."""
        return cls(jnp.zeros(size), jnp.ones(size), jnp.zeros(()))

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


class Held(NamedTuple):
    """The memory of a policy whose actions last for more than one step."""

    memory: Any
    """What the policy itself remembers since it decided."""
    action: Array
    steps_left: Array


def hold(held: Held, action_repeat: int, decide: Callable[[], tuple[Any, Array]]) -> tuple[Held, Array]:
    """Returns memory and actions: those under way, or new ones where none is; unless one of them has ended, nothing
    is decided."""
    goes_on = held.steps_left > 0
    old = held.memory, held.action
    new = jax.lax.cond(goes_on.all(), lambda: old, decide)
    memory, action = jax.tree.map(lambda old, new: jnp.where(goes_on[:, None], old, new), old, new)
    return Held(memory, action, (held.steps_left - 1) % action_repeat), action


class State(NamedTuple):
    """What an agent has learned."""

    params: dict[str, Params]
    """actor, and the algorithm's own."""
    target: dict[str, Params]
    """What follows slowly: copies of the critics, of the actor where it acts by an average, and an algorithm's own."""
    optimizer: Any
    moments: Moments
    num_updates: Array


def adam_for_each(
    learning_rates: dict[str, optax.ScalarOrSchedule], max_gradient_norm: float
) -> optax.GradientTransformation:
    """Returns an Adam for each network, its gradient clipped to a norm unless that is 0."""
    clip = (optax.clip_by_global_norm(max_gradient_norm),) if max_gradient_norm else ()
    return optax.partition(
        {name: optax.chain(*clip, optax.adam(rate)) for name, rate in learning_rates.items()},
        {name: name for name in learning_rates},
    )


def slow_copies(params: dict[str, Params], rates: dict[str, float]) -> dict[str, Params]:
    """Returns copies of the networks that have a rate: what is to follow them slowly, by `followed`."""
    return {name: jax.tree.map(jnp.copy, params[name]) for name in rates}


def followed(
    target: dict[str, Params], params: dict[str, Params], rates: dict[str, float]
) -> dict[str, Params]:
    """Returns all that is slow after an update, the copies each by its rate closer to what they follow."""
    return target | {name: optax.incremental_update(params[name], target[name], rate) for name, rate in rates.items()}


class Actor:
    """An agent of the trunk with a Gaussian actor, which is also its `Policy`."""

    def __init__(self, config: Any, task: Task, commands: Commands | None = None):
        self.config, self.task = config.for_task(task), task
        self.commands = commands or skill_commands(task)
        """What the policy is told while it collects."""
        self.condition_size = self.condition(jnp.zeros((1, self.commands.size))).shape[-1]
        self.target_rates: dict[str, float] = {}
        """How far the slow copies move at each update."""
        if config.actor_average_rate < 1.0:
            self.target_rates["actor"] = config.actor_average_rate

    @property
    def num_rows(self) -> int:
        """Returns the rows of one update."""
        return self.config.batch_size

    # What an algorithm defines.

    def init_networks(self, key: Array) -> dict[str, Params]:
        """Returns the networks; one that is named as the actor or a number takes the place of the usual one."""
        raise NotImplementedError

    def init_numbers(self) -> dict[str, Array]:
        """Returns what is learned beside networks."""
        return {}

    def condition(self, command: Array) -> Array:
        """Returns what the networks see of commands [..., size], beside the observation."""
        raise NotImplementedError

    def command(self, params: Params, skill: Array) -> Array:
        """Returns what to tell the policy in order to have it execute skills [num, skill_size]."""
        return skill

    # Acting.

    def policy_params(self, state: State) -> Params:
        """Returns what acting needs: the actor's parameters, and the moments its inputs are scaled by."""
        return {"actor": state.target.get("actor", state.params["actor"]), "moments": state.moments}

    def collector_params(self, state: State) -> Params:
        """Returns what `explore` needs."""
        return self.policy_params(state)

    def initial_carry(self, num: int) -> Held | tuple[()]:
        """Returns the memory of an actor: none, but for the action that goes on where actions last."""
        if self.config.action_repeat == 1:
            return ()
        return Held((), jnp.zeros((num, self.task.action_size)), jnp.zeros(num, jnp.int32))

    def step(
        self, params: Params, carry: Held | tuple[()], obs: Array, skill: Array
    ) -> tuple[Held | tuple[()], Array]:
        """Returns the deterministic actions tanh(mean) for [num, obs_size] and [num, skill_size]."""
        return self.hold(carry, lambda: self.act(params, obs, self.command(params, skill)))

    def hold(self, carry: Held | tuple[()], decide: Callable[[], Array]) -> tuple[Held | tuple[()], Array]:
        """Returns the memory and the actions that are under way, or new ones where none is."""
        if self.config.action_repeat == 1:
            return carry, decide()
        return hold(carry, self.config.action_repeat, lambda: ((), decide()))

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
        return self.gaussian(nets.apply_mlp(params["actor"], inputs))

    def gaussian(self, outputs: Array) -> tuple[Array, Array]:
        """Returns mean and standard deviation before the tanh from the actor's outputs."""
        return nets.tanh_gaussian(outputs)

    # Learning.

    def init(self, key: Array) -> State:
        """Returns fresh networks, their targets and optimisers."""
        config, task = self.config, self.task
        key_actor, key = jax.random.split(key)
        sizes = (task.obs_size + self.condition_size, *config.hidden_sizes, 2 * task.action_size)
        params = {
            "actor": nets.init_mlp(key_actor, sizes),
            **self.init_numbers(),
            **self.init_networks(key),
        }
        target = slow_copies(params, self.target_rates)
        moments = Moments.of_nothing(task.obs_size)
        return State(params, target, self.optimizer(params).init(params), moments, jnp.zeros((), jnp.int32))

    def optimizer(self, params: dict[str, Params]) -> optax.GradientTransformation:
        """Returns an Adam for each network."""
        return adam_for_each({name: self.learning_rate(name) for name in params}, self.config.max_gradient_norm)

    def learning_rate(self, name: str) -> optax.ScalarOrSchedule:
        """Returns the step size of a network or number."""
        config = self.config
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

