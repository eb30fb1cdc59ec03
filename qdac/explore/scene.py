"""What there is to draw of a task: the shapes of its robot, and where they are in a state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdac.types import Array, EnvState, SkillSpace, Task

KINDS = {0: "plane", 2: "sphere", 3: "capsule", 4: "ellipsoid", 5: "cylinder", 6: "box", 7: "mesh"}
"""MuJoCo's numbers for the kinds of shapes that the page can draw."""
DEFAULT_COLOURS = ([0.5, 0.5, 0.5, 1.0], [0.4, 0.33, 0.26, 1.0])
"""What MuJoCo and Brax give a shape whose file names no colour; the page has a nicer one."""
STEP_SECONDS = 1 / 30
"""How long a step is shown where the env does not say how long it takes."""
NO_ROBOT = (
    "This task has no robot geometry. The ball is the feature at each step, in the skill space; "
    "the disc is the skill asked for."
)

Shape = dict[str, Any]
"""kind, link (-1: the world), position, rotation (w, x, y, z), size, colour, is_left; vertices and faces of a mesh."""


@dataclasses.dataclass(frozen=True)
class Scene:
    """The drawing of a task, without any state."""

    shapes: Sequence[Shape]
    look: Callable[[EnvState, Array], Array]
    """The poses [num_links, 7] of the links in a state, for a skill: position, then rotation (w, x, y, z)."""
    num_links: int
    step_seconds: float
    is_real_time: bool
    note: str = ""
    """A sentence for the user, where the drawing is not what they may expect."""


def make_scene(task: Task) -> Scene:
    """Returns the robot of the task's Brax system, or a plot of its feature where there is no such system."""
    seconds = getattr(task.env, "dt", None)
    timing = {"step_seconds": float(seconds or STEP_SECONDS), "is_real_time": seconds is not None}
    model = getattr(getattr(task.env, "sys", None), "mj_model", None)
    num_links = _num_links(task)
    if model is None or num_links != model.nbody - 1:
        return Scene(_feature_shapes(task.skill_space), _feature_look(task), 2, note=NO_ROBOT, **timing)
    visible = [i for i in range(model.ngeom) if model.geom_rgba[i, 3] > 0]
    shapes = [_shape(model, i) for i in visible if int(model.geom_type[i]) in KINDS]
    left_out = len(visible) - len(shapes)
    note = f"{left_out} of the {len(visible)} shapes of this robot are of a kind that is not drawn." if left_out else ""
    return Scene(shapes, _link_poses, num_links, note=note, **timing)


def _num_links(task: Task) -> int | None:
    """Returns how many links a Brax state has poses of, None where the state is not Brax's."""
    state = jax.eval_shape(task.reset, jax.random.PRNGKey(0))
    poses = getattr(getattr(state, "pipeline_state", None), "x", None)
    shape = getattr(getattr(poses, "pos", None), "shape", ())
    return shape[0] if len(shape) == 2 and hasattr(poses, "rot") else None


def _link_poses(state: EnvState, skill: Array) -> Array:
    poses = state.pipeline_state.x
    return jnp.concatenate([poses.pos, poses.rot], axis=-1)


def _shape(model: Any, index: int) -> Shape:
    """Returns geom `index` of a MuJoCo model; body 0 is the world, so link = body - 1."""
    colour = [round(float(value), 3) for value in model.geom_rgba[index]]
    body = int(model.geom_bodyid[index])
    shape: Shape = {
        "kind": KINDS[int(model.geom_type[index])],
        "link": body - 1,
        "position": _numbers(model.geom_pos[index]),
        "rotation": _numbers(model.geom_quat[index]),
        "size": _numbers(model.geom_size[index]),
        "colour": None if colour in DEFAULT_COLOURS else colour,
        "is_left": "left" in model.body(body).name,
    }
    if shape["kind"] == "mesh":
        mesh = int(model.geom_dataid[index])
        first, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
        shape["vertices"] = _numbers(model.mesh_vert[first : first + count].ravel())
        first, count = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
        shape["faces"] = model.mesh_face[first : first + count].ravel().tolist()
    return shape


def _numbers(values: np.ndarray) -> list[float]:
    return [round(float(value), 5) for value in values]


def _feature_shapes(space: SkillSpace) -> list[Shape]:
    """Returns a ball for the feature (link 0), a disc for the skill (link 1) and the board they are on."""
    still = {"position": [0.0, 0.0, 0.0], "rotation": [1.0, 0.0, 0.0, 0.0], "is_left": False}
    depth = 1.0 if space.size > 1 else 0.15
    board = still | {"position": [0.0, 0.0, -0.01]}
    return [
        {"kind": "box", "link": -1, **board, "size": [1.0, depth, 0.01], "colour": [0.87, 0.9, 0.93, 1.0]},
        {"kind": "sphere", "link": 0, **still, "size": [0.05], "colour": [0.0, 0.45, 0.7, 1.0]},
        {"kind": "cylinder", "link": 1, **still, "size": [0.09, 0.01], "colour": [0.9, 0.62, 0.0, 1.0]},
    ]


def _feature_look(task: Task) -> Callable[[EnvState, Array], Array]:
    """Returns the look that puts feature and skill where they are in the skill space, scaled to [-1, 1]."""
    size = min(task.skill_size, 3)
    ground = 1.0 if size == 3 else 0.0

    def place(value: Array, height: float) -> Array:
        shown = jnp.clip(task.skill_space.normalize(value), -1.5, 1.5)[:size]
        position = jnp.zeros(3).at[:size].set(shown).at[2].add(height + ground)
        return jnp.concatenate([position, jnp.array([1.0, 0.0, 0.0, 0.0])])

    return lambda state, skill: jnp.stack([place(task.feature(state), 0.05), place(skill, 0.01)])
