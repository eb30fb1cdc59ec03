"""The paper's scores of an evaluated policy, from one open table of rollouts. NumPy only."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from qdac.cells import Cells
from qdac.errors import UserError
from qdac.files import write_file


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a policy did when it was asked for each of S skills in R rollouts."""

    skills: np.ndarray
    """The skills asked for, [S, d]."""
    observed_skills: np.ndarray
    """The mean feature of each episode, [S, R, d]."""
    returns: np.ndarray
    """The sum of rewards of each episode, [S, R]."""
    lengths: np.ndarray
    """The env steps of each episode, [S, R]."""

    def __post_init__(self) -> None:
        num_skills, size = self.skills.shape
        rollouts = self.returns.shape[-1]
        for name, expected in (
            ("observed_skills", (num_skills, rollouts, size)),
            ("returns", (num_skills, rollouts)),
            ("lengths", (num_skills, rollouts)),
        ):
            if getattr(self, name).shape != expected:
                raise ValueError(f"{name} should be {expected}, got {getattr(self, name).shape}")

    def save(self, path: str | Path) -> None:
        """Writes one row a rollout, all or nothing, in the shortest decimals that give back the float32."""
        num_skills, rollouts = self.returns.shape
        skills = np.repeat(np.asarray(self.skills, np.float32), rollouts, axis=0)
        observed = np.asarray(self.observed_skills, np.float32).reshape(skills.shape)
        columns = {f"skill_{i}": column for i, column in enumerate(skills.T)}
        columns["rollout"] = np.tile(np.arange(rollouts), num_skills)
        columns |= {f"observed_{i}": column for i, column in enumerate(observed.T)}
        columns["return"] = np.asarray(self.returns, np.float32).ravel()
        columns["length"] = np.asarray(self.lengths, np.int32).ravel()
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        write_file(path, text.getvalue().encode())

    @classmethod
    def load(cls, path: str | Path) -> Evaluation:
        """Returns the evaluation that `save` wrote."""
        try:
            with open(path, newline="") as file:
                header, *rows = csv.reader(file)
            columns = dict(zip(header, np.array(rows, np.float64).T, strict=True))
            size = sum(name.startswith("skill_") for name in columns)
            rollouts = int(columns["rollout"].max()) + 1
            if not 1 <= rollouts <= len(rows):
                raise ValueError(f"expected rollouts from 0 on, got up to {rollouts - 1} in {len(rows)} rows")
            shape = (len(rows) // rollouts, rollouts)
            if not np.array_equal(columns["rollout"], np.tile(np.arange(rollouts), shape[0])):
                raise ValueError(f"expected rollouts 0 to {rollouts - 1} of every skill, some are missing")
            skills = np.stack([columns[f"skill_{i}"] for i in range(size)], axis=-1)
            observed = np.stack([columns[f"observed_{i}"] for i in range(size)], axis=-1)
            return cls(
                skills=skills[::rollouts].astype(np.float32),
                observed_skills=observed.reshape(*shape, size).astype(np.float32),
                returns=columns["return"].reshape(shape).astype(np.float32),
                lengths=columns["length"].reshape(shape).astype(np.int32),
            )
        except (OSError, ValueError, KeyError, OverflowError, csv.Error) as error:
            raise UserError(f"{path} is not a whole evaluation table ({error}); evaluate again") from error


def skill_distances(evaluation: Evaluation) -> np.ndarray:
    """Returns d(z), [S]: the mean over rollouts of each rollout's distance, not the distance of the mean."""
    gaps = evaluation.observed_skills.astype(np.float64) - evaluation.skills[:, None]
    return np.linalg.norm(gaps, axis=-1).mean(axis=1)


def skill_returns(evaluation: Evaluation) -> np.ndarray:
    """Returns R(z), [S]: the mean return over rollouts."""
    return evaluation.returns.mean(axis=1, dtype=np.float64)


def is_achieved(evaluation: Evaluation, d_eval: float) -> np.ndarray:
    """Returns whether d(z) < d_eval, [S]; a distance that is NaN is not achieved."""
    return skill_distances(evaluation) < d_eval


def achieved(evaluation: Evaluation, d_eval: float) -> float:
    """Returns the share of skills that are achieved."""
    return float(is_achieved(evaluation, d_eval).mean())


def distance_score(evaluation: Evaluation) -> float:
    """Returns the mean of -d(z)."""
    return float(-skill_distances(evaluation).mean())


def performance_score(evaluation: Evaluation, d_eval: float) -> float:
    """Returns the mean over all skills of R(z), where a skill that is not achieved counts 0."""
    return float(np.where(is_achieved(evaluation, d_eval), skill_returns(evaluation), 0.0).mean())


def max_return(evaluation: Evaluation, d_eval: float) -> float:
    """Returns the largest R(z) among achieved skills, NaN when none is achieved."""
    returns = skill_returns(evaluation)[is_achieved(evaluation, d_eval)]
    return float(returns.max()) if returns.size else math.nan


def coverage(evaluation: Evaluation, cells: Cells) -> float:
    """Returns the share of cells that hold the observed skill of at least one rollout, whatever was asked for."""
    found = cells.index(evaluation.observed_skills.reshape(-1, cells.size))
    return len(np.unique(found[found >= 0])) / cells.num_cells


def distance_profile(evaluation: Evaluation, thresholds: np.ndarray) -> np.ndarray:
    """Returns the share of skills with d(z) < x for each threshold x, [T]."""
    return (skill_distances(evaluation) < np.asarray(thresholds)[:, None]).mean(axis=1)


def performance_profile(
    evaluation: Evaluation, thresholds: np.ndarray, d_eval: float | None = None
) -> np.ndarray:
    """Returns the share of skills with R(z) > x, and d(z) < d_eval where given, for each threshold x, [T]."""
    above = skill_returns(evaluation) > np.asarray(thresholds)[:, None]
    if d_eval is not None:
        above &= is_achieved(evaluation, d_eval)
    return above.mean(axis=1)


def summary(evaluation: Evaluation, d_eval: float) -> dict[str, Any]:
    """Returns every score by name, ready for JSON: a score that is not a finite number is None."""
    num_skills, rollouts = evaluation.returns.shape
    scores = {
        "num_skills": num_skills,
        "rollouts_per_skill": rollouts,
        "mean_distance": -distance_score(evaluation),
        "distance_score": distance_score(evaluation),
        "achieved": achieved(evaluation, d_eval),
        "performance_score": performance_score(evaluation, d_eval),
        "max_return": max_return(evaluation, d_eval),
        "mean_return": float(skill_returns(evaluation).mean()),
        "mean_episode_length": float(evaluation.lengths.mean()),
    }
    return {name: score if math.isfinite(score) else None for name, score in scores.items()}
