"""Quality-Diversity Actor-Critic, model-free, on Soft Actor-Critic.

For every state s and skill z the actor maximises

    (1 - lambda(s,z)) Q(s,a,z)  -  lambda(s,z) || (1 - gamma) psi(s,a,z) - z ||  -  alpha log pi(a|s,z)

where psi are the successor features, (1 - gamma) psi the feature the policy is expected to show
(`expected_feature`), lambda the multiplier that says how far the skill is from being executed, and
alpha SAC's temperature. The losses below carry the equation they implement; every choice that the
paper leaves open is a field of `Config`, with its reason in docs/deviations.md.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdac import nets
from qdac.errors import UserError
from qdac.replay import Batch
from qdac.types import Array, Params, Task


@dataclasses.dataclass(frozen=True)
class Config:
    """Hyper-parameters of QDAC; the defaults are the paper's."""

    hidden_sizes: tuple[int, ...] = (512, 512)
    """Widths of the hidden layers of all networks."""
    layer_norm: bool = False
    """Normalise the hidden layers of the two critics."""
    learning_rate: float = 3e-4
    """Adam's step size for the actor, the critics and the multiplier."""
    temperature_learning_rate: float = 3e-4
    """Adam's step size for the logarithm of the temperature."""
    initial_temperature: float = 1.0
    """Where SAC's temperature starts."""
    target_entropy_per_action: float = -0.5
    """Target entropy of the policy for each action dimension."""
    max_gradient_norm: float = 0.0
    """Clip the gradient of each network to this norm; 0 for no clipping."""
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
    """Steps summed in the targets of transitions that keep the skill they were collected with."""
    batch_size: int = 256
    """Transitions in a mini-batch, before it is repeated with fresh skills."""
    relabel: bool = True
    """Repeat every mini-batch with fresh uniform skills, as the paper does."""
    normalize_observations: bool = False
    """Shift and scale observations by their running mean and deviation over all steps collected."""
    normalize_features: bool = True
    """Work in units where the skill space is [-1, 1] (the threshold stays in the task's units)."""
    shared_critics: bool = False
    """Each head of Q and psi shares its hidden layers: one network with 1 + skill_size outputs."""
    average_heads: bool = False
    """Critics output (1 - discount) times the sums they stand for: numbers of order 1, not 100."""
    huber_scale: float = 1e-3
    """Below this the distance in the actor's objective is smooth (pseudo-Huber); above, the L2 norm."""
    death: Literal["centre", "opposite"] = "centre"
    """What follows a termination in the successor features: zeros (the centre of a normalised skill
    space), or the skill farthest from the one asked for."""
    initial_threshold: float = 0.0
    """Where the threshold starts, in multiples of the task's; 0 to keep the task's throughout."""
    threshold_updates: int = 0
    """Updates over which the threshold moves from its start to the task's, geometrically."""

    num_envs: int = 256
    """Envs stepped in parallel."""
    steps_per_iteration: int = 1
    """Steps of each env between two rounds of updates."""
    updates_per_iteration: int = 256
    """Gradient updates in a round."""
    replay_size: int = 2_000_000
    """Transitions kept."""
    warmup_steps: int = 512_000
    """Env steps collected before the first update."""
    uniform_warmup: bool = False
    """Collect the warm-up with uniform random actions rather than the initial policy."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "temperature_learning_rate", "initial_temperature", "huber_scale",
                     "batch_size", "n_step", "num_envs", "steps_per_iteration", "replay_size"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} should be positive, got {getattr(self, name)}")
        for name in ("updates_per_iteration", "warmup_steps", "max_gradient_norm", "initial_threshold"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} should not be negative, got {getattr(self, name)}")
        for start, updates in (("initial_threshold", "threshold_updates"), ("initial_discount", "discount_updates")):
            values = getattr(self, start), getattr(self, updates)
            if min(values) < 0 or (values[0] > 0) != (values[1] > 0):
                raise UserError(
                    f"{start} and {updates} go together, both positive or both 0, got {values[0]} and {values[1]}"
                )
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
    """actor, critic, successor (unless the critics share), multiplier, log_temperature."""
    target: dict[str, Params]
    """Slow copies of the critics, and of the actor where it acts by an average."""
    optimizer: Any
    moments: Moments
    num_updates: Array


# Losses: one function an equation. Every argument is what the equation names, already evaluated.


def pseudo_huber(difference: Array, scale: float) -> Array:
    """Returns the L2 norm over the last axis, smooth below `scale`: the distance the actor minimises."""
    return scale * (jnp.sqrt(1.0 + jnp.square(difference / scale).sum(axis=-1)) - 1.0)


def multiplier_loss(logit: Array, skill_distance: Array, threshold: Array) -> Array:
    """Eq. 5: cross-entropy towards 1 where the skill is not executed, 0 where it is."""
    violated = (skill_distance > threshold).astype(logit.dtype)
    return optax.sigmoid_binary_cross_entropy(logit, violated).mean()


def critic_target(
    reward: Array, discount: Array, next_values: Array, temperature: Array, next_log_prob: Array
) -> Array:
    """Soft Bellman target of Q with the smaller of the two target critics [2, batch]."""
    return reward + discount * (next_values.min(axis=0) - temperature * next_log_prob)


def successor_target(
    feature: Array, discount: Array, next_successor: Array, terminated: Array, death: Array
) -> Array:
    """Eq. 2: Bellman target of psi with the mean of the two target heads [2, batch, size].

    `death` stands in for the successor features of whatever follows a termination.
    """
    return feature + discount[:, None] * next_successor.mean(axis=0) + terminated[:, None] * death


def bellman_loss(prediction: Array, target: Array) -> Array:
    """Half the mean squared error of both heads against one target."""
    return 0.5 * jnp.square(prediction - target).mean()


def actor_loss(
    value: Array, distance: Array, multiplier: Array, temperature: Array, log_prob: Array
) -> Array:
    """Negated actor objective: Eq. 4 with SAC's entropy term."""
    objective = (1.0 - multiplier) * value - multiplier * distance - temperature * log_prob
    return -objective.mean()


