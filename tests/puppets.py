"""Robots on strings for the tests of the explorer: real geometry, no physics, policies that do as they are told."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from qdac import metrics
from qdac.evaluation import TrainedPolicy
from qdac.explore import catalogue, server
from qdac.explore.jobs import Jobs
from qdac.types import Box, Circle, SkillSpace, Task

XML = """
<mujoco>
  <asset><mesh name="wedge" vertex="0 0 0  .1 0 0  0 .1 0  0 0 .1"/></asset>
  <worldbody>
    <geom type="plane" size="40 40 40"/>
    <body name="torso" pos="0 0 1">
      <freejoint/>
      <geom type="capsule" size=".1 .3" rgba=".2 .4 .6 1"/>
      <geom type="ellipsoid" size=".1 .12 .14" pos="0 0 .5"/>
      <geom type="mesh" mesh="wedge" pos=".1 0 0"/>
      <geom type="sphere" size=".2" rgba="0 0 0 0"/>
      <body name="foot"><joint/><geom type="box" size=".12 .05 .04"/></body>
      <body name="foot_left"><joint/><geom type="cylinder" size=".06 .05"/></body>
    </body>
  </worldbody>
</mujoco>
"""
EPISODE = 250
PERIOD = 25


class Poses(NamedTuple):
    pos: jax.Array
    rot: jax.Array


class Pipeline(NamedTuple):
    x: Poses


class State(NamedTuple):
    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    pipeline_state: Pipeline


class Puppet:
    """A torso that glides and two feet that are down for the share of each period that the action says."""

    dt = 0.02

    def __init__(self, size: int):
        self.observation_size = 1 + size
        self.action_size = size
        self.sys = SimpleNamespace(mj_model=mujoco.MjModel.from_xml_string(XML))

    def reset(self, rng: jax.Array) -> State:
        return self._state(jnp.zeros(()), jnp.zeros(self.action_size))

    def step(self, state: State, action: jax.Array) -> State:
        return self._state(state.obs[0] + 1, action)

    def _state(self, count: jax.Array, action: jax.Array) -> State:
        down = ((count % PERIOD + 0.5) / PERIOD < action).astype(jnp.float32)
        height = jnp.where(jnp.resize(down, 2) > 0, 0.05, 0.35)
        x = 0.03 * count
        pos = jnp.array([[x, 0, 1.0], [x, -0.15, 0], [x, 0.15, 0]]).at[1:, 2].set(height)
        rot = jnp.tile(jnp.array([1.0, 0.0, 0.0, 0.0]), (3, 1))
        is_over = (count >= 120) & (action[0] > 0.9)
        return State(jnp.append(count, down), down.sum(), is_over.astype(jnp.float32), Pipeline(Poses(pos, rot)))


class Echo:
    """The policy whose action is the skill."""

    def initial_carry(self, num: int) -> tuple:
        return ()

    def step(self, params: Any, carry: tuple, obs: jax.Array, skill: jax.Array) -> tuple[tuple, jax.Array]:
        return carry, skill * params["gain"]


def make_task(space: SkillSpace) -> Task:
    """Returns a task whose feature is which feet are down."""
    feet = tuple(f"foot {i} (share of time)" for i in range(space.size))
    names = ("heading (rad)",) if isinstance(space, Circle) else feet
    return Task(
        f"puppet_{len(names)}", Puppet(space.size), lambda state: state.obs[1:], space, threshold=0.05, d_eval=0.1,
        episode_length=EPISODE, summary="A puppet puts its feet down", feature_names=names,
    )


def make_entry(
    space: SkillSpace, label: str = "puppet/a", is_evaluated: bool = True, gain: float = 1.0
) -> catalogue.Entry:
    """Returns a puppet on show, whose policy does `gain` times what it is asked for."""
    origin = {"algo": "echo", "env_steps": 1}
    policy = TrainedPolicy(make_task(space), Echo(), {"gain": jnp.float32(gain)}, origin)
    return catalogue.make_entry(label, policy, make_table(space) if is_evaluated else None)


def make_table(space: SkillSpace) -> metrics.Evaluation:
    """Returns an evaluation in which most skills are achieved, and returns differ."""
    skills = space.grid()
    gap = 0.2 * np.abs(np.sin(5 * skills[:, :1])) * np.ones_like(skills)
    return metrics.Evaluation(
        skills, (skills + gap)[:, None], 100 * (1 + skills.sum(axis=1))[:, None], np.full((len(skills), 1), EPISODE)
    )


SQUARE, LINE = Box((0.0, 0.0), (1.0, 1.0), (10, 10)), Box((0.0,), (1.0,), (50,))
FOUR, CIRCLE = Box((0.0,) * 4, (1.0,) * 4, (5,) * 4), Circle(50)


@contextlib.contextmanager
def running(entries: Sequence[catalogue.Entry]) -> Iterator[SimpleNamespace]:
    """Serves these runs; gives the port, the address and the jobs."""
    listener = server.listen(0)
    port = listener.getsockname()[1]
    jobs = Jobs([entry.player for entry in entries])
    web = server.make_server(entries, jobs, port)
    thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]})
    jobs.start()
    thread.start()
    try:
        while not web.started:
            time.sleep(0.01)
        yield SimpleNamespace(port=port, address=f"http://127.0.0.1:{port}/", jobs=jobs)
    finally:
        web.should_exit = True
        thread.join()
        jobs.stop()
        listener.close()
