"""How close to the machine's limits training runs: every figure and what it is compared to, in one run.

Machines are noisy, so both sides of every ratio are measured in turns and the best of each counts.
"""

from __future__ import annotations

import dataclasses
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from qdac.agents import get_algorithm
from qdac.config import default_config
from qdac.device import learner_options
from qdac.evaluation import Evaluator
from qdac.tasks import make_task
from qdac.trunk import Trunk
from qdac.types import Task

RAW_ENVS = 256
RAW_STEPS = 20
EVALUATED = 1024
"""Rollouts of an evaluation: 4 for each env of two cores. When they run out, envs idle, more than in a full one."""
UPDATE_ROWS = 512
"""Rows of the updates whose arithmetic is measured at two widths, or as near as whole batches come."""
SMALL_REPLAY = 10_000
LARGE_REPLAY = 1_000_000


def run(
    algo: str = "qdac", task: str = "walker2d_feet_contact", preset: str = "laptop", seconds: float = 8.0,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Returns the speed of collection, update and training of an algorithm on a task, each beside its limit.

    `seconds` is spent on each comparison. Collection is compared with plain Brax, an update with the
    machine's matrix-multiply peak and with QDAC's, training with what collection and updates take on their own.
    The peak of the memory is that of training alone, with a full replay of LARGE_REPLAY transitions.
    """
    made = dataclasses.replace(make_task(task), reference_return=0.0)
    config = default_config(algo, task, preset).agent.for_task(made)
    warmup_steps = config.num_envs * max(config.window - config.steps_per_iteration, 0) * config.action_repeat
    if not config.is_on_policy:
        config = dataclasses.replace(config, replay_size=LARGE_REPLAY, warmup_steps=warmup_steps)

    def make_agent(**changes: Any) -> Any:
        return get_algorithm(algo).make_agent(dataclasses.replace(config, **changes), made)

    agent = make_agent()
    trunk = Trunk(agent, made)

    report(f"compiling {task} …")
    state = trunk.init(jax.random.PRNGKey(0))
    state = _fill(trunk, state)._replace(env_steps=np.int64(warmup_steps))
    state, _, _ = trunk.iterate(state)
    jax.block_until_ready(state.agent)
    first_step_seconds = time.time() - psutil.Process().create_time()
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    report("collection beside plain Brax …")
    collect = _Collection(trunk, state, rounds=-(-RAW_STEPS // config.steps_per_iteration))
    raw_time, collect_time = _in_turns((_raw_brax(made), collect), seconds)
    raw_rate = RAW_ENVS * RAW_STEPS / raw_time
    collect_rate = collect.rounds * trunk.steps_per_iteration / collect_time

    report("updates beside matrix multiplication …")
    updates = {}
    for width in (256, 512) if hasattr(config, "hidden_sizes") else ():
        batch_size = config.batch_size * max(UPDATE_ROWS // agent.num_rows, 1)
        sized = make_agent(hidden_sizes=(width, width), batch_size=batch_size)
        updates[f"update_{width}"] = _update_beside_peak(sized, trunk, state.replay, seconds)
    own = _update_beside_peak(agent, trunk, state.replay, seconds)
    beside_qdac = _update_beside_qdac(agent, trunk, state.replay, preset, seconds) if algo != "qdac" else {}

    report("training beside its parts, and a small replay beside a large one …")
    training = _Training(trunk, collect.state(state))
    update_round = _UpdateRound(agent, trunk, training.state.replay)
    parts = (training, _Collection(trunk, training.state, copy=True), update_round)
    train_time, collect_time, round_time = _in_turns(parts, 2 * seconds)
    limit_time = collect_time + round_time
    of_replay = {}
    if not config.is_on_policy:
        small_trunk = Trunk(make_agent(replay_size=SMALL_REPLAY), made)
        small_state = small_trunk.init(jax.random.PRNGKey(0))._replace(env_steps=np.int64(warmup_steps))
        small = _Training(small_trunk, small_trunk.iterate(small_state)[0])
        large_time, small_time = _in_turns((training, small), seconds)
        of_replay["large_replay_over_small"] = round(large_time / small_time, 3)

    report("evaluation beside collection …")
    collect = _Collection(trunk, training.state, collect.rounds, copy=True)
    evaluate = _Evaluation(made, agent, collect.actor)
    evaluate_time, collect_again_time = _in_turns((evaluate, collect), seconds)
    evaluate_rate = evaluate.steps / evaluate_time
    collect_again_rate = collect.rounds * trunk.steps_per_iteration / collect_again_time
    return {
        "algo": algo,
        "task": task,
        "preset": preset,
        "devices": [device.device_kind for device in jax.devices()],
        "cores": psutil.cpu_count(),
        "first_step_seconds": round(first_step_seconds, 1),
        "raw_brax_steps_per_second": round(raw_rate),
        "collection_steps_per_second": round(collect_rate),
        "collection_over_raw_brax": round(collect_rate / raw_rate, 4),
        "evaluation_steps_per_second": round(evaluate_rate),
        "evaluation_mean_episode_length": round(evaluate.steps / evaluate.num, 1),
        "evaluation_over_collection": round(evaluate_rate / collect_again_rate, 4),
        **updates,
        "update": own,
        **beside_qdac,
        "env_steps_per_second": round(trunk.steps_per_iteration / train_time),
        "updates_per_second": round(config.updates_per_iteration / train_time, 1),
        "limit_env_steps_per_second": round(trunk.steps_per_iteration / limit_time),
        "training_over_limit": round(limit_time / train_time, 4),
        **of_replay,
        "peak_memory_bytes": peak_bytes,
    }


def _in_turns(functions: tuple[Callable[[], Any], ...], seconds: float) -> list[float]:
    """Returns the least time of each function, after a call to compile, all run in turns."""
    for function in functions:
        jax.block_until_ready(function())
    best = [float("inf")] * len(functions)
    end = time.perf_counter() + seconds
    rounds = 0
    while time.perf_counter() < end or rounds < 3:
        for i, function in enumerate(functions):
            start = time.perf_counter()
            jax.block_until_ready(function())
            best[i] = min(best[i], time.perf_counter() - start)
        rounds += 1
    return best


def _fill(trunk: Trunk, state: Any) -> Any:
    """Returns the state with a replay that counts as full, all its pages touched, where it is."""

    def touch(storage: Any) -> Any:
        touched = jax.tree.map(lambda x: (x + 1e-3).astype(x.dtype), storage)
        return touched._replace(terminated=storage.terminated, truncated=storage.truncated)

    storage = jax.jit(touch, donate_argnums=0, out_shardings=trunk.replay_by_env)(state.replay.storage)
    is_full = jnp.asarray(trunk.capacity, jnp.int32)
    return state._replace(replay=state.replay._replace(storage=storage, num_seen=is_full))


def _raw_brax(task: Any) -> Callable[[], Any]:
    """Returns a function that takes RAW_STEPS steps of RAW_ENVS envs the plain way, on one device."""
    env = getattr(task.env, "env", task.env)
    device = jax.devices()[0]
    keys = jax.device_put(jax.random.split(jax.random.PRNGKey(0), RAW_ENVS), device)
    step = jax.jit(jax.vmap(env.step))
    holder = {"state": jax.jit(jax.vmap(env.reset))(keys)}
    action = jax.device_put(
        jax.random.uniform(jax.random.PRNGKey(1), (RAW_ENVS, env.action_size), minval=-1.0), device
    )

    def steps() -> Any:
        for _ in range(RAW_STEPS):
            holder["state"] = step(holder["state"], action)
        return holder["state"]

    return steps


class _Collection:
    """Rounds of collection, one dispatched after the other, going on from call to call."""

    def __init__(self, trunk: Trunk, state: Any, rounds: int = 1, copy: bool = False):
        self.trunk, self.rounds = trunk, rounds
        self.actor = jax.device_put(trunk.agent.collector_params(state.agent), trunk.actor_everywhere)
        self.actor = jax.tree.map(jnp.copy, self.actor)
        self.episodes = jax.tree.map(jnp.copy, state.episodes) if copy else state.episodes

    def __call__(self) -> Any:
        for _ in range(self.rounds):
            self.episodes, steps, _ = self.trunk.collect(self.actor, self.episodes)
        return steps

    def state(self, state: Any) -> Any:
        """Returns the training state with the episodes as they are now."""
        return state._replace(episodes=self.episodes)


class _Evaluation:
    """The same rollouts of the policy at each call, counted in steps lived."""

    def __init__(self, task: Task, policy: Any, params: Any):
        self.evaluator, self.params, self.num = Evaluator(task, policy), params, EVALUATED
        self.skills = np.resize(task.skill_space.grid(), (self.num, task.skill_size))
        self.steps = 0

    def __call__(self) -> None:
        self.steps = int(self.evaluator(self.params, self.skills, num_rollouts=1, seed=0).lengths.sum())


class _Training:
    """One round of training as `qdac train` runs it, going on from call to call."""

    def __init__(self, trunk: Trunk, state: Any):
        self.trunk, self.state = trunk, state

    def __call__(self) -> Any:
        self.state, metrics, stats = self.trunk.iterate(self.state)
        return jax.device_get((metrics, stats))


class _UpdateRound:
    """As many updates as a training round has, on one batch drawn before: floating-point work alone."""

    def __init__(self, agent: Any, trunk: Trunk, replay: Any, num: int = 0):
        self.num = num or agent.config.updates_per_iteration
        key = jax.random.PRNGKey(0)
        self.state = jax.jit(agent.init, out_shardings=trunk.learner_everywhere)(key)
        self.batch = jax.jit(agent.draw)(self.state, replay, key)
        self.operations = matrix_operations(agent.update, self.state, self.batch, key)
        self.keys = jax.random.split(key, self.num)

        def updates(state: Any, batch: Any, keys: Any) -> Any:
            return jax.lax.scan(lambda state, key: agent.update(state, batch, key), state, keys)

        options = learner_options(jax.devices()[0])
        jitted = jax.jit(updates, donate_argnums=0, compiler_options=options)
        self.compiled = jitted.lower(self.state, self.batch, self.keys).compile()

    def __call__(self) -> Any:
        self.state, metrics = self.compiled(self.state, self.batch, self.keys)
        return metrics


def matrix_operations(function: Callable[..., Any], *arguments: Any) -> float:
    """Returns the floating-point operations of all matrix products of a function, however often its loops run them."""

    def count(jaxpr: Any) -> float:
        total = 0.0
        for equation in jaxpr.eqns:
            inner = sum(count(part) for part in _programs(equation.params))
            if equation.primitive.name == "scan":
                inner *= equation.params["length"]
            elif equation.primitive.name == "dot_general":
                (summed, _), _ = equation.params["dimension_numbers"]
                left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
                inner = 2.0 * math.prod(out) * math.prod(left[axis] for axis in summed)
            total += inner
        return total

    return count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _programs(parameters: dict[str, Any]) -> Iterator[Any]:
    """Yields the programs that a step of another one runs."""
    for value in parameters.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield part


def _update_beside_qdac(agent: Any, trunk: Trunk, replay: Any, preset: str, seconds: float) -> dict[str, Any]:
    """Returns the time and the operations of an update beside those of QDAC's with the same preset."""
    task = trunk.task
    qdac = get_algorithm("qdac").make_agent(default_config("qdac", task.name, preset).agent, task)
    skill = jnp.zeros((*replay.storage.reward.shape, task.skill_size))
    updates = (
        _UpdateRound(agent, trunk, replay, num=8),
        _UpdateRound(qdac, trunk, replay._replace(storage=replay.storage._replace(skill=skill)), num=8),
    )
    own_time, qdac_time = _in_turns(updates, seconds)
    return {
        "update_time_over_qdac": round(own_time / qdac_time, 3),
        "update_operations_over_qdac": round(updates[0].operations / updates[1].operations, 3),
    }


def _update_beside_peak(agent: Any, trunk: Trunk, replay: Any, seconds: float) -> dict[str, Any]:
    """Returns one update's time and rate beside the peak of a large matrix product in the same minute."""
    update = _UpdateRound(agent, trunk, replay, num=8)
    size = 2048
    matrix = jax.device_put(np.ones((size, size), np.float32), trunk.learner_everywhere)
    multiply = jax.jit(lambda a: a @ a)
    peak_time, update_time = _in_turns((lambda: multiply(matrix), update), seconds)
    peak = 2 * size**3 / peak_time / 1e9
    rate = update.operations * update.num / update_time / 1e9
    return {
        "hidden_sizes": list(getattr(agent.config, "hidden_sizes", None) or agent.config.head_sizes),
        "rows": agent.num_rows,
        "ms": round(1e3 * update_time / update.num, 2),
        "gflops": round(rate, 1),
        "peak_gflops": round(peak, 1),
        "share_of_peak": round(rate / peak, 4),
    }
