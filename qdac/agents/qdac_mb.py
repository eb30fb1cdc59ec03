"""Quality-Diversity Actor-Critic, model-based, on DreamerV3: skills are learned in imagination.

From states s that the world model (world_model.py) has followed, one uniform skill z each is imagined for H steps
with actions of the policy, and the actor maximises, by gradients through the model, the sum over those steps,
each weighted by gamma and the chance to live it, of

    (1 - lambda(z)) V_l(s_t,z) / S  -  lambda(z) || (1 - gamma) psi_l(s_t,z) - z ||  +  eta H[pi(.|s_t,z)]

where V_l and psi_l are the lambda-returns of value and successor features, which both critics are trained towards, and
S is the spread of returns (1 in the paper).
The critics are distributional, and of averages: (1 - gamma) V and (1 - gamma) psi. What is not about imagination is
in skills.py, the ablations too; every choice that the paper leaves open has its reason in docs/deviations.md.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdac import nets
from qdac.agents.actor import Held, Moments, State, adam_for_each, followed, hold, slow_copies
from qdac.agents.skills import SkillConfig, SkillObjective
from qdac.agents.world_model import Latent, ModelConfig, WorldModel, keep_products
from qdac.errors import UserError
from qdac.replay import Replay, Sequences, sample_sequences
from qdac.twohot import symlog
from qdac.types import Array, Params, Task, skill_commands

STD_BOUNDS = (0.1, 1.0)
"""Of the policy's actions: it never stops exploring, nor is all noise."""
SPREAD_RATE = 0.01
"""How far the spread of returns moves towards the one just seen."""


@dataclasses.dataclass(frozen=True)
class Config(SkillConfig, ModelConfig):
    """Hyper-parameters of QDAC-MB; the defaults are the paper's, its code's where docs/deviations.md says so."""

    num_envs: int = 16
    steps_per_iteration: int = 2
    updates_per_iteration: int = 1
    batch_size: int = 16
    warmup_steps: int = 2_048
    uniform_warmup: bool = True
    discount: float | None = 0.997
    sequence_length: int = 64
    """Steps of each sequence that the world model learns from."""
    normalize_observations: bool = False
    """Scale observations by their running moments in place of symlog."""
    num_starts: int = 0
    """States of those sequences, drawn among all of them, that rollouts are imagined from; 0 for every one."""
    horizon: int = 15
    """H: steps imagined from each of them."""
    return_mix: float = 0.95
    """lambda of the lambda-returns: how much the imagined future counts against what the critic expects."""
    compare: Literal["imagined", "expected"] = "imagined"
    """What is compared with the skill: psi_l, of one rollout, or what the critic expects of all of them. The distance
    of the latter then changes by its slope times what the rollout differs from it."""
    normalize_returns: bool = True
    """Divide V_l in the actor's objective by the spread of returns (from the 5th to the 95th of a hundred), if that is
    above 1: returns of hundreds then weigh as much as a distance below 1. A sum of distances is one of hundreds itself,
    and V_l beside it stays as it is."""
    entropy_scale: float = 3e-4
    """eta: what the entropy of the policy is worth."""
    model_learning_rate: float = 1e-4
    """Adam's step size for the world model."""
    learning_rate: float = 3e-5
    """Adam's step size for actor and critics."""
    multiplier_learning_rate: float = 3e-5
    """Adam's step size for the multiplier."""
    max_gradient_norm: float = 100.0
    """Clip the gradient of each network to this norm; 0 for no clipping."""
    target_rate: float = 0.02
    """How far the slow critics, which the critics are kept close to, move towards them at each update."""
    slow_scale: float = 1.0
    """Weight of the loss that keeps them close."""
    actor_average_rate: float = 1.0
    """How far the policy that acts moves towards the actor that is trained at each update; 1 for the same."""
    shared_critics: bool = False
    """Value and skill critic share their hidden layers: one network with all outputs."""
    multiplier_sizes: tuple[int, ...] = (8,)
    """Widths of the hidden layers of the multiplier, which sees the skill only."""

    def __post_init__(self) -> None:
        for name in ("horizon", "model_learning_rate", "learning_rate", "multiplier_learning_rate"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} should be positive, got {getattr(self, name)}")
        if self.sequence_length < 2:
            raise UserError(f"sequence_length should be at least 2, for one step to follow, got {self.sequence_length}")
        nets.check_widths(self, "multiplier_sizes")
        for name in ("entropy_scale", "max_gradient_norm", "slow_scale"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} should not be negative, got {getattr(self, name)}")
        if not 0 <= self.return_mix <= 1:
            raise UserError(f"return_mix should be in [0, 1], got {self.return_mix}")
        for name in ("target_rate", "actor_average_rate"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"{name} should be in (0, 1], got {getattr(self, name)}")
        if not 0 <= self.num_starts <= self.batch_size * self.sequence_length:
            raise UserError(
                f"num_starts should be from 0 to the {self.batch_size * self.sequence_length} states of a batch, "
                f"got {self.num_starts}"
            )
        if self.skill_steps:
            raise UserError(
                f"skill_steps should be 0, got {self.skill_steps}: a fresh skill would cut the sequences of a model "
                "that knows nothing of skills"
            )
        ModelConfig.__post_init__(self)
        SkillConfig.__post_init__(self)

    @property
    def window(self) -> int:
        return self.sequence_length


