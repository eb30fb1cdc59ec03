"""The six tasks against the paper's engine and tables, their features on known poses, and custom tasks."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Clock, clock_task

from qdac.errors import UserError
from qdac.tasks import check_task, locomotion, make_task
from qdac.types import Box, Circle

RECORDED = np.load(Path(__file__).parent / "data" / "brax_0.9.1_spring_trajectories.npz", allow_pickle=False)
"""40 steps of each robot in the paper's engine without reset noise, and each task's features on them."""

UNIT_SQUARE = Box((0.0, 0.0), (1.0, 1.0), (50, 50))
TABLE = {  # obs_size, action_size, skill space, threshold, d_eval
    "humanoid_feet_contact": (244, 17, UNIT_SQUARE, 0.01, 0.1),
    "ant_feet_contact": (27, 8, Box((0.0,) * 4, (1.0,) * 4, (5,) * 4), 0.1, 0.3),
    "walker2d_feet_contact": (17, 6, UNIT_SQUARE, 0.01, 0.1),
    "humanoid_jump": (244, 17, Box((0.0,), (0.25,), (50,)), 0.0025, 0.025),
    "ant_velocity": (27, 8, Box((-5.0, -5.0), (5.0, 5.0), (50, 50)), 0.1, 1.0),
    "humanoid_angle": (244, 17, Circle(50), 0.06, 0.6),
}


class Replayed(NamedTuple):
    """A recording played in our engine: every field has the reset state first."""

    obs: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    features: dict[str, np.ndarray]
    contact: Any
    """Brax's own report of the contacts, which it gives only with debug=True."""


@functools.cache
def replayed(robot: str) -> Replayed:
    """Returns the robot's recorded actions replayed, with the features of all its tasks: compiles once."""
    names = [name for name in locomotion.SPECS if name.startswith(robot)]
    tasks = [make_task(name, reset_noise_scale=0.0, debug=True) for name in names]

    def observe(state):
        features = {task.name: task.feature(state) for task in tasks}
        return Replayed(state.obs, state.reward, state.done, features, state.pipeline_state.contact)

    def step(state, action):
        state = tasks[0].step(state, action)
        return state, observe(state)

    @jax.jit
    def play(key, actions):
        state = tasks[0].reset(key)
        _, steps = jax.lax.scan(step, state, actions)
        return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), observe(state), steps)

    return jax.device_get(play(jax.random.PRNGKey(0), RECORDED[f"{robot}/actions"]))


@pytest.mark.parametrize("robot", ["walker2d", "ant", "humanoid"])
def test_observations_and_rewards_are_those_of_the_papers_engine(robot):
    ours = replayed(robot)
    np.testing.assert_allclose(ours.obs, RECORDED[f"{robot}/obs"], rtol=0, atol=1e-3)
    np.testing.assert_allclose(ours.rewards[1:], RECORDED[f"{robot}/rewards"], rtol=0, atol=1e-3)
    np.testing.assert_array_equal(ours.dones[1:], RECORDED[f"{robot}/dones"])


@pytest.mark.parametrize("name", TABLE)
def test_features_are_those_of_the_papers_engine(name):
    ours = replayed(name.partition("_")[0]).features[name]
    np.testing.assert_allclose(ours, RECORDED[f"{name}/features"], rtol=0, atol=1e-3)
    assert np.ptp(ours, axis=0).max() > 0.02, "a feature that never changes proves nothing"


@pytest.mark.parametrize("robot, links", [("walker2d", (3, 6)), ("ant", (2, 4, 6, 8)), ("humanoid", (4, 6))])
def test_feet_contacts_are_those_brax_reports(robot, links):
    contact = replayed(robot).contact
    is_touching = [
        (contact.dist[step, contact.link_idx[1][step] == link] <= 0.0).any()
        for step in range(41) for link in links
    ]  # fmt: skip
    features = replayed(robot).features[f"{robot}_feet_contact"]
    np.testing.assert_array_equal(features, np.reshape(is_touching, features.shape))


def test_jump_is_the_lowest_contact_point_brax_reports():
    ours = replayed("humanoid")
    lowest = ours.contact.pos[..., 2].min(axis=1)
    np.testing.assert_allclose(ours.features["humanoid_jump"][:, 0], lowest, atol=1e-6)


def test_names_and_summaries_cover_the_papers_six_tasks():
    assert sorted(locomotion.SPECS) == sorted(TABLE)
    assert all(spec.summary for spec in locomotion.SPECS.values())


