"""A trained policy in use: its actions, its rollouts, and its evaluation as the paper does it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike

from qdac import metrics, rollout
from qdac.cells import grid_cells
from qdac.config import from_dict
from qdac.errors import UserError
from qdac.progress import Progress
from qdac.report.figures import save_evaluation_figures
from qdac.report.spaces import describe_space
from qdac.runs import open_run, read_tensor_file, unflatten, write_json
from qdac.types import Array, Params, Policy, SkillSpace, Task

ROLLOUTS_PER_DEVICE = 128
"""XLA's CPU backend steps this many envs on one core fastest; an accelerator takes them in its stride."""


class Evaluator:
    """Executes any number of skills in equal chunks over all devices; compiles once."""

    def __init__(self, task: Task, policy: Policy, num_rollouts: int, devices: list | None = None):
        """`num_rollouts` bounds the chunk for evaluations that are smaller than one."""
        devices = devices or jax.devices()
        per_device = min(ROLLOUTS_PER_DEVICE, -(-num_rollouts // len(devices)))
        self.chunk_size = per_device * len(devices)
        mesh = Mesh(np.array(devices), ("rollouts",))
        self.everywhere, self.by_rollout = NamedSharding(mesh, P()), NamedSharding(mesh, P("rollouts"))
        self._execute = jax.jit(
            jax.shard_map(
                lambda params, skills, keys: rollout.execute(task, policy, params, skills, keys), mesh=mesh,
                in_specs=(P(), P("rollouts"), P("rollouts")), out_specs=P("rollouts"), check_vma=False,
            )
        )

    def __call__(
        self, params: Params, skills: np.ndarray, num_rollouts: int, seed: int,
        report: Callable[[int], None] = lambda done: None,
    ) -> metrics.Evaluation:
        """Returns `num_rollouts` episodes of each skill [S, size], the same for the same seed.

        Rollout r of skill i has its own key, whatever the chunks and devices. `report` is given the
        rollouts done after each chunk.
        """
        params = jax.device_put(params, self.everywhere)
        total = len(skills) * num_rollouts
        padded = -(-total // self.chunk_size) * self.chunk_size
        # Neighbouring skills live equally long: together, a chunk of short episodes ends early.
        asked = np.resize(np.repeat(skills, num_rollouts, axis=0), (padded, skills.shape[1]))
        fold_in = jax.vmap(jax.random.fold_in, (None, 0))
        keys = np.asarray(fold_in(jax.random.PRNGKey(seed), jnp.arange(padded)))
        chunks = []
        for start in range(0, padded, self.chunk_size):
            rows = slice(start, start + self.chunk_size)
            inputs = jax.device_put((asked[rows], keys[rows]), self.by_rollout)
            chunks.append(jax.device_get(self._execute(params, *inputs)))
            report(min(start + self.chunk_size, total))
        rollouts = jax.tree.map(lambda *parts: np.concatenate(parts)[:total], *chunks)
        return metrics.Evaluation(
            skills=skills,
            observed_skills=rollouts.observed_skill.reshape(len(skills), num_rollouts, -1),
            returns=rollouts.total_reward.reshape(len(skills), num_rollouts),
            lengths=rollouts.length.reshape(len(skills), num_rollouts).astype(np.int32),
        )


@dataclasses.dataclass(frozen=True)
class TrainedPolicy:
    """A policy and the task it was trained on. Call it for actions; made by `load`."""

    task: Task
    policy: Policy
    params: Params
    origin: Mapping[str, Any]
    """Where it comes from: task, algo, env_steps, grad_updates, wall_seconds."""

    def __call__(self, obs: ArrayLike, skill: ArrayLike) -> Array:
        """Returns the deterministic action [..., action_size] for an observation and a skill, or batches.

        Leading axes are broadcast: one skill for many observations will do. A policy with memory
        sees each call as the first step of an episode.
        """
        obs, skill = jnp.asarray(obs, jnp.float32), jnp.asarray(skill, jnp.float32)
        for name, array, size in (("obs", obs, self.task.obs_size), ("skill", skill, self.task.skill_size)):
            if array.shape[-1:] != (size,):
                raise UserError(f"{name} should be [{size}] or [..., {size}], got {list(array.shape)}")
        return self._act(self.params, obs, skill)

    @functools.cached_property
    def _act(self) -> Callable[[Params, Array, Array], Array]:
        @jax.jit
        def act(params: Params, obs: Array, skill: Array) -> Array:
            batch = jnp.broadcast_shapes(obs.shape[:-1], skill.shape[:-1])
            num = math.prod(batch)
            obs, skill = (
                jnp.broadcast_to(x, (*batch, x.shape[-1])).reshape(num, x.shape[-1]) for x in (obs, skill)
            )
            _, action = self.policy.step(params, self.policy.initial_carry(num), obs, skill)
            return action.reshape(*batch, self.task.action_size)

        return act

    @functools.cached_property
    def _single(self) -> Evaluator:
        return Evaluator(self.task, self.policy, num_rollouts=1)


def load(path: str | Path, task: str | Task | None = None) -> TrainedPolicy:
    """Returns the policy of a run folder, or of a policy.safetensors file.

    `task` is needed only where the run was given a `Task` object rather than a name; a task other
    than the one it was trained on is refused.
    """
    path = Path(path)
    if path.is_dir():
        run, path = open_run(path), path / "policy.safetensors"
        if not path.exists():
            raise UserError(
                f"{run.path} has no policy yet, it is written with the first checkpoint; "
                f"go on with `qdac train --resume {run.path}`"
            )
    tensors, metadata = read_tensor_file(path)
    asked = task.name if isinstance(task, Task) else task
    if asked not in (None, metadata["task"]):
        raise UserError(f"{path} was trained on the task {metadata['task']!r}, not on {asked!r}")
    config = from_dict(metadata["config"])
    made = task if isinstance(task, Task) else config.make_task()
    agent = config.make_agent(made)
    template = jax.eval_shape(lambda key: agent.policy_params(agent.init(key)), jax.random.PRNGKey(0))
    origin = {name: value for name, value in metadata.items() if name != "config"}
    return TrainedPolicy(made, agent, unflatten(template, tensors, str(path)), origin)


class Rollout(NamedTuple):
    """One executed episode."""

    observed_skill: np.ndarray
    """The mean feature over the episode, [skill_size]."""
    total_reward: float
    length: int


def roll_out(policy: TrainedPolicy, skill: ArrayLike, seed: int = 0) -> Rollout:
    """Returns one episode in which the policy is asked for a skill, from a reset that the seed decides."""
    skill = np.asarray(skill, np.float32)
    if skill.shape != (policy.task.skill_size,):
        raise UserError(f"skill should have {policy.task.skill_size} numbers, got shape {list(skill.shape)}")
    result = policy._single(policy.params, skill[None], 1, seed)
    return Rollout(result.observed_skills[0, 0], float(result.returns[0, 0]), int(result.lengths[0, 0]))


@dataclasses.dataclass(frozen=True)
class PolicyEvaluation(metrics.Evaluation):
    """The table of rollouts together with whose they are."""

    origin: Mapping[str, Any]
    d_eval: float
    skill_space: SkillSpace

    @property
    def summary(self) -> dict[str, Any]:
        """Returns where the policy comes from and every score, ready for JSON."""
        coverage = metrics.coverage(self, grid_cells(self.skill_space))
        return {**self.origin, **metrics.summary(self, self.d_eval), "coverage": coverage}


def evaluate(
    policy: TrainedPolicy, rollouts: int = 10, seed: int = 0, skills: ArrayLike | None = None
) -> PolicyEvaluation:
    """Returns the evaluation of a policy on its task's grid of skills, or on `skills` [S, size].

    As in the paper: deterministic actions, every rollout from its own fresh reset. Shows its progress
    on stderr.
    """
    if rollouts < 1:
        raise UserError(f"rollouts should be at least 1, got {rollouts}")
    skills = policy.task.skill_space.grid() if skills is None else skills
    skills = np.atleast_2d(np.asarray(skills, np.float32))
    if skills.shape[1:] != (policy.task.skill_size,):
        raise UserError(f"skills should be [num, {policy.task.skill_size}], got {list(skills.shape)}")
    total = len(skills) * rollouts
    evaluator = Evaluator(policy.task, policy.policy, total)
    with Progress(total, unit="rollouts") as progress:

        def report(done: int) -> None:
            progress.update(done, {}, is_evaluation=done == total)

        table = evaluator(policy.params, skills, rollouts, seed, report)
    task = policy.task
    return PolicyEvaluation(
        **vars(table), origin=policy.origin, d_eval=task.d_eval, skill_space=task.skill_space
    )


def save_evaluation(evaluation: PolicyEvaluation, task: Task, folder: str | Path) -> list[Path]:
    """Returns the files written to `folder`: evaluation.csv, evaluation.json and figures/.

    evaluation.json also says what reports need to know of the task, so that they need not make it.
    """
    table, scores = Path(folder) / "evaluation.csv", Path(folder) / "evaluation.json"
    table.parent.mkdir(parents=True, exist_ok=True)
    evaluation.save(table)
    drawn_with = {"d_eval": task.d_eval, "skill_space": describe_space(task.skill_space, task.feature_names)}
    write_json(scores, {**evaluation.summary, **drawn_with})
    return [table, scores, *save_evaluation_figures(evaluation, task, Path(folder) / "figures")]
