"""The archive that a run fills from all policies it meets, for algorithms whose policies are not told skills.

A latent or one of several policies is told to the policy, and which skill comes of it is seen only when it is
executed. As in the paper's appendix, what policies showed during training makes an archive: the best behaviour of
each cell, with the command and the step of the policy that showed it. The run folder keeps those policies, so that
every cell can be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdac import hosts
from qdac.archive import Archive, empty_archive, load_archive
from qdac.cells import Centroids
from qdac.errors import UserError, check_seed
from qdac.evaluation import Evaluator, PolicyEvaluation, TrainedPolicy, load
from qdac.metrics import Evaluation
from qdac.progress import Progress
from qdac.runs import read_tensor_file, unflatten, write_tensor_file
from qdac.types import Array, Params, Task

SEED = 2
FEW, MANY = 32, 256
"""Elites of one policy are executed by at least so many, and beyond the second in whole multiples of it."""


class Told:
    """An agent as a `Policy` that takes commands in place of skills."""

    def __init__(self, agent: Any):
        self.agent = agent
        self.initial_carry = agent.initial_carry

    def step(self, params: Params, carry: Any, obs: Array, command: Array) -> tuple[Any, Array]:
        return self.agent.hold(carry, lambda: self.agent.act(params, obs, command))


class Elites:
    """The archive of a run in progress."""

    def __init__(self, agent: Any, task: Task, num: int):
        self.evaluator = Evaluator(task, Told(agent))
        self.agent, self.num = agent, num
        # The cells of the grid, and what is beyond its edges: a behaviour out there belongs to the cell next to it.
        cells = Centroids(task.skill_space.grid().astype(np.float64))
        self.archive = empty_archive(cells, _example(agent))

    def commands(self, step: int) -> np.ndarray:
        """Returns what to tell the policy of a step: fresh commands, of envs evenly spaced from a random one on."""
        num_envs = self.agent.config.num_envs
        key_first, *keys = jax.random.split(jax.random.fold_in(jax.random.PRNGKey(SEED), step), self.num + 1)
        first = jax.random.randint(key_first, (), 0, num_envs)
        envs = (first + jnp.arange(self.num) * num_envs // self.num) % num_envs
        draw = jax.vmap(lambda key, env: self.agent.commands.draw(key, env, 1)[0])
        return np.asarray(draw(jnp.stack(keys), envs))

    def add(self, params: Params, origin: Mapping[str, Any], folder: Path) -> None:
        """Executes some commands, and keeps what is best in its cell; the policy too, if it showed any of that."""
        step = origin["env_steps"]
        commands = self.commands(step)
        result = self.evaluator.execute(params, commands, 1, SEED)
        contents = {"command": commands, "step": np.full(len(commands), step, np.int64)}
        self.archive = self.archive.add(result.observed_skill[:, 0], result.total_reward[:, 0], contents)
        hosts.by_first(self._save, params, origin, folder)

    def _save(self, params: Params, origin: Mapping[str, Any], folder: Path) -> None:
        step = origin["env_steps"]
        if (self.archive.contents["step"][self.archive.is_filled] == step).any():
            (folder / "policies").mkdir(exist_ok=True)
            write_tensor_file(_policy_path(folder, step), params, dict(origin))
        self.archive.save(folder / "archive.safetensors")

    @property
    def tree(self) -> dict[str, Any]:
        """Returns what a checkpoint holds of it."""
        return {"skills": self.archive.skills, "returns": self.archive.returns, "contents": self.archive.contents}

    def restore(self, tree: dict[str, Any], folder: Path) -> None:
        """Goes back to what a checkpoint held, in the folder too."""
        self.archive = Archive(self.archive.cells, **tree)
        hosts.by_first(self.archive.save, folder / "archive.safetensors")


def _example(agent: Any) -> dict[str, Any]:
    """Returns what replays an elite: the command, and the step of the policy that it was told to."""
    return {"command": np.zeros(agent.commands.size, np.float32), "step": np.int64(0)}


def _policy_path(folder: Path, step: int) -> Path:
    return folder / "policies" / f"{step:012d}.safetensors"


def open_elites(path: str | Path, task: str | Task | None = None) -> tuple[Archive, TrainedPolicy]:
    """Returns the archive of a run folder and its last policy; `task` as in `load`."""
    path = Path(path)
    if not (path / "archive.safetensors").exists():
        raise UserError(
            f"expected a run folder with an archive.safetensors, got {path}; smerl, reverse_smerl and domino fill one, "
            "from the first row of metrics.csv on"
        )
    policy = load(path, task)
    return load_archive(path / "archive.safetensors", _example(policy.policy)), policy


def evaluate_elites(
    path: str | Path, rollouts: int = 10, seed: int = 0, task: str | Task | None = None
) -> tuple[PolicyEvaluation, Task]:
    """Returns the evaluation of a run's archive: each skill of the grid by the elite observed nearest to it."""
    if rollouts < 1:
        raise UserError(f"rollouts should be at least 1, got {rollouts}")
    check_seed(seed)
    archive, policy = open_elites(path, task)
    task = policy.task
    skills = task.skill_space.grid()
    cells = archive.nearest(skills)
    steps = archive.contents["step"][cells]
    evaluator = Evaluator(task, Told(policy.policy))
    parts, places, done = [], [], 0
    with Progress(len(skills) * rollouts, unit="rollouts") as progress:
        for step in np.unique(steps):
            rows = np.flatnonzero(steps == step)
            policy_path = _policy_path(Path(path), step)
            params = unflatten(policy.params, read_tensor_file(policy_path)[0], str(policy_path))
            # Few sizes to compile for.
            size = min(1 << (len(rows) - 1).bit_length(), -(-len(rows) // MANY) * MANY)
            padded = np.resize(rows, max(size, FEW))
            result = evaluator.execute(params, archive.contents["command"][cells[padded]], rollouts, seed)
            parts.append([values[: len(rows)] for values in result])
            places.append(rows)
            done += len(rows) * rollouts
            progress.update(done, {}, is_evaluation=done == len(skills) * rollouts)
    order = np.argsort(np.concatenate(places))
    table = Evaluation(skills, *(np.concatenate(values)[order] for values in zip(*parts, strict=True)))
    origin = {**policy.origin, "algo": f"{policy.origin['algo']}_archive"}
    return PolicyEvaluation(**vars(table), origin=origin, d_eval=task.d_eval, skill_space=task.skill_space), task