@pytest.mark.parametrize("name", TABLE)
def test_task_has_the_papers_numbers(name):
    task = make_task(name)
    numbers = (task.obs_size, task.action_size, task.skill_space, task.threshold, task.d_eval)
    assert numbers == TABLE[name]
    assert task.name == name and task.episode_length == 1000


def test_options_reach_task_and_env():
    task = make_task("walker2d_feet_contact", episode_length=7, reset_noise_scale=0.25)
    assert task.episode_length == 7 and task.env._reset_noise_scale == 0.25
    check_task(task)


def test_grids_are_cell_centres():
    shapes = {name: row[2].grid().shape for name, row in TABLE.items()}
    assert shapes == {
        "humanoid_feet_contact": (2500, 2), "ant_feet_contact": (625, 4), "walker2d_feet_contact": (2500, 2),
        "humanoid_jump": (50, 1), "ant_velocity": (2500, 2), "humanoid_angle": (50, 2),
    }  # fmt: skip
    # 2 x 3 cells of [0, 2] x [-3, 3]: the last axis runs fastest.
    grid = Box((0.0, -3.0), (2.0, 3.0), (2, 3)).grid()
    np.testing.assert_allclose(grid, [[0.5, -2], [0.5, 0], [0.5, 2], [1.5, -2], [1.5, 0], [1.5, 2]])
    # Four arcs of the circle: their middles are the diagonals, from -135 degrees on.
    half = math.sqrt(0.5)
    np.testing.assert_allclose(Circle(4).grid(), [[-half, -half], [half, -half], [half, half], [-half, half]])


def assert_uniform(samples: np.ndarray, low: float, high: float) -> None:
    """Asserts that the samples fill [low, high] evenly: chi-square over 10 bins, 9 degrees, p = 0.001."""
    assert low <= samples.min() and samples.max() <= high
    counts, _ = np.histogram(samples, 10, (low, high))
    expected = len(samples) / 10
    assert (np.square(counts - expected) / expected).sum() < 27.9


def test_box_samples_are_uniform():
    space = Box((-5.0, 0.0), (5.0, 0.25), (50, 50))
    samples = np.asarray(space.sample(jax.random.PRNGKey(0), 10_000))
    assert samples.shape == (10_000, 2)
    for column, low, high in zip(samples.T, space.low, space.high, strict=True):
        assert_uniform(column, low, high)
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.04


def test_circle_samples_are_uniform_in_angle():
    samples = np.asarray(Circle().sample(jax.random.PRNGKey(0), 10_000))
    np.testing.assert_allclose(np.linalg.norm(samples, axis=1), 1.0, atol=1e-6)
    assert_uniform(np.arctan2(samples[:, 1], samples[:, 0]), -math.pi, math.pi)


def test_box_normalizes_to_plus_minus_one():
    space = Box((0.0, -5.0), (0.25, 5.0), (5, 5))
    skills = jnp.array([[0.0, -5.0], [0.25, 5.0], [0.125, 2.5]])
    np.testing.assert_allclose(space.normalize(skills), [[-1, -1], [1, 1], [0, 0.5]], atol=1e-6)


def test_opposite_is_the_farthest_skill():
    np.testing.assert_array_equal(UNIT_SQUARE.opposite(jnp.array([[0.2, -0.7]])), [[-1, 1]])
    np.testing.assert_allclose(Circle().opposite(jnp.array([[0.6, -0.8]])), [[-0.6, 0.8]])
    np.testing.assert_allclose(Circle().normalize(jnp.array([[0.6, -0.8]])), [[0.6, -0.8]])


@pytest.mark.parametrize(
    "low, high, grid_shape", [((), (), ()), ((0.0,), (1.0, 2.0), (5,)), ((0.0, 1.0), (1.0, 1.0), (5, 5))]
)
def test_box_refuses_bounds_that_are_none(low, high, grid_shape):
    with pytest.raises(ValueError, match="Box needs"):
        Box(low, high, grid_shape)