class Imagined(NamedTuple):
    """Steps of many rollouts, [horizon, num, ...]; of the vectors one more."""

    vector: Array
    action: Array
    std: Array


def lambda_returns(
    now: Array, next_average: Array, goes_on: Array, after_end: Array, discount: Array | float, mix: float
) -> Array:
    """Returns averages of what is to come, [horizon, num, size], by the paper's recursion from the last step back.

    `now` is what a step counts, `next_average` what the critic expects of the state after it, `goes_on` the
    probability that there is one, and `after_end` what counts for ever if not; `discount` is one for all
    numbers, or one for each.
    """

    def one_step(later: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        now, next_average, goes_on = step
        future = (1.0 - mix) * next_average + mix * later
        average = (1.0 - discount) * now + discount * (goes_on * future + (1.0 - goes_on) * after_end)
        return average, average

    steps = (now, next_average, goes_on[..., None])
    return jax.lax.scan(one_step, next_average[-1], steps, reverse=True)[1]


def spread(returns: Array) -> Array:
    """Returns how far the 5th and the 95th of a hundred returns are apart."""
    low, high = jnp.percentile(returns, jnp.array([5.0, 95.0]))
    return high - low


class QDACMB(SkillObjective):
    """The algorithm for one task: an agent of the trunk that is also its `Policy`."""

    def __init__(self, config: Config, task: Task):
        self.config, self.task = config.for_task(task), task
        self.commands = skill_commands(task)
        sizes = task.obs_size, task.action_size, task.skill_size
        self.model = WorldModel(config, *sizes, actions_last=self.config.action_repeat > 1)
        self.bins = self.model.bins
        self.critic_names = ("critic",) if config.shared_critics else ("critic", "successor")
        """`successor` is the skill critic, whichever of the two it is."""
        self.target_rates = dict.fromkeys(self.critic_names, config.target_rate)
        """How far what follows slowly moves at each update."""
        if config.actor_average_rate < 1.0:
            self.target_rates["actor"] = config.actor_average_rate

    @property
    def divides_returns(self) -> bool:
        """Returns whether V_l is divided by the spread of returns."""
        return self.config.normalize_returns and self.config.skill_critic == "successor"

    @property
    def num_rows(self) -> int:
        """Returns the imagined states of one update."""
        config = self.config
        return (config.num_starts or config.batch_size * config.sequence_length) * config.horizon

    # Acting. The memory of an episode is the latent state in which the policy last decided, and the action.

    def policy_params(self, state: State) -> Params:
        """Returns what acting needs, the model as a whole: a saved policy can imagine too."""
        scaling = {"moments": state.moments} if self.config.normalize_observations else {}
        actor = state.target.get("actor", state.params["actor"])
        return {"model": state.params["model"], "actor": actor} | scaling

    collector_params = policy_params

    def initial_carry(self, num: int) -> Held:
        return Held(self.model.initial(num), jnp.zeros((num, self.task.action_size)), jnp.zeros(num, jnp.int32))

    def step(self, params: Params, carry: Held, obs: Array, skill: Array) -> tuple[Held, Array]:
        """Returns the deterministic actions for [num, obs_size] and [num, skill_size], and what to remember."""
        return hold(carry, self.config.action_repeat, lambda: self.see(params, carry, obs, skill)[:2])

    def explore(
        self, params: Params, memory: Held, obs: Array, command: Array, noise: Array
    ) -> tuple[Held, Array]:
        """Returns stochastic actions for collection, from standard normal noise [num, action_size]."""
        latent, mean, std = self.see(params, memory, obs, command)
        action = jnp.clip(mean + std * noise, -1.0, 1.0)
        return memory._replace(memory=latent, action=action), action

    def see(self, params: Params, carry: Held, obs: Array, skill: Array) -> tuple[Latent, Array, Array]:
        """Returns the latent states that observations lead to, and mean and deviation of the actions there."""
        model = params["model"]
        recalled = self.model.remember(model, carry.memory, carry.action)
        embedding = self.model.encode(model, self.scale_obs(params.get("moments"), obs))
        latent = self.model.latent(recalled, self.model.posterior(model, recalled, embedding))
        return latent, *self.action_distribution(params["actor"], latent.vector, self.normalize(skill))

    def scale_obs(self, moments: Moments | None, obs: Array) -> Array:
        """Returns observations as the model has them."""
        return moments.normalize(obs) if self.config.normalize_observations else symlog(obs)

    def action_distribution(self, actor: Params, vector: Array, skill: Array) -> tuple[Array, Array]:
        """Returns mean and standard deviation of the actions in latent states, for skills in units of the critics."""
        outputs = nets.apply_silu_mlp(actor, jnp.concatenate([vector, skill], axis=-1))
        mean, raw_std = jnp.split(outputs, 2, axis=-1)
        low, high = STD_BOUNDS
        return jnp.tanh(mean), low + (high - low) * jax.nn.sigmoid(raw_std + 2.0)

    # Learning.

    def init(self, key: Array) -> State:
        """Returns fresh networks (model, actor, critics, the multiplier if it is learned), what follows slowly (the
        critics, the actor if an average of it acts, the spread of returns as a decayed mean), and optimisers."""
        config, task = self.config, self.task
        key_model, key_actor, key_multiplier, *keys_critics = jax.random.split(key, 5)
        inputs = self.model.vector_size + task.skill_size
        params = {
            "model": self.model.init(key_model),
            "actor": nets.init_mlp(key_actor, (inputs, *config.head_sizes, 2 * task.action_size), layer_norm=True),
        }
        outputs = (1 + self.skill_outputs,) if config.shared_critics else (1, self.skill_outputs)
        for name, key_critic, num in zip(self.critic_names, keys_critics[: len(outputs)], outputs, strict=True):
            sizes = (inputs, *config.head_sizes, num * config.num_bins)
            params[name] = nets.init_mlp(key_critic, sizes, layer_norm=True, zero_output=True)
        if config.multiplier is None:
            params["multiplier"] = nets.init_mlp(key_multiplier, (task.skill_size, *config.multiplier_sizes, 1))
        target = slow_copies(params, self.target_rates) | {"spread": jnp.zeros(())}
        moments = Moments.of_nothing(task.obs_size)
        return State(params, target, self.optimizer(params).init(params), moments, jnp.zeros((), jnp.int32))

    def optimizer(self, params: dict[str, Params]) -> optax.GradientTransformation:
        """Returns an Adam for each network."""
        config = self.config
        own = {"model": config.model_learning_rate, "multiplier": config.multiplier_learning_rate}
        rates = {name: own.get(name, config.learning_rate) for name in params}
        return adam_for_each(rates, config.max_gradient_norm)

    def observe(self, state: State, obs: Array) -> State:
        """Returns the state after seeing newly collected observations [..., obs_size]."""
        if not self.config.normalize_observations:
            return state
        return state._replace(moments=state.moments.include(obs))

    def draw(self, state: State, replay: Replay, key: Array) -> Sequences:
        """Returns sequences of steps to learn from."""
        return sample_sequences(replay, key, self.config.batch_size, self.config.sequence_length)

    def critics(self, params: dict[str, Params], vector: Array, skill: Array) -> Array:
        """Returns logits [..., 1 + size, num_bins] of (1 - gamma) V and of what the skill critic expects."""
        inputs = jnp.concatenate([vector, skill], axis=-1)
        outputs = [nets.apply_silu_mlp(params[name], inputs) for name in self.critic_names]
        return jnp.concatenate(outputs, axis=-1).reshape(*vector.shape[:-1], -1, self.config.num_bins)

    def imagine(self, model: Params, actor: Params, start: Latent, skill: Array, key: Array) -> Imagined:
        """Returns rollouts of the policy in the model, from states [num, ...], for skills in units of the critics."""
        horizon, num = self.config.horizon, skill.shape[0]
        key_action, key_latent = jax.random.split(key)

        def one_step(latent: Latent, noise: tuple[Array, Array]) -> tuple[Latent, tuple[Array, Array, Array]]:
            vector = latent.vector
            mean, std = self.action_distribution(actor, jax.lax.stop_gradient(vector), skill)
            action = mean + std * noise[0]
            action = action / jax.lax.stop_gradient(jnp.maximum(1.0, jnp.abs(action)))
            memory = self.model.remember(model, latent, action)
            following = self.model.latent(memory, self.model.prior(model, memory), noise[1])
            return following, (vector, action, std)

        noise = jax.random.normal(key_action, (horizon, num, self.task.action_size))
        last, (vector, action, std) = jax.lax.scan(
            keep_products(one_step), start, (noise, self.model.noise(key_latent, horizon, num))
        )
        return Imagined(jnp.concatenate([vector, last.vector[None]]), action, std)

    def compared(self, imagined: Array, expected: Array, skill: Array, discounts: Array) -> tuple[Array, Array]:
        """Returns the distance that the actor minimises and the one that the threshold is for, of averages."""

        def distances(averages: Array) -> tuple[Array, Array]:
            return self.distances(averages / (1.0 - discounts), skill, discounts)

        if self.config.compare == "imagined":
            return distances(imagined)
        (distance, skill_distance), (change, _) = jax.jvp(distances, (expected,), (imagined - expected,))
        return distance + change, skill_distance

    def losses(
        self, params: dict[str, Params], target: dict[str, Params], num_updates: Array, steps: Sequences, key: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the sum of all losses, each with a gradient for its own network only, and the metrics."""
        config, fixed = self.config, jax.lax.stop_gradient
        discount = config.discount_at(num_updates)
        key_model, key_start, key_skill, key_imagine = jax.random.split(key, 4)

        loss_model, latent, parts = self.model.loss(params["model"], steps, key_model)
        start = fixed(jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), latent))
        if config.num_starts:
            chosen = jax.random.permutation(key_start, len(start.memory))[: config.num_starts]
            start = jax.tree.map(lambda x: x[chosen], start)

        # Imagination, and what the model and the critics say of it.
        judges = fixed({name: params[name] for name in ("model", *self.critic_names)})
        asked = self.task.skill_space.sample(key_skill, start.memory.shape[0])
        skill = self.normalize(asked)
        vector, action, std = self.imagine(judges["model"], params["actor"], start, skill, key_imagine)
        skills = jnp.broadcast_to(skill, (len(vector), *skill.shape))
        reward, goes_on = self.model.outcome(judges["model"], vector[:-1], action)
        reward, goes_on = self.bins.mean(reward), jax.nn.sigmoid(goes_on)
        feature = self.bins.mean(self.model.feature(judges["model"], vector[:-1], action))
        # Of all states, as below, where the critics learn: the compiler then evaluates them once.
        expected = self.bins.mean(self.critics(judges, vector, skills))

        # The lambda-returns of both critics, one beside the other.
        now = jnp.concatenate([reward[..., None], self.summed(feature, skill)], axis=-1)
        after_end = jnp.concatenate([jnp.zeros((len(skill), 1)), self.after_death(asked)], axis=-1)
        discounts = jnp.concatenate([jnp.array([discount]), self.skill_discounts(discount)])
        averages = lambda_returns(now, expected[1:], goes_on, after_end, discounts, config.return_mix)
        # How likely each step is to be lived, and how much it counts.
        lived = jnp.cumprod(discount * goes_on[:-1], axis=0)
        weight = fixed(jnp.concatenate([jnp.ones((1, len(skill))), lived]))

        # Policy improvement.
        value = averages[..., 0] / (1.0 - discount)
        distance, skill_distance = self.compared(averages[..., 1:], fixed(expected[:-1, :, 1:]), skill, discounts[1:])
        multiplier, loss_multiplier, of_multiplier = self.multiplier_and_loss(
            params, skill, skill_distance, num_updates, weight
        )
        entropy = (jnp.log(std) + 0.5 * math.log(2.0 * math.pi * math.e)).sum(axis=-1)
        scale = jnp.maximum(1.0, target["spread"]) if self.divides_returns else 1.0
        objective = (1.0 - multiplier) * value / scale - multiplier * distance + config.entropy_scale * entropy
        loss_actor = -(weight * objective).mean()

        # Policy evaluation: towards the lambda-returns, and not too far from the slow critics.
        logits = self.critics(params, fixed(vector), skills)[:-1]
        slow = self.bins.mean(self.critics(target, fixed(vector[:-1]), skills[:-1]))
        towards = self.bins.loss(logits, fixed(averages)) + config.slow_scale * self.bins.loss(logits, fixed(slow))
        loss_critic, loss_successor = (
            (weight[..., None] * part).sum(axis=-1).mean() for part in (towards[..., :1], towards[..., 1:])
        )
        metrics = {
            **{f"model/{name}": part for name, part in parts.items()},
            "loss/critic": loss_critic,
            "loss/successor": loss_successor,
            "loss/actor": loss_actor,
            "train/entropy": entropy.mean(),
            "train/value": value.mean(),
            **of_multiplier,
        }
        if self.divides_returns:
            metrics["train/spread"] = spread(value)
        return loss_model + loss_critic + loss_successor + loss_actor + loss_multiplier, metrics

    def update(self, state: State, steps: Sequences, key: Array) -> tuple[State, dict[str, Array]]:
        """Returns the state after one gradient step of every network, and metrics."""
        obs, feature = self.scale_obs(state.moments, steps.obs), self.normalize(steps.feature)
        steps = steps._replace(obs=obs, feature=feature)
        gradients, metrics = jax.grad(self.losses, has_aux=True)(
            state.params, state.target, state.num_updates, steps, key
        )
        updates, optimizer = self.optimizer(state.params).update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        target = followed(state.target, params, self.target_rates)
        target["spread"] = optax.incremental_update(
            metrics.get("train/spread", jnp.zeros(())), state.target["spread"], SPREAD_RATE
        )
        return State(params, target, optimizer, state.moments, state.num_updates + 1), metrics


LAPTOP = Config(
    num_envs=64,
    steps_per_iteration=4,
    updates_per_iteration=128,
    action_repeat=None,
    replay_size=300_000,
    warmup_steps=8_192,
    memory_size=128,
    latents=16,
    classes=8,
    model_width=128,
    encoder_sizes=(128, 128),
    head_sizes=(128, 128),
    num_bins=27,
    bin_limit=3.25,
    representation_scale=0.02,
    batch_size=64,
    sequence_length=16,
    num_starts=128,
    normalize_observations=True,
    feature_scale=5.0,
    compare="expected",
    actor_average_rate=0.01,
    learning_rate=3e-4,
    model_learning_rate=1e-3,
    multiplier_learning_rate=3e-3,
    shared_critics=True,
    death="apart",
    discount=None,
    feature_discount=None,
    initial_discount=None,
    discount_updates=12_000,
)
"""An hour on 2 cores; docs/recipe.md."""

DEBUG = Config(
    num_envs=16, steps_per_iteration=8, updates_per_iteration=2, replay_size=2_048, warmup_steps=256, memory_size=16,
    latents=4, classes=4, model_width=16, encoder_sizes=(16,), head_sizes=(16,), num_bins=11, bin_limit=5.0,
    batch_size=4, sequence_length=8, horizon=5, model_learning_rate=1e-3, learning_rate=3e-4,
)  # fmt: skip
"""Everything tiny."""
