"""Executes skills as the paper does and returns the table of rollouts. Knows a policy and a task, no algorithm."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from qdac import rollout
from qdac.metrics import Evaluation
from qdac.types import Params, Policy, Task

ROLLOUTS_PER_DEVICE = 128
"""XLA's CPU backend steps this many envs on one core fastest; an accelerator takes them in its stride."""


class Evaluator:
    """Executes any number of skills in equal chunks over all devices; compiles once."""

    def __init__(self, task: Task, policy: Policy, num_rollouts: int = 0, devices: list | None = None):
        """`num_rollouts` bounds the chunk for evaluations that are smaller than one."""
        self.task, self.policy = task, policy
        devices = devices or jax.devices()
        per_device = ROLLOUTS_PER_DEVICE
        if num_rollouts:
            per_device = min(per_device, -(-num_rollouts // len(devices)))
        self.chunk_size = per_device * len(devices)
        mesh = Mesh(np.array(devices), ("rollouts",))
        self.everywhere, self.by_rollout = NamedSharding(mesh, P()), NamedSharding(mesh, P("rollouts"))
        self._execute = jax.jit(
            jax.shard_map(
                lambda params, skills, keys: rollout.execute(task, policy, params, skills, keys),
                mesh=mesh, in_specs=(P(), P("rollouts"), P("rollouts")), out_specs=P("rollouts"), check_vma=False,
            )
        )

    def __call__(
        self, params: Params, skills: np.ndarray, num_rollouts: int, seed: int,
        report: Callable[[int, int], None] = lambda done, total: None,
    ) -> Evaluation:
        """Returns `num_rollouts` episodes of each skill [S, size], the same for the same seed.

        Rollout r of skill i has its own key, whatever the chunks and devices. `report(done, total)`
        is called after each chunk.
        """
        params = jax.device_put(params, self.everywhere)
        total = len(skills) * num_rollouts
        # Neighbouring skills live equally long: keeping them together lets a chunk of short episodes end early.
        asked = np.repeat(np.asarray(skills, np.float32), num_rollouts, axis=0)
        padded = -(-total // self.chunk_size) * self.chunk_size
        asked = np.resize(asked, (padded, asked.shape[1]))
        keys = np.asarray(jax.vmap(jax.random.fold_in, (None, 0))(jax.random.PRNGKey(seed), jnp.arange(padded)))
        chunks = []
        for start in range(0, padded, self.chunk_size):
            rows = slice(start, start + self.chunk_size)
            inputs = jax.device_put((asked[rows], keys[rows]), self.by_rollout)
            chunks.append(jax.device_get(self._execute(params, *inputs)))
            report(min(start + self.chunk_size, total), total)
        rollouts = jax.tree.map(lambda *parts: np.concatenate(parts)[:total], *chunks)
        return Evaluation(
            skills=np.asarray(skills, np.float32),
            observed_skills=rollouts.observed_skill.reshape(len(skills), num_rollouts, -1),
            returns=rollouts.total_reward.reshape(len(skills), num_rollouts),
            lengths=rollouts.length.reshape(len(skills), num_rollouts).astype(np.int32),
        )


def evaluate(
    task: Task, policy: Policy, params: Params, *, skills: np.ndarray | None = None, num_rollouts: int = 10,
    seed: int = 0, report: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Returns the evaluation of a policy on the task's grid of skills, or on `skills`."""
    skills = task.skill_space.grid() if skills is None else np.atleast_2d(skills)
    evaluator = Evaluator(task, policy, len(skills) * num_rollouts)
    return evaluator(params, skills, num_rollouts, seed, report)