def posed(num_links: int, heights: dict[int, float], rotations: dict[int, tuple[float, ...]] | None = None):
    """Returns a state with links at these heights and (w, x, y, z) rotations; the others at 9 m, upright."""
    pos, rot = np.zeros((num_links, 3)), np.tile([1.0, 0.0, 0.0, 0.0], (num_links, 1))
    pos[:, 2] = 9.0
    for link, height in heights.items():
        pos[link, 2] = height
    for link, rotation in (rotations or {}).items():
        rot[link] = rotation
    pose = SimpleNamespace(pos=jnp.array(pos), rot=jnp.array(rot))
    motion = SimpleNamespace(vel=jnp.arange(3.0 * num_links).reshape(num_links, 3))
    return SimpleNamespace(pipeline_state=SimpleNamespace(x=pose, xd=motion))


def about(axis: str, degrees: float) -> tuple[float, ...]:
    """Returns the quaternion (w, x, y, z) of a rotation about one axis."""
    half = math.radians(degrees) / 2
    return (math.cos(half), *(math.sin(half) * (axis == name) for name in "xyz"))


def feature(name: str, *pose) -> np.ndarray:
    return np.asarray(locomotion.SPECS[name].feature(posed(*pose)))


def test_humanoid_feet_are_spheres_below_the_shins():
    # Upright, the lowest point of a foot is 0.35 + 0.075 below its shin.
    assert feature("humanoid_feet_contact", 11, {4: 0.424, 6: 0.426}).tolist() == [1, 0]
    assert feature("humanoid_feet_contact", 11, {4: 0.426, 6: 0.424}).tolist() == [0, 1]
    # Lying, it is only its radius below.
    lying = {4: about("y", 90)}
    assert feature("humanoid_feet_contact", 11, {4: 0.074, 6: 9.0}, lying).tolist() == [1, 0]
    assert feature("humanoid_feet_contact", 11, {4: 0.076, 6: 9.0}, lying).tolist() == [0, 0]


def test_jump_is_half_the_clearance_of_the_lower_foot():
    np.testing.assert_allclose(feature("humanoid_jump", 11, {4: 0.825, 6: 0.625}), [0.5 * 0.2], atol=1e-6)
    np.testing.assert_allclose(feature("humanoid_jump", 11, {4: 0.405, 6: 0.625}), [0.5 * -0.02], atol=1e-6)


def test_heading_is_that_of_the_pelvis():
    np.testing.assert_allclose(feature("humanoid_angle", 11, {}), [1, 0], atol=1e-6)
    turned = {0: about("z", 45), 2: about("z", 120)}
    np.testing.assert_allclose(feature("humanoid_angle", 11, {}, turned), [-0.5, math.sqrt(0.75)], atol=1e-6)
    # Leaning forward leaves the heading as it is; a pelvis that points straight down has none.
    np.testing.assert_allclose(feature("humanoid_angle", 11, {}, {2: about("y", 60)}), [1, 0], atol=1e-6)
    assert np.isfinite(feature("humanoid_angle", 11, {}, {2: about("y", 90)})).all()


@pytest.mark.parametrize("foot, link", [(0, 2), (1, 4), (2, 6), (3, 8)])
def test_ant_feet_are_in_the_order_of_their_links(foot, link):
    expected = np.eye(4)[foot].tolist()
    assert feature("ant_feet_contact", 9, {link: 0.079}).tolist() == expected
    assert feature("ant_feet_contact", 9, {link: 0.081}).tolist() == [0, 0, 0, 0]


def test_ant_velocity_is_that_of_the_torso():
    assert feature("ant_velocity", 9, {}).tolist() == [0, 1]


def test_walker_foot_touches_with_either_end():
    # Upright, both ends of the capsule are 0.1 above the link's origin with radius 0.06.
    assert feature("walker2d_feet_contact", 7, {3: -0.041, 6: -0.039}).tolist() == [1, 0]
    # Pitched by 90 degrees, the ends are 0.2 above, or below, the link's origin, and level with it.
    for degrees, height in ((90, 0.059), (-90, 0.259)):
        pitched = {6: about("y", degrees)}
        assert feature("walker2d_feet_contact", 7, {6: height}, pitched).tolist() == [0, 1]
        assert feature("walker2d_feet_contact", 7, {6: height + 0.002}, pitched).tolist() == [0, 0]


def test_humanoid_actions_reach_the_env_scaled():
    class Echo:
        def step(self, state, action):
            return action

    env = locomotion.ScaleActions(Echo(), 2.5)
    np.testing.assert_allclose(env.step(None, jnp.array([0.4, -1.0])), [1.0, -2.5])


def test_unknown_task_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'walker2d_feet_contact'"):
        make_task("walker_feet_contact")


def test_unknown_option_is_named():
    with pytest.raises(UserError, match="resett_noise"):
        make_task("ant_velocity", resett_noise=0.0)


