"""`qdac demo`: train for some minutes, evaluate, draw, and say what there is to see."""

from __future__ import annotations

from pathlib import Path

from qdac.config import default_config, with_overrides
from qdac.evaluation import evaluate, load, save_evaluation
from qdac.training import start_training

TASK = "walker2d_feet_contact"
BUDGET = {"max_minutes": 3.0, "eval_interval": 50_000, "eval_skills": 64}
"""What is changed of the laptop preset, so that all of it takes less than 5 minutes on 2 cores."""
ROLLOUTS = 1


def run(task: str = TASK, preset: str = "laptop", budget: dict = BUDGET, folder: str | Path = "runs") -> int:
    """Returns the exit code: 0, or 128 + the signal that stopped the training."""
    config = with_overrides(default_config("qdac", task, preset), budget)
    number = next(n for n in range(1, 10**6) if not Path(folder, f"demo-{n}").exists())
    outcome = start_training(config, Path(folder, f"demo-{number}"))
    if outcome.signal:
        return 128 + outcome.signal
    policy = load(outcome.path)
    evaluation = evaluate(policy, ROLLOUTS)
    save_evaluation(evaluation, policy.task, outcome.path)
    scores = evaluation.summary
    print(f"""
After {scores['wall_seconds'] / 60:.1f} minutes of training, one policy was asked for {scores['num_skills']:,}
skills of {task}. It executes {scores['achieved']:.0%} of them to within {policy.task.d_eval:g}; the mean
distance is {scores['mean_distance']:.3g}, the mean return {scores['mean_return']:.4g}.

In {outcome.path}/figures:
  distance.png         each cell is a skill: the brighter, the closer it was executed
  performance.png      the return of the skills that were executed
  coverage.png         what the policy did, coloured by what it was asked for
  learning_curves.png  how it got there

Next: go on with this run until it has had its hour, then score it as the paper does
  qdac train --resume {outcome.path} --max-minutes 60
  qdac evaluate {outcome.path}""")
    return 0
