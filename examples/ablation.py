"""The paper's central ablation in two minutes: who can keep a foot on the ground a share of the time?

    python -m examples.ablation OUT
    python -m examples.ablation OUT mb

Trains QDAC and its three ablations on examples/stepping.py, evaluates them, and writes a report to OUT/report; with
`mb`, their model-based forms.
"""

import sys
from pathlib import Path

import numpy as np

import qdac
from qdac import metrics
from qdac.evaluation import save_evaluation
from qdac.report.build import write_report

TASK = "examples.stepping:stepping"
ALGORITHMS = ("qdac", "fixed_lambda", "no_sf", "uvfa")
FIELDS = {
    "hidden_sizes": (64, 64), "batch_size": 64, "learning_rate": 3e-3, "target_rate": 0.02, "discount": 0.93,
    "initial_temperature": 0.02, "temperature_learning_rate": 3e-3, "average_heads": True, "shared_critics": True,
    "steps_per_iteration": 16, "updates_per_iteration": 16, "replay_size": 20_000, "steps": 100_000,
}  # fmt: skip
MODEL_BASED_FIELDS = {
    "memory_size": 32, "latents": 4, "classes": 8, "model_width": 32, "encoder_sizes": (32,), "head_sizes": (64,),
    "num_bins": 21, "bin_limit": 2.0, "batch_size": 16, "sequence_length": 8, "horizon": 15, "discount": 0.93,
    "learning_rate": 1e-3, "model_learning_rate": 3e-3, "multiplier_learning_rate": 3e-3, "shared_critics": True,
    "steps_per_iteration": 16, "updates_per_iteration": 16, "replay_size": 20_000, "steps": 20_000,
}  # fmt: skip


def train(algo: str, out: Path, **fields: object) -> tuple[Path, float, float]:
    """Returns the run, and the shares of skills achieved at the corners and inside, where no share is 0 or 1."""
    fields = (MODEL_BASED_FIELDS if algo.endswith("_mb") else FIELDS) | fields
    run = qdac.train(TASK, algo=algo, preset="debug", out=out / algo, **fields)
    policy = qdac.load(run)
    evaluation = qdac.evaluate(policy, rollouts=2)
    save_evaluation(evaluation, policy.task, run)
    is_achieved = metrics.is_achieved(evaluation, policy.task.d_eval)
    from_edge = np.minimum(evaluation.skills, 1.0 - evaluation.skills)
    is_corner, is_inside = (from_edge < 0.1).all(axis=1), (from_edge > 0.2).all(axis=1)
    return run, is_achieved[is_corner].mean(), is_achieved[is_inside].mean()


def main(out: str, suffix: str = "") -> None:
    runs = []
    for algo in (f"{algo}_{suffix}".rstrip("_") for algo in ALGORITHMS):
        run, corners, inside = train(algo, Path(out))
        runs.append(run)
        print(f"{algo:<15}  corners achieved {corners:.0%}, inside achieved {inside:.0%}", flush=True)
    print(write_report(runs, Path(out) / "report").index)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["mb"]):
        sys.exit("expected a folder for runs and report, and mb if you like: python -m examples.ablation runs/ablation")
    main(*sys.argv[1:])
