"""The runs on show: loaded from their folders, and described for the page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdac import metrics
from qdac.errors import UserError
from qdac.evaluation import TrainedPolicy, load
from qdac.explore.episodes import Player
from qdac.explore.scene import Scene, make_scene
from qdac.report.spaces import is_circle
from qdac.runs import print_warning
from qdac.types import SkillSpace


@dataclasses.dataclass(frozen=True)
class Entry:
    """A run on show."""

    label: str
    policy: TrainedPolicy
    scene: Scene
    player: Player
    table: metrics.Evaluation | None
    """Its evaluation on the grid of the task, where there is one."""

    @property
    def skill_space(self) -> SkillSpace:
        return self.policy.task.skill_space

    def description(self) -> dict[str, Any]:
        """Returns all that the page knows of the run, ready for JSON."""
        task, space = self.policy.task, self.skill_space
        names = [task.feature_names[i] if i < len(task.feature_names) else f"skill {i}" for i in range(space.size)]
        return {
            "label": self.label,
            "task": task.name,
            "summary": task.summary,
            "algo": self.policy.origin.get("algo", ""),
            "env_steps": self.policy.origin.get("env_steps"),
            "space": {
                "kind": "circle" if is_circle(space) else "box",
                "low": list(space.low),
                "high": list(space.high),
                "grid_shape": list(space.grid_shape),
                "names": names[:1] if is_circle(space) else names,
            },
            "d_eval": task.d_eval,
            "step_seconds": self.scene.step_seconds,
            "is_real_time": self.scene.is_real_time,
            "stride": self.player.stride,
            "num_steps": self.player.num_steps,
            "num_links": self.scene.num_links,
            "shapes": list(self.scene.shapes),
            "note": self.scene.note,
            "evaluation": None if self.table is None else _describe_table(self.table, task.d_eval),
        }


def _describe_table(table: metrics.Evaluation, d_eval: float) -> dict[str, Any]:
    """Returns d(z) and R(z) of each skill in the order of the grid; what is not finite is None."""
    return {
        "rollouts": table.returns.shape[1],
        "achieved": metrics.achieved(table, d_eval),
        "distance": _finite(metrics.skill_distances(table)),
        "performance": _finite(metrics.skill_returns(table)),
    }


def _finite(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def skill_fault(space: SkillSpace, skill: np.ndarray) -> str:
    """Returns what a skill [size] should be and is not, "" for one of the space."""
    low, high = np.array(space.low), np.array(space.high)
    slack = 1e-4 * (high - low)
    if not ((skill >= low - slack) & (skill <= high + slack)).all():
        return f"between {list(space.low)} and {list(space.high)}"
    if is_circle(space) and abs(np.linalg.norm(skill) - 1) > 1e-2:
        return "the cosine and the sine of a heading"
    return ""


def make_entry(label: str, policy: TrainedPolicy, table: metrics.Evaluation | None = None) -> Entry:
    """Returns a policy on show."""
    scene = make_scene(policy.task)
    return Entry(label, policy, scene, Player(policy, scene), table)


def open_entries(paths: Sequence[Path], warn: Callable[[str], None] = print_warning) -> list[Entry]:
    """Returns the runs of these folders or policy files, in order."""
    if not paths:
        raise UserError("name at least one run folder: qdac explore RUN [RUN ...]")
    labels = _labels(paths)
    entries = []
    for path, label in zip(paths, labels, strict=True):
        policy = load(path)
        entries.append(make_entry(label, policy, _read_table(path, policy.task.skill_space, warn)))
    return entries


def _labels(paths: Sequence[Path]) -> list[str]:
    """Returns short names that tell the runs apart and say nothing of the folders above them."""
    parts = [path.resolve().parts[1:] for path in paths]
    depth = 2
    while depth < max(map(len, parts)) and len({part[-depth:] for part in parts}) < len(set(parts)):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def _read_table(path: Path, space: SkillSpace, warn: Callable[[str], None]) -> metrics.Evaluation | None:
    """Returns the evaluation of a run on its task's grid, None where there is none that can be shown."""
    file = path / "evaluation.csv"
    if not path.is_dir() or not file.exists():
        return None
    try:
        table = metrics.Evaluation.load(file)
    except UserError as error:
        warn(f"no map of {path}: {error}")
        return None
    if table.skills.shape != space.grid().shape or not np.allclose(table.skills, space.grid(), atol=1e-4):
        warn(f"no map of {path}: evaluation.csv is of other skills than the task's grid")
        return None
    return table
