"""What `qdac demo` runs: a short training, its evaluation, the report, and what it shows in words."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from qdac.config import default_config, with_overrides
from qdac.evaluation import PolicyEvaluation, evaluate, load, save_evaluation
from qdac.report.build import write_report
from qdac.training import start_training
from qdac.types import Task

TASK = "walker2d_feet_contact"
PRESET = "laptop"
OVERRIDES: dict[str, Any] = {
    "max_minutes": 2.5, "eval_interval": 200_000, "eval_skills": 64, "keep": "last", "replay_size": 1_000_000,
}  # fmt: skip
"""A few minutes, with rows to draw learning curves of, and a checkpoint that is not large."""
ROLLOUTS = 1
"""Rollouts of each skill: enough for a picture; scores as in the paper need ten."""


def run() -> int:
    """Returns the exit code, after training into a fresh runs/demo/<time> and printing what came of it."""
    config = with_overrides(default_config(task=TASK, preset=PRESET), OVERRIDES)
    outcome = start_training(config, Path("runs", "demo", time.strftime("%Y%m%d-%H%M%S")))
    if outcome.signal:
        return 128 + outcome.signal
    policy = load(outcome.path)
    evaluation = evaluate(policy, ROLLOUTS)
    save_evaluation(evaluation, policy.task, outcome.path)
    figures = outcome.path / "figures"
    report = write_report([outcome.path], outcome.path / "report")
    print(
        f"\n{describe(evaluation, policy.task)}\n\n"
        f"Figures in {figures}:\n"
        f"  {figures / 'distance.png'}: how close each skill came\n"
        f"  {figures / 'coverage.png'}: what was done, coloured by what was asked for\n"
        f"  {figures / 'performance.png'}: the return of each skill that was achieved\n"
        f"  {figures / 'learning_curves.png'}: how training went\n"
        f"All of it on one page: {report.index}\n"
        f"Click a skill and watch the robot: qdac explore {outcome.path}\n\n"
        "This was a few minutes. The real thing takes an hour on 2 cores, and gets farthest with PPO's gradient:\n"
        f"  qdac train --algo qdac_ppo --task {TASK} --out runs/hour\n"
        "  qdac evaluate runs/hour\n"
        "With the paper's own, SAC's, it goes on from here:\n"
        f"  qdac train --resume {outcome.path} --max-minutes 60"
    )
    return 0


def describe(evaluation: PolicyEvaluation, task: Task) -> str:
    """Returns what an evaluation shows: the share of skills achieved, and whether asking changes what is done."""
    scores = evaluation.summary
    sentences = [
        f"Asked for {scores['num_skills']:,} skills of {task.name}, one policy achieved "
        f"{scores['achieved']:.0%} of them (within {task.d_eval:g}); "
        f"the mean distance is {scores['mean_distance']:.3g}."
    ]
    names = task.feature_names or [f"skill {i}" for i in range(task.skill_size)]
    for name, correlation in zip(names, correlations(evaluation), strict=True):
        effect = "gives more of it" if correlation > 0.5 else "changes little yet"
        sentences.append(f"Asking for more of {name!r} {effect} (correlation {correlation:.2f}).")
    return "\n".join(sentences)


def correlations(evaluation: PolicyEvaluation) -> np.ndarray:
    """Returns the correlation between asked and observed in each number of the skill; 0 for a constant."""
    asked = evaluation.skills - evaluation.skills.mean(axis=0)
    observed = evaluation.observed_skills.mean(axis=1)
    observed = observed - observed.mean(axis=0)
    scale = np.sqrt(np.square(asked).sum(axis=0) * np.square(observed).sum(axis=0))
    return (asked * observed).sum(axis=0) / np.maximum(scale, np.finfo(np.float32).tiny)
