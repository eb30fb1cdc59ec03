"""The paper's six tasks on Brax: which robot, which feature, which skills.

Features are computed from link poses. That is exact (only the floor collides with the feet) and
avoids Brax's debug contacts, which are recomputed in every physics sub-step.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import jax.numpy as jnp
from brax import envs, math
from brax.envs.base import State, Wrapper

from qdac.types import Array, Box, Circle, Env, Task


@dataclasses.dataclass(frozen=True)
class Sphere:
    """A collision sphere (or one end of a capsule) at `centre` in the frame of link `link`."""

    link: int
    centre: tuple[float, float, float]
    radius: float

    def clearance(self, state: State) -> Array:
        """Returns the height of the sphere's lowest point above the floor, negative when it presses in."""
        pose = state.pipeline_state.x
        return (pose.pos[self.link] + math.rotate(jnp.array(self.centre), pose.rot[self.link]))[2] - self.radius


HUMANOID_FEET = ((Sphere(4, (0.0, 0.0, -0.35), 0.075),), (Sphere(6, (0.0, 0.0, -0.35), 0.075),))
"""Right, left: the feet are fused into the shins."""
ANT_FEET = (
    (Sphere(2, (0.4, 0.4, 0.0), 0.08),),
    (Sphere(4, (-0.4, 0.4, 0.0), 0.08),),
    (Sphere(6, (-0.4, -0.4, 0.0), 0.08),),
    (Sphere(8, (0.4, -0.4, 0.0), 0.08),),
)
WALKER_FEET = tuple(
    (Sphere(link, (-0.2, 0.0, 0.1), 0.06), Sphere(link, (0.0, 0.0, 0.1), 0.06)) for link in (3, 6)
)
"""Right, left: each foot is a capsule, which touches the floor when either end does."""
HUMANOID_PELVIS = 2


def feet_contact(feet: tuple[tuple[Sphere, ...], ...]) -> Callable[[State], Array]:
    """Returns the feature "1 for each foot on the ground, else 0"."""

    def feature(state: State) -> Array:
        touching = [min_clearance(foot, state) <= 0.0 for foot in feet]
        return jnp.stack(touching).astype(jnp.float32)

    return feature


def min_clearance(spheres: tuple[Sphere, ...], state: State) -> Array:
    return jnp.stack([sphere.clearance(state) for sphere in spheres]).min()


def jump(state: State) -> Array:
    """Returns half the clearance of the lower foot.

    The paper's engine reports contact points midway between the foot and the floor, and its feature
    is their lowest height: half of what a ruler would show.
    """
    (right,), (left,) = HUMANOID_FEET
    return 0.5 * min_clearance((right, left), state)[None]


def velocity(state: State) -> Array:
    """Returns the torso's velocity (x, y) in the world."""
    return state.pipeline_state.xd.vel[0, :2]


def heading(state: State) -> Array:
    """Returns (cos, sin) of the heading of the pelvis."""
    forward = math.rotate(jnp.array([1.0, 0.0, 0.0]), state.pipeline_state.x.rot[HUMANOID_PELVIS])
    return forward[:2] / jnp.maximum(jnp.linalg.norm(forward[:2]), 1e-8)


class ScaleActions(Wrapper):
    """Multiplies actions before the env sees them.

    The humanoid of the paper's engine took actions in [-1, 1] as torques that saturate at 0.4, and
    charged for them unsaturated; today's Brax maps [-1, 1] to [-0.4, 0.4] first. A factor 1 / 0.4
    undoes the mapping, so that dynamics, observations and control cost are the paper's.
    """

    def __init__(self, env: Any, scale: float):
        super().__init__(env)
        self.scale = scale

    def step(self, state: State, action: Array) -> State:
        return self.env.step(state, action * self.scale)


@dataclasses.dataclass(frozen=True)
class Spec:
    """A row of the paper's task table."""

    robot: str
    feature: Callable[[State], Array]
    skill_space: Box | Circle
    threshold: float
    d_eval: float
    feature_names: tuple[str, ...]
    summary: str


SPECS = {
    "humanoid_feet_contact": Spec(
        "humanoid", feet_contact(HUMANOID_FEET), Box((0.0,) * 2, (1.0,) * 2, (50, 50)), 0.01, 0.1,
        ("right foot contact (share of time)", "left foot contact (share of time)"),
        "Humanoid runs forward with each foot on the ground a chosen share of the time",
    ),
    "ant_feet_contact": Spec(
        "ant", feet_contact(ANT_FEET), Box((0.0,) * 4, (1.0,) * 4, (5,) * 4), 0.1, 0.3,
        tuple(f"foot {i} contact (share of time)" for i in (1, 2, 3, 4)),
        "Ant runs forward with each of four feet on the ground a chosen share of the time",
    ),
    "walker2d_feet_contact": Spec(
        "walker2d", feet_contact(WALKER_FEET), Box((0.0,) * 2, (1.0,) * 2, (50, 50)), 0.01, 0.1,
        ("right foot contact (share of time)", "left foot contact (share of time)"),
        "Walker runs forward with each foot on the ground a chosen share of the time",
    ),
    "humanoid_jump": Spec(
        "humanoid", jump, Box((0.0,), (0.25,), (50,)), 0.0025, 0.025,
        ("half the clearance of the lower foot (m)",),
        "Humanoid runs forward keeping half the clearance of its lower foot at a chosen mean",
    ),
    "ant_velocity": Spec(
        "ant", velocity, Box((-5.0,) * 2, (5.0,) * 2, (50, 50)), 0.1, 1.0,
        ("velocity x (m/s)", "velocity y (m/s)"),
        "Ant moves at a chosen velocity in the plane, and is rewarded for moving forward",
    ),
    "humanoid_angle": Spec(
        "humanoid", heading, Circle(50), 0.06, 0.6, ("heading (rad)",),
        "Humanoid runs forward with its body turned to a chosen heading",
    ),
}


SHORT_HORIZONS = {"walker2d": 20, "ant": 12, "humanoid": 33}
"""Measured (docs/recipe.md): 0.16, 0.6 and 0.5 s of the robot's time."""


ACTION_REPEATS = {"walker2d": 4, "ant": 1, "humanoid": 2}
"""0.032, 0.05 and 0.03 s of the robot's time."""


def reference_return(robot: str) -> float | None:
    """Returns what SAC reached with a robot, from sac_returns.json, which names the run of each."""
    runs = json.loads(resources.files("qdac.tasks").joinpath("sac_returns.json").read_text())
    return runs[robot]["mean_return"] if robot in runs else None


def make(
    name: str, *, backend: str = "spring", episode_length: int = 1000, **env_options: Any
) -> Task:
    """Returns one of the paper's tasks; `env_options` go to the Brax env (e.g. reset_noise_scale).

    What SAC reached is known for the env as it is: with other options there is nothing to compare with.
    """
    spec = SPECS[name]
    is_known = (backend, episode_length, env_options) == ("spring", 1000, {})
    env: Env = envs.get_environment(spec.robot, backend=backend, **env_options)
    if spec.robot == "humanoid":
        env = ScaleActions(env, 1.0 / 0.4)
    return Task(
        name=name, env=env, feature_fn=spec.feature, skill_space=spec.skill_space,
        threshold=spec.threshold, d_eval=spec.d_eval, episode_length=episode_length,
        summary=spec.summary, feature_names=spec.feature_names,
        short_horizon=SHORT_HORIZONS[spec.robot], action_repeat=ACTION_REPEATS[spec.robot],
        reference_return=reference_return(spec.robot) if is_known else None,
    )
