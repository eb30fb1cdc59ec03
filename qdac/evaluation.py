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

from qdac import hosts, metrics, rollout
from qdac.cells import grid_cells
from qdac.config import from_dict
from qdac.errors import UserError, check_seed
from qdac.files import explained, write_json
from qdac.progress import Progress
from qdac.report.figures import save_evaluation_figures
from qdac.report.spaces import describe_space
from qdac.runs import open_run, read_tensor_file, unflatten
from qdac.types import Array, Params, Policy, SkillSpace, Task

ROUND_STEPS = 12
"""Steps between two looks at which episodes have ended: few, so that envs do not idle, yet more than resets cost, and
a multiple of what actions usually last, so that all are asked for the next one together."""
ROLLOUTS_PER_DEVICE = 128
"""XLA's CPU backend steps this many envs on one core fastest; an accelerator takes them in its stride."""


class Evaluator:
    """Executes skills with as many envs as are fastest, over all devices. Compiles once for a number of rollouts."""

    def __init__(self, task: Task, policy: Policy, devices: list | None = None):
        mesh = Mesh(np.array(devices or jax.devices()), ("rollouts",))
        self.num_devices = mesh.size
        self.everywhere, self.by_rollout = NamedSharding(mesh, P()), NamedSharding(mesh, P("rollouts"))

        def start(keys: Array) -> rollout.Queue:
            return rollout.start_queue(task, policy, keys, min(ROLLOUTS_PER_DEVICE, len(keys)))

        def advance(params: Params, skills: Array, keys: Array, queue: rollout.Queue) -> tuple[rollout.Queue, Array]:
            queue = rollout.advance_queue(task, policy, params, skills, keys, queue, ROUND_STEPS)
            return queue, rollout.num_remaining(queue)[None]

        rows = P("rollouts")
        self._start = jax.jit(jax.shard_map(start, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
        self._advance = jax.jit(
            jax.shard_map(advance, mesh=mesh, in_specs=(P(), rows, rows, rows), out_specs=rows, check_vma=False),
            donate_argnums=3,
        )

    def __call__(
        self, params: Params, skills: np.ndarray, num_rollouts: int, seed: int,
        report: Callable[[int], None] = lambda done: None,
    ) -> metrics.Evaluation:
        """Returns the evaluation of `num_rollouts` episodes of each skill [S, size], the same for the same seed."""
        rollouts = self.execute(params, skills, num_rollouts, seed, report)
        return metrics.Evaluation(skills, rollouts.observed_skill, rollouts.total_reward, rollouts.length)

    def execute(
        self, params: Params, skills: np.ndarray, num_rollouts: int, seed: int,
        report: Callable[[int], None] = lambda done: None,
    ) -> rollout.Rollouts:
        """Returns `num_rollouts` episodes of each of S skills, or of what else the policy is told, [S, num_rollouts].

        Rollout r of skill i has its own key, however many envs and devices share the work. `report` is given
        the rollouts done so far.
        """
        params = jax.device_put(params, self.everywhere)
        total = len(skills) * num_rollouts
        padded = -(-total // self.num_devices) * self.num_devices
        # Neighbouring skills live equally long: dealt out in turn, they keep all devices busy to the end.
        order = np.arange(padded).reshape(-1, self.num_devices).T.ravel()
        asked = np.repeat(skills, num_rollouts, axis=0)[order % total]
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.PRNGKey(seed), order)
        asked, keys = jax.device_put((asked, keys), self.by_rollout)
        queue, left = self._start(keys), total
        while left:
            queue, remaining = self._advance(params, asked, keys, queue)
            left = int(hosts.read(remaining).sum())
            report(max(total - left, 0))
        inverse = np.argsort(order)[:total]
        rollouts = jax.tree.map(
            lambda rows: rows[inverse].reshape(len(skills), num_rollouts, *rows.shape[1:]), hosts.read(queue.results)
        )
        return rollouts._replace(length=rollouts.length.astype(np.int32))


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
        sees each call as the first step of an episode. Scores are of actions that last for `action_repeat` env steps.
        """
        sizes = {"obs": self.task.obs_size, "skill": self.task.skill_size}
        obs, skill = _numbers("obs", obs, jnp), _numbers("skill", skill, jnp)
        for (name, size), array in zip(sizes.items(), (obs, skill), strict=True):
            if array.shape[-1:] != (size,):
                raise UserError(f"{name} should be [{size}] or [..., {size}], got {list(array.shape)}")
        try:
            jnp.broadcast_shapes(obs.shape[:-1], skill.shape[:-1])
        except ValueError:
            raise UserError(
                f"obs and skill should have leading axes that broadcast, got {list(obs.shape)} and {list(skill.shape)}"
            ) from None
        return self._act(self.params, obs, skill)

    @property
    def action_repeat(self) -> int:
        """Returns the env steps that an action lasts where the policy was trained and is evaluated."""
        return self.policy.config.action_repeat

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
        return Evaluator(self.task, self.policy)


def _numbers(name: str, values: ArrayLike, numpy: Any) -> Any:
    """Returns the values as an array of NumPy or of JAX, or raises a UserError if they are none."""
    try:
        return numpy.asarray(values, np.float32)
    except (TypeError, ValueError):
        raise UserError(f"{name} should be an array of numbers, got {str(values):.80}") from None


def load(path: str | Path, task: str | Task | None = None) -> TrainedPolicy:
    """Returns the policy of a run folder, or of a policy.safetensors file.

    `task` is needed only where the run was given a `Task` object rather than a name; a task other
    than the one it was trained on is refused.
    """
    path = Path(path)
    if path.is_dir():
        run, path = open_run(path), path / "policy.safetensors"
        task = task or run.config.get("task")
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
    skill = _numbers("skill", skill, np)
    if skill.shape != (policy.task.skill_size,):
        raise UserError(f"skill should have {policy.task.skill_size} numbers, got shape {list(skill.shape)}")
    check_seed(seed)
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
    check_seed(seed)
    skills = policy.task.skill_space.grid() if skills is None else skills
    skills = np.atleast_2d(_numbers("skills", skills, np))
    if skills.shape[1:] != (policy.task.skill_size,) or not len(skills):
        raise UserError(f"skills should be [num, {policy.task.skill_size}], got {list(skills.shape)}")
    total = len(skills) * rollouts
    evaluator = Evaluator(policy.task, policy.policy)
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
    with explained(folder, "create the folder"):
        table.parent.mkdir(parents=True, exist_ok=True)
    evaluation.save(table)
    drawn_with = {"d_eval": task.d_eval, "skill_space": describe_space(task.skill_space, task.feature_names)}
    write_json(scores, {**evaluation.summary, **drawn_with})
    figures = Path(folder) / "figures"
    with explained(figures, "write the figures to"):
        return [table, scores, *save_evaluation_figures(evaluation, task, figures)]
