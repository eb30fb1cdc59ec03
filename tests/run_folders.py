"""Run folders made of numbers, not of training, for the tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from qdac import metrics
from qdac.metrics import Evaluation
from qdac.report.spaces import describe_space
from qdac.types import Box, SkillSpace

PLANE = Box((0.0, 0.0), (1.0, 1.0), (4, 3))
NAMES = ("first (m)", "second (m)")
D_EVAL = 0.1


def make_evaluation(space: SkillSpace = PLANE, missed: int = 1, level: float = 100.0, rollouts: int = 2) -> Evaluation:
    """Returns an evaluation in which the first `missed` skills fail and the return grows from `level` by 1 a skill."""
    skills = space.grid()
    observed = np.repeat(skills[:, None], rollouts, axis=1) + np.float32(0.01)
    observed[:missed] += 0.5
    returns = np.repeat(level + np.arange(len(skills), dtype=np.float32)[:, None], rollouts, axis=1)
    return Evaluation(skills, observed, returns, np.full(returns.shape, 1000))


def write_csv(path: Path, columns: dict[str, Any]) -> None:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")


def make_run(
    folder: Path, seed: int = 0, algo: str = "qdac", task: str = "point", *, agent: dict | None = None,
    preset: str = "laptop", num_rows: int = 3, space: SkillSpace = PLANE, is_evaluated: bool = True, **evaluation: Any,
) -> Path:  # fmt: skip
    """Returns a run folder as training and evaluation write it, without checkpoints and policy."""
    folder.mkdir(parents=True)
    config = {
        "algo": algo, "task": task, "preset": preset, "agent": agent or {"discount": 0.99, "batch_size": 128},
        "seed": seed, "backend": None, "episode_length": None,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"format": 1, "config": config}))
    (folder / "system.json").write_text(json.dumps({"cpu_count": 2, "devices": ["cpu", "cpu"]}))
    steps = 1000 * np.arange(1, num_rows + 1)
    curves = {
        "step": steps, "eval/achieved": 0.1 * np.arange(num_rows) + 0.01 * seed,
        "eval/mean_distance": 1.0 / (1 + np.arange(num_rows)), "train/updates": steps / 4,
    }  # fmt: skip
    write_csv(folder / "metrics.csv", curves)
    write_csv(folder / "timing.csv", {"step": steps, "wall_seconds": steps / 10, "steps_per_second": 0 * steps + 10})
    if is_evaluated:
        table = make_evaluation(space, **evaluation)
        table.save(folder / "evaluation.csv")
        saved = {
            "task": task, "algo": algo, "env_steps": 1000 * num_rows, "grad_updates": 250 * num_rows,
            "wall_seconds": 100.0 * num_rows, **metrics.summary(table, D_EVAL), "d_eval": D_EVAL,
            "skill_space": describe_space(space, NAMES),
        }  # fmt: skip
        (folder / "evaluation.json").write_text(json.dumps(saved))
    return folder
