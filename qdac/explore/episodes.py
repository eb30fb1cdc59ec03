"""One skill, executed and recorded in chunks that a page can play while the next is computed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdac import rollout
from qdac.evaluation import TrainedPolicy
from qdac.explore.scene import Scene
from qdac.types import Array

CHUNK_STEPS = 100
"""Steps in a call: the first is soon there to be played, and an episode that nobody waits for soon ends."""
MAX_STEPS = 5000
"""Longer episodes are cut here, which bounds what one click can cost."""
MAX_SEED = 2**31 - 1
FRAMES_PER_SECOND = 60
"""Poses are thinned out to this where the env steps faster than a screen."""

Chunk = dict[str, Any]
"""start and steps (env steps), poses [frames, num_links, 7], features [steps, size] and rewards [steps] as
base64 of little-endian float32; in the last one, end: "terminated", "time limit" or "cut"."""


class Player:
    """Executes skills of one policy, known only as a `Policy` and a `Task`. Compiles once."""

    def __init__(self, policy: TrainedPolicy, scene: Scene):
        self.policy = policy
        self.stride = max(1, int(1 / FRAMES_PER_SECOND / scene.step_seconds))
        """Env steps from one pose that is kept to the next."""
        self.num_steps = min(policy.task.episode_length, MAX_STEPS)
        chunk_steps = max(self.stride, CHUNK_STEPS // self.stride * self.stride)
        task, agent = policy.task, policy.policy

        @jax.jit
        def start(key: Array) -> tuple:
            episode = task.reset(key), agent.initial_carry(1), jnp.ones(())
            # Strong types, as the next chunk starts from: weak ones would compile everything twice.
            return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), episode)

        @jax.jit
        def go_on(params: Any, skill: Array, episode: tuple) -> tuple[tuple, rollout.Recording]:
            return rollout.record(task, agent, params, skill, episode, chunk_steps, scene.look)

        self._start, self._go_on = start, go_on
        self._params = jax.tree.map(jnp.asarray, policy.params)
        self.is_ready = False

    def prepare(self) -> None:
        """Compiles what `play` runs: a start, and a chunk both after a start and after a chunk."""
        skill = jnp.asarray(self.policy.task.skill_space.grid()[0], jnp.float32)
        episode = self._start(jax.random.PRNGKey(0))
        for _ in range(2):
            episode, _ = self._go_on(self._params, skill, episode)
        jax.block_until_ready(episode)
        self.is_ready = True

    def play(self, skill: np.ndarray, seed: int) -> Iterator[Chunk]:
        """Yields the episode that `qdac.roll_out` gives for this skill and seed, as soon as its parts are known."""
        skill = jnp.asarray(skill, jnp.float32)
        episode = self._start(jax.random.fold_in(jax.random.PRNGKey(seed), 0))
        done = 0
        while True:
            episode, recording = self._go_on(self._params, skill, episode)
            recording = jax.device_get(recording)
            alive = int(recording.alive.sum())
            lived = min(alive, self.num_steps - done)
            chunk: Chunk = {
                "start": done,
                "steps": lived,
                "poses": _base64(recording.picture[:lived : self.stride]),
                "features": _base64(recording.feature[:lived]),
                "rewards": _base64(recording.reward[:lived]),
            }
            done += lived
            if episode[-1] == 0 and lived == alive:
                chunk["end"] = "terminated"
            elif done == self.num_steps:
                chunk["end"] = "time limit" if done == self.policy.task.episode_length else "cut"
            yield chunk
            if "end" in chunk:
                return


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()
