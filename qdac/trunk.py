"""The trunk: collect on all devices, store, update. Shared by every algorithm that learns from stored steps.

Envs are sharded over all devices. The learner runs on all of them where they are accelerators, the
batch sharded; on CPU it runs on one host device, whose matrix products use every core by themselves.
With several processes all devices take part in everything.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from qdac import hosts, rollout
from qdac import replay as replay_lib
from qdac.device import even_share, learner_options
from qdac.errors import UserError
from qdac.types import Array, Task, Transition


@dataclasses.dataclass(frozen=True)
class TrunkConfig:
    """What every algorithm on the trunk has: how much it collects, keeps and learns from, how far it looks ahead."""

    is_on_policy: ClassVar[bool] = False
    """Whether nothing but the round just collected is kept and learned from."""
    skill_steps: ClassVar[int] = 0
    """Whether, and after how many steps on average, an episode goes on with another command."""
    num_envs: int = 256
    """Envs stepped in parallel."""
    steps_per_iteration: int = 1
    """Actions in each env between two rounds of updates."""
    updates_per_iteration: int = 256
    """Gradient updates in a round."""
    batch_size: int = 256
    """Transitions, or sequences of them, in a mini-batch."""
    replay_size: int = 1_000_000
    """Transitions kept."""
    replay_parts: int = 1
    """Parts that they are kept in. When all are full, the newest steps have one, and the others hold a uniform sample
    of all that was collected; with 1, what is forgotten is the oldest."""
    warmup_steps: int = 0
    """Env steps collected before the first update."""
    uniform_warmup: bool = False
    """Collect the warm-up with uniform random actions rather than the initial policy."""
    action_repeat: int | None = 1
    """Env steps that an action lasts, in training and whenever the policy acts; none for the task's own. All that is
    counted in actions, rounds, horizons and windows, then takes longer."""
    discount: float | None = 0.99
    """gamma; none for five times the task's short horizon."""
    initial_discount: float | None = 0.0
    """Where gamma starts; 0 to keep it throughout, none for the task's short horizon, which shows sooner what an
    action does."""
    discount_updates: int = 0
    """Updates over which gamma moves from its start, its horizon 1 / (1 - gamma) geometrically."""

    def __post_init__(self) -> None:
        for name in ("num_envs", "steps_per_iteration", "batch_size", "replay_size", "replay_parts", "action_repeat"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise UserError(f"{name} should be positive, got {getattr(self, name)}")
        for name in ("updates_per_iteration", "warmup_steps"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} should not be negative, got {getattr(self, name)}")
        for name in ("discount", "initial_discount"):
            if not 0 <= (getattr(self, name) or 0.0) < 1:
                raise UserError(f"{name} should be in [0, 1), got {getattr(self, name)}")
        check_schedule(self, "initial_discount", "discount_updates")
        least = self.num_envs * (self.window - self.steps_per_iteration) * (self.action_repeat or 1)
        if self.warmup_steps < least:
            raise UserError(
                f"warmup_steps should be at least {least}, to fill a window of {self.window} steps of "
                f"{self.num_envs} envs, got {self.warmup_steps}"
            )

    @property
    def window(self) -> int:
        """Returns the consecutive steps that a row of a mini-batch is made of."""
        return 1

    def for_task(self, task: Task) -> Self:
        """Returns the configuration with everything that depends on the task written out."""
        config = self if self.action_repeat else dataclasses.replace(self, action_repeat=task.action_repeat)
        short = config.short_horizon(task)
        horizons = {"discount": 5.0 * short, "initial_discount": short}
        unset = [name for name in horizons if getattr(config, name) is None]
        return dataclasses.replace(config, **{name: 1.0 - 1.0 / horizons[name] for name in unset})

    def short_horizon(self, task: Task) -> float:
        """Returns the task's short horizon in actions."""
        return task.short_horizon / self.action_repeat

    def discount_at(self, num_updates: Array) -> Array | float:
        """Returns gamma, or where it is on its way there: one value for all updates of an iteration."""
        if not self.initial_discount:
            return self.discount
        num_updates = num_updates // self.updates_per_iteration * self.updates_per_iteration
        remaining = jnp.clip(1.0 - num_updates / self.discount_updates, 0.0, 1.0)
        widening = (1.0 - self.initial_discount) / (1.0 - self.discount)
        return 1.0 - (1.0 - self.discount) * widening**remaining


def check_schedule(config: TrunkConfig, start: str, updates: str) -> None:
    """Raises a UserError unless both fields of a schedule are given, or neither."""
    values = getattr(config, start), getattr(config, updates)
    is_used = values[0] is None or values[0] > 0
    if not min(values[0] or 0, values[1]) >= 0 or is_used != (values[1] > 0):
        raise UserError(f"{start} and {updates} go together, both positive or both 0, got {values[0]} and {values[1]}")


class TrunkState(NamedTuple):
    """Everything a run is made of: saved and restored as a whole."""

    agent: Any
    replay: replay_lib.Replay
    episodes: rollout.Episodes
    key: Array
    env_steps: np.int64


class Trunk:
    """Runs an agent on a task; one whose replay holds a single round learns on-policy.

    An agent has `config` (a `TrunkConfig`) and `commands`; `init`, `observe`, `draw` and `update` to learn; and
    `collector_params`, `initial_carry` and `explore` to act.
    """

    def __init__(self, agent: Any, task: Task, devices: list | None = None, learner_devices: list | None = None):
        self.agent, self.task, self.config = agent, task, agent.config
        config = self.config
        devices = devices or jax.devices()
        if jax.process_count() > 1:
            learner_devices = devices
        devices = even_share(devices, config.num_envs)
        if learner_devices is None:
            learner_devices = devices[:1] if devices[0].platform == "cpu" else devices
        if config.batch_size % len(learner_devices) or config.num_envs % len(learner_devices):
            raise UserError(
                f"batch_size and num_envs should be multiples of the {len(learner_devices)} learner devices, "
                f"got {config.batch_size} and {config.num_envs}"
            )
        self.steps_per_iteration = config.num_envs * config.steps_per_iteration * config.action_repeat
        columns = max(config.replay_size // config.num_envs, config.window + config.steps_per_iteration)
        multiple = config.steps_per_iteration * config.replay_parts
        self.capacity = -(-columns // multiple) * multiple

        actors, learners = Mesh(np.array(devices), ("envs",)), Mesh(np.array(learner_devices), ("batch",))
        self.actor_everywhere = NamedSharding(actors, P())
        self.by_env = NamedSharding(actors, P("envs"))
        self.learner_everywhere = NamedSharding(learners, P())
        self.replay_by_env = NamedSharding(learners, P("batch"))
        self.batch_rows = NamedSharding(learners, P(None, "batch"))
        self.collect = self._jit_collect(actors, agent.explore)
        self.collect_uniform = self._jit_collect(actors, explore_uniformly)
        everywhere = replay_lib.Replay(*[self.learner_everywhere] * len(replay_lib.Replay._fields))
        self.replay_sharding = everywhere._replace(storage=self.replay_by_env, returns=self.replay_by_env)
        self._insert = jax.jit(
            self._observe_and_insert, donate_argnums=(0, 1),
            out_shardings=(self.learner_everywhere, self.replay_sharding),
        )
        self._learn = jax.jit(
            self._insert_and_update, donate_argnums=(0, 1),
            out_shardings=(self.learner_everywhere, self.replay_sharding, self.learner_everywhere),
            compiler_options=learner_options(learner_devices[0]),
        )
        self._start = jax.jit(
            functools.partial(rollout.start_episodes, task, agent, num_envs=config.num_envs),
            out_shardings=self.by_env,
        )
        self._init_replay = jax.jit(self._empty_replay, out_shardings=self.replay_sharding)

    def _jit_collect(self, mesh: Mesh, explore: rollout.Explore):
        def collect(params, episodes):
            episodes, transitions, stats = rollout.collect(
                self.task, self.agent, explore, params, episodes, self.config.steps_per_iteration,
                self.config.skill_steps, self.config.action_repeat,
            )
            return episodes, transitions, jax.tree.map(lambda x: x[None], stats)

        return jax.jit(
            jax.shard_map(collect, mesh=mesh, in_specs=(P(), P("envs")), out_specs=P("envs"), check_vma=False),
            donate_argnums=1,
        )

    def _empty_replay(self, key: Array) -> replay_lib.Replay:
        task, config = self.task, self.config
        zeros = lambda *shape: jnp.zeros(shape)  # noqa: E731
        example = Transition(
            obs=zeros(task.obs_size), action=zeros(task.action_size), reward=zeros(),
            feature=zeros(task.skill_size), next_obs=zeros(task.obs_size), terminated=zeros(),
            truncated=zeros(), skill=zeros(self.agent.commands.size), episode=jnp.zeros((), jnp.int32),
        )
        return replay_lib.init_replay(example, config.num_envs, self.capacity, config.replay_parts, key)

    def _observe_and_insert(self, agent_state: Any, replay: replay_lib.Replay, steps: Transition):
        return self.agent.observe(agent_state, steps.obs), replay_lib.insert(replay, steps)

    def _insert_and_update(self, agent_state: Any, replay: replay_lib.Replay, steps: Transition, key: Array):
        """Returns agent and replay after the new steps and one round of updates; metrics are means."""
        config, collector = self.config, agent_state
        agent_state, replay = self._observe_and_insert(agent_state, replay, steps)
        key_sample, key_update = jax.random.split(key)
        keys = jax.random.split(key_sample, config.updates_per_iteration)
        batches = jax.vmap(functools.partial(self.agent.draw, collector, replay))(keys)
        batches = jax.lax.with_sharding_constraint(batches, self.batch_rows)
        keys = jax.random.split(key_update, config.updates_per_iteration)
        agent_state, metrics = jax.lax.scan(
            lambda state, inputs: self.agent.update(state, *inputs), agent_state, (batches, keys)
        )
        return agent_state, replay, jax.tree.map(jnp.mean, metrics)

    def init(self, key: Array) -> TrunkState:
        """Returns the state of a new run."""
        key_agent, key_episodes, key_replay, key = jax.random.split(key, 4)
        agent_state = jax.jit(self.agent.init, out_shardings=self.learner_everywhere)(key_agent)
        return TrunkState(agent_state, self._init_replay(key_replay), self._start(key_episodes), key, np.int64(0))

    def template(self) -> TrunkState:
        """Returns the shapes and dtypes of a state, for `Run.load_checkpoint`."""
        return jax.eval_shape(self.init, jax.random.PRNGKey(0))._replace(env_steps=np.int64(0))

    def place(self, state: TrunkState) -> TrunkState:
        """Returns a restored state on the devices it belongs to."""
        return TrunkState(
            agent=hosts.put(state.agent, self.learner_everywhere),
            replay=hosts.put(state.replay, self.replay_sharding),
            episodes=hosts.put(state.episodes, self.by_env),
            key=jax.device_put(state.key),
            env_steps=np.int64(state.env_steps),
        )

    def iterate(self, state: TrunkState) -> tuple[TrunkState, dict[str, Array], rollout.EpisodeStats]:
        """Returns the state after one round of collection and updates, the update metrics (none while
        warming up) and the episodes that ended. Consumes `state`: its buffers are reused."""
        is_warmup = state.env_steps < self.config.warmup_steps
        is_uniform = is_warmup and self.config.uniform_warmup
        actor = jax.device_put(self.agent.collector_params(state.agent), self.actor_everywhere)
        collect = self.collect_uniform if is_uniform else self.collect
        episodes, steps, stats = collect(actor, state.episodes)
        steps = jax.device_put(steps, self.replay_by_env)
        if is_warmup or not self.config.updates_per_iteration:
            agent_state, replay = self._insert(state.agent, state.replay, steps)
            metrics, key = {}, state.key
        else:
            key, key_learn = jax.random.split(state.key)
            agent_state, replay, metrics = self._learn(state.agent, state.replay, steps, key_learn)
        env_steps = state.env_steps + self.steps_per_iteration
        return TrunkState(agent_state, replay, episodes, key, env_steps), metrics, stats


def explore_uniformly(params: Any, memory: Any, obs: Array, command: Array, noise: Array) -> tuple[Any, Array]:
    """Returns uniform actions: erf(x / sqrt 2) of a standard normal x is uniform in [-1, 1]."""
    return memory, jax.lax.erf(noise / math.sqrt(2.0))