def temperature_loss(log_temperature: Array, log_prob: Array, target_entropy: float) -> Array:
    """SAC's dual: the temperature falls while the policy's entropy is above its target."""
    return (jnp.exp(log_temperature) * (-log_prob - target_entropy)).mean()


class QDAC:
    """The algorithm for one task: an agent (`init`, `explore`, `update`) that is also its `Policy`."""

    def __init__(self, config: Config, task: Task):
        self.config = config
        self.task = task
        space = task.skill_space
        self.normalize = space.normalize if config.normalize_features else (lambda skill: skill)
        low, high = jnp.array(space.low), jnp.array(space.high)
        origin = self.normalize(low)
        self.unit = (high - low) / (self.normalize(high) - origin)
        """The task's units in one unit of the critics."""
        self.critic_names = ("critic",) if config.shared_critics else ("critic", "successor")
        self.target_rates = dict.fromkeys(self.critic_names, config.target_rate)
        if config.actor_average_rate < 1.0:
            self.target_rates["actor"] = config.actor_average_rate
        groups = dict.fromkeys(("actor", "multiplier", *self.critic_names), config.learning_rate)
        groups["log_temperature"] = config.temperature_learning_rate
        clip = (optax.clip_by_global_norm(config.max_gradient_norm),) if config.max_gradient_norm else ()
        self.optimizer = optax.partition(
            {name: optax.chain(*clip, optax.adam(rate)) for name, rate in groups.items()},
            {name: name for name in groups},
        )

    def init(self, key: Array) -> State:
        """Returns fresh networks, their targets and optimisers."""
        config, task = self.config, self.task
        key_actor, key_multiplier, *keys_critics = jax.random.split(key, 4)
        state_size = task.obs_size + task.skill_size
        hidden = config.hidden_sizes
        params = {
            "actor": nets.init_mlp(key_actor, (state_size, *hidden, 2 * task.action_size)),
            "multiplier": nets.init_mlp(key_multiplier, (state_size, *hidden, 1)),
            "log_temperature": jnp.log(jnp.float32(config.initial_temperature)),
        }
        outputs = (1 + task.skill_size,) if config.shared_critics else (1, task.skill_size)
        for name, key_critic, output_size in zip(self.critic_names, keys_critics[: len(outputs)], outputs, strict=True):
            sizes = (state_size + task.action_size, *hidden, output_size)
            params[name] = nets.init_mlp(key_critic, sizes, members=2, layer_norm=config.layer_norm)
        target = {name: jax.tree.map(jnp.copy, params[name]) for name in self.target_rates}
        moments = Moments(jnp.zeros(task.obs_size), jnp.ones(task.obs_size), jnp.zeros(()))
        return State(params, target, self.optimizer.init(params), moments, jnp.zeros((), jnp.int32))

    def observe(self, state: State, obs: Array) -> State:
        """Returns the state after seeing newly collected observations [..., obs_size]."""
        if not self.config.normalize_observations:
            return state
        return state._replace(moments=state.moments.include(obs))

    def normalize_obs(self, moments: Moments, obs: Array) -> Array:
        return moments.normalize(obs) if self.config.normalize_observations else obs

    def policy_params(self, state: State) -> Params:
        """Returns what acting needs: the actor's parameters, and the moments its inputs are scaled by."""
        return {"actor": state.target.get("actor", state.params["actor"]), "moments": state.moments}

    def initial_carry(self, num: int) -> tuple[()]:
        return ()

    def step(self, params: Params, carry: tuple[()], obs: Array, skill: Array) -> tuple[tuple[()], Array]:
        """Returns the deterministic actions tanh(mean) for [num, obs_size] and [num, skill_size]."""
        mean, _ = self.action_distribution(params, obs, skill)
        return carry, jnp.tanh(mean)

    def action_distribution(self, params: Params, obs: Array, skill: Array) -> tuple[Array, Array]:
        """Returns mean and standard deviation of the actions before the tanh."""
        obs = self.normalize_obs(params["moments"], obs)
        inputs = jnp.concatenate([obs, self.normalize(skill)], axis=-1)
        return nets.tanh_gaussian(nets.apply_mlp(params["actor"], inputs))

    def explore(self, params: Params, obs: Array, skill: Array, noise: Array) -> Array:
        """Returns stochastic actions for collection, from standard normal noise [num, action_size]."""
        mean, std = self.action_distribution(params, obs, skill)
        return jnp.tanh(mean + std * noise)

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

    def opposite(self, skill: Array) -> Array:
        """Returns the skill farthest from each skill in the task's units, in units of the critics."""
        space = self.task.skill_space
        farthest = space.opposite(space.normalize(skill))
        if self.config.normalize_features:
            return farthest
        low, high = jnp.array(space.low), jnp.array(space.high)
        origin = space.normalize(low)
        return low + (farthest - origin) * (high - low) / (space.normalize(high) - origin)

    def threshold(self, num_updates: Array) -> Array:
        """Returns delta for the multiplier's labels: the task's, or on its way there."""
        config = self.config
        if not config.initial_threshold:
            return jnp.asarray(self.task.threshold)
        remaining = jnp.clip(1.0 - num_updates / config.threshold_updates, 0.0, 1.0)
        return self.task.threshold * config.initial_threshold**remaining

    def critics(self, params: dict[str, Params], obs: Array, action: Array, skill: Array) -> tuple[Array, Array]:
        """Returns Q [2, batch] and psi [2, batch, skill_size] of both heads, in units of the outputs."""
        inputs = jnp.concatenate([obs, action, skill], axis=-1)
        outputs = [nets.apply_mlp(params[name], inputs) for name in self.critic_names]
        both = jnp.concatenate(outputs, axis=-1)
        return both[..., 0], both[..., 1:]

    def losses(
        self, params: dict[str, Params], target: dict[str, Params], threshold: Array, discount: Array | float,
        batch: Batch, key: Array,
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the sum of all losses, each with a gradient for its own network only, and the metrics.

        `discount` is the one that the sums of `batch` were made with.
        """
        config, fixed = self.config, jax.lax.stop_gradient
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
            scale * batch.reward, batch.discount, next_value, scale * fixed(temperature), next_log_prob
        )
        death = scale / (1.0 - discount) * self.opposite(batch.skill)
        feature_sum = self.normalize_sum(batch, discount)
        feature_target = successor_target(
            scale * feature_sum, batch.discount, next_successor,
            batch.terminated * (config.death == "opposite"), death,
        )
        loss_critic = bellman_loss(value, fixed(value_target))
        loss_successor = bellman_loss(successor, fixed(feature_target))

        # Policy improvement: the mean of both heads judges the policy's own actions.
        judges = fixed({name: params[name] for name in self.critic_names})
        value, successor = self.critics(judges, batch.obs, action, skill)
        value = value.mean(axis=0) / scale
        expected_feature = successor.mean(axis=0) * ((1.0 - discount) / scale)
        difference = expected_feature - skill
        logit = nets.apply_mlp(params["multiplier"], state)[..., 0]
        multiplier = fixed(jax.nn.sigmoid(logit))
        loss_actor = actor_loss(
            value, pseudo_huber(difference, config.huber_scale), multiplier, fixed(temperature), log_prob
        )
        skill_distance = fixed(jnp.linalg.norm(difference * self.unit, axis=-1))
        loss_multiplier = multiplier_loss(logit, skill_distance, threshold)
        loss_temperature = temperature_loss(
            params["log_temperature"], fixed(log_prob), config.target_entropy_per_action * self.task.action_size
        )
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

    def normalize_sum(self, batch: Batch, discount: Array | float) -> Array:
        """Returns the normalised form of a discounted sum of features over the steps it spans.

        N(x) = x / unit + N(0), so a sum with total weight w becomes sum / unit + w N(0); the weight
        follows from what is left of the discount: w = (1 - gamma^n) / (1 - gamma).
        """
        weight = (1.0 - (batch.discount + batch.terminated)) / (1.0 - discount)
        origin = self.normalize(jnp.zeros(self.task.skill_size))
        return batch.feature / self.unit + weight[:, None] * origin

    def relabelled(self, n_step: Batch, one_step: Batch, key: Array) -> Batch:
        """Returns the mini-batch followed by its repetition with fresh uniform skills.

        The copy has one-step targets: its later actions were not meant for the new skill.
        """
        if not self.config.relabel:
            return n_step
        fresh = one_step._replace(skill=self.task.skill_space.sample(key, one_step.reward.shape[0]))
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), n_step, fresh)

    def update(self, state: State, batches: tuple[Batch, Batch], key: Array) -> tuple[State, dict[str, Array]]:
        """Returns the state after one gradient step of every network, and metrics."""
        key_skill, key_action = jax.random.split(key)
        batch = self.relabelled(*batches, key_skill)
        batch = batch._replace(
            obs=self.normalize_obs(state.moments, batch.obs),
            next_obs=self.normalize_obs(state.moments, batch.next_obs),
        )
        threshold = self.threshold(state.num_updates)
        gradients, metrics = jax.grad(self.losses, has_aux=True)(
            state.params, state.target, threshold, self.discount(state.num_updates), batch, key_action
        )
        updates, optimizer = self.optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        target = {
            name: optax.incremental_update(params[name], state.target[name], rate)
            for name, rate in self.target_rates.items()
        }
        return State(params, target, optimizer, state.moments, state.num_updates + 1), metrics


LAPTOP = Config(
    hidden_sizes=(256, 256),
    normalize_observations=True,
    shared_critics=True,
    average_heads=True,
    learning_rate=1e-3,
    initial_temperature=0.02,
    temperature_learning_rate=3e-3,
    initial_discount=0.95,
    discount_updates=300_000,
    target_rate=0.01,
    actor_average_rate=0.005,
    n_step=5,
    batch_size=128,
    death="opposite",
    steps_per_iteration=16,
    updates_per_iteration=64,
    replay_size=1_000_000,
    warmup_steps=20_000,
)
"""An hour on 2 cores; what each departure from the paper gave is in docs/recipe.md."""

DEBUG = Config(
    hidden_sizes=(32, 32),
    batch_size=32,
    num_envs=16,
    steps_per_iteration=8,
    updates_per_iteration=2,
    replay_size=2_048,
    warmup_steps=256,
)
"""Everything tiny."""
