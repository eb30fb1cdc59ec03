"""What a figure has to know of a task, in evaluation.json and back: skill space, feature names, d_eval."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qdac import metrics
from qdac.metrics import Evaluation
from qdac.types import Box, Circle, SkillSpace


@dataclasses.dataclass(frozen=True)
class TaskView:
    """The part of a task that figures are drawn with; a `Task` has the same fields."""

    name: str
    skill_space: SkillSpace
    feature_names: tuple[str, ...]
    d_eval: float


def is_circle(space: SkillSpace) -> bool:
    """Returns whether skills are headings: two numbers, (cos, sin), on a grid with a single axis."""
    return space.size == 2 and len(space.grid_shape) == 1


def describe_space(space: SkillSpace, feature_names: Sequence[str]) -> dict[str, Any]:
    """Returns a skill space as JSON, the `skill_space` of evaluation.json."""
    return {
        "kind": "circle" if is_circle(space) else "box",
        "low": [float(value) for value in space.low],
        "high": [float(value) for value in space.high],
        "grid_shape": [int(number) for number in space.grid_shape],
        "feature_names": [str(name) for name in feature_names],
    }


def task_view(task: str, saved: Mapping[str, Any], evaluation: Evaluation) -> tuple[TaskView, str | None]:
    """Returns what evaluation.json says of the task, and how what it does not say was found out, if so.

    Files from before `skill_space` and `d_eval` were saved have neither: the grid is then read off the skills
    asked for, and d_eval off the share achieved. Raises ValueError where nothing fits.
    """
    note = None
    if "skill_space" in saved and "d_eval" in saved:
        space, names = _read_space(saved["skill_space"])
        d_eval = float(saved["d_eval"])
    else:
        space, names = infer_space(evaluation.skills), ()
        d_eval = infer_d_eval(evaluation, saved.get("achieved"))
        note = f"evaluation.json holds no skill space; its grid {space.grid_shape} and d_eval {d_eval:g} were inferred"
    if space.grid().shape != evaluation.skills.shape or not np.allclose(space.grid(), evaluation.skills, atol=1e-5):
        raise ValueError(f"the skills in evaluation.csv are not the grid {space.grid_shape} of the skill space")
    return TaskView(task, space, names, d_eval), note


def _read_space(saved: Mapping[str, Any]) -> tuple[SkillSpace, tuple[str, ...]]:
    try:
        names = tuple(map(str, saved["feature_names"]))
        shape = tuple(map(int, saved["grid_shape"]))
        if saved["kind"] == "circle":
            (resolution,) = shape
            return Circle(resolution), names
        return Box(tuple(map(float, saved["low"])), tuple(map(float, saved["high"])), shape), names
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"skill_space in evaluation.json cannot be read ({error!r})") from error


def infer_space(skills: np.ndarray) -> SkillSpace:
    """Returns the skill space whose grid `skills` [S, d] is; ValueError where there is none."""
    circle = Circle(len(skills))
    if circle.grid().shape == skills.shape and np.allclose(circle.grid(), skills, atol=1e-5):
        return circle
    axes = [np.unique(column) for column in skills.T]
    shape = tuple(map(len, axes))
    if math.prod(shape) != len(skills) or min(shape) < 2:
        raise ValueError(f"the {len(skills)} skills in evaluation.csv are not a grid")
    bounds = [_bounds(axis) for axis in axes]
    return Box(tuple(low for low, _ in bounds), tuple(high for _, high in bounds), shape)


def _bounds(centres: np.ndarray) -> tuple[float, float]:
    """Returns the ends of an axis with equal cells at `centres`, without the noise of float32."""
    span = float(centres[-1] - centres[0])
    half = span / (len(centres) - 1) / 2
    digits = 4 - math.floor(math.log10(span))
    return round(float(centres[0]) - half, digits) + 0.0, round(float(centres[-1]) + half, digits) + 0.0


def infer_d_eval(evaluation: Evaluation, achieved: float | None) -> float:
    """Returns the shortest decimal number that splits the skills into the share achieved and the others."""
    distances = np.sort(metrics.skill_distances(evaluation))
    count = round(len(distances) * achieved) if isinstance(achieved, float) else 0
    if not 0 < count < len(distances) or not np.isfinite(distances[: count + 1]).all():
        raise ValueError("evaluation.json holds no d_eval, and the share achieved does not tell it")
    below, above = distances[count - 1 : count + 1]
    for digits in range(17):
        candidate = math.floor(above * 10**digits) / 10**digits
        if below < candidate <= above:
            return candidate
    raise ValueError("evaluation.json holds no d_eval, and two skills are too close to tell it")