CUSTOM = clock_task(3)
NOT_A_TASK = 7


def make_custom(**options):
    return dataclasses.replace(CUSTOM, **options)


def test_custom_task_is_found_by_module_and_name():
    assert make_task(f"{__name__}:CUSTOM") is CUSTOM
    assert make_task(f"{__name__}:make_custom", episode_length=5).episode_length == 5
    assert make_task(CUSTOM) is CUSTOM


@pytest.mark.parametrize(
    "path, message",
    [
        ("no_such_module:task", "no module 'no_such_module'"),
        (":task", "expected a task as my_module:my_task, got ':task'"),
        (".module:task", "expected a task as my_module:my_task, got '.module:task'"),
        (f"{__name__}:no_such_task", "has no 'no_such_task'"),
        (f"{__name__}:dict", "has no 'dict'"),
        (f"{__name__}:Box.missing", "has no 'Box.missing'"),
        ("builtins:dict", "expected a qdac.Task, got dict"),
    ],
)
def test_custom_task_that_is_not_there(path, message):
    with pytest.raises(UserError, match=message):
        make_task(path)


class Returning(Clock):
    """A clock that gives other states than it should: `at_reset`, `after_step`."""

    def __init__(self, at_reset: Callable = lambda state: state, after_step: Callable = lambda state: state):
        super().__init__()
        self.at_reset, self.after_step = at_reset, after_step

    def reset(self, rng):
        return self.at_reset(super().reset(rng))

    def step(self, state, action):
        return self.after_step(super().step(super().reset(jax.random.PRNGKey(0)), action))


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"env": Returning(at_reset=lambda state: state._replace(obs=jnp.zeros(3)))},
            r"state.obs at reset should be \(2,\), got \(3,\)",
        ),
        (
            {"env": Returning(after_step=lambda state: state._replace(obs=jnp.zeros(3)))},
            r"state.obs after step should be \(2,\), got \(3,\)",
        ),
        (
            {"env": Returning(after_step=lambda state: state._replace(reward=jnp.zeros(1)))},
            r"state.reward should be \(\), got \(1,\)",
        ),
        (
            {"env": Returning(after_step=lambda state: state._replace(done=jnp.zeros(1)))},
            r"state.done should be \(\), got \(1,\)",
        ),
        (
            {"env": Returning(after_step=lambda state: state._replace(done=state.done > 0))},
            r"state.done after step should be float32\(\), got bool\(\)",
        ),
        (
            {"env": Returning(after_step=lambda state: SimpleNamespace(**state._asdict()))},
            "cannot be traced: ",
        ),
        (
            {"env": Returning(at_reset=lambda state: jnp.zeros(3) + jnp.zeros(2))},
            "cannot be traced: .*incompatible shapes",
        ),
        ({"feature_fn": lambda state: state.obs}, r"feature\(state\) should be \(1,\), got \(2,\)"),
        ({"feature_fn": lambda state: state.missing}, "cannot be traced: .*missing"),
        ({"skill_space": UNIT_SQUARE}, r"feature\(state\) should be \(2,\), got \(1,\)"),
        ({"threshold": 0.0}, "threshold should be positive, got 0.0"),
        ({"d_eval": math.nan}, "d_eval should be positive, got nan"),
        ({"episode_length": 0}, "episode_length should be at least 1, got 0"),
        ({"short_horizon": 1}, "short_horizon should be at least 2 steps, got 1"),
    ],
)
def test_check_task_says_what_does_not_fit(changes, message):
    check_task(CUSTOM)
    with pytest.raises(UserError, match="task 'clock': .*" + message):
        check_task(dataclasses.replace(CUSTOM, **changes))


def test_reference_returns_are_those_of_the_runs_they_name():
    root = Path(__file__).parents[1]
    returns = json.loads((root / "qdac" / "tasks" / "sac_returns.json").read_text())
    assert set(returns) == {spec.robot for spec in locomotion.SPECS.values()}
    for robot, entry in returns.items():
        evaluation = json.loads((root / entry["run"] / "evaluation.json").read_text())
        assert (evaluation["algo"], evaluation["mean_return"]) == ("sac", entry["mean_return"]), robot
    task = make_task("walker2d_feet_contact")
    assert task.reference_return == returns["walker2d"]["mean_return"]
    assert make_task("walker2d_feet_contact", episode_length=500).reference_return is None
