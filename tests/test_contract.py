"""What holds for every algorithm on every kind of skill space: train, stop, go on, evaluate, report, explore."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tiny

import qdac
from qdac.agents import ALGORITHMS
from qdac.archive import load_archive
from qdac.config import default_config
from qdac.elites import evaluate_elites, open_elites
from qdac.evaluation import save_evaluation
from qdac.explore import catalogue
from qdac.report.build import write_report
from qdac.tasks.locomotion import SPECS

TASKS = ("tiny_tasks:line", "tiny_tasks:compass", tiny.TASK)
FIELDS = tiny.FIELDS | {"steps": 80, "eval_interval": 64, "eval_skills": 8}
"""Five rounds: two of warm-up, three of updates, a row at the second of those and one at the end."""
OF_ALGORITHM = {"domino": {"num_policies": 2}, "qdac_ppo": tiny.ON_POLICY}
OF_MODEL = {
    "sequence_length": 4, "horizon": 3, "memory_size": 8, "latents": 2, "classes": 2, "model_width": 8,
    "encoder_sizes": (8,), "head_sizes": (8,), "num_bins": 5,
}  # fmt: skip
"""In place of `hidden_sizes`, for algorithms with a world model."""


VARIANTS = {"no_sf", "fixed_lambda", "no_sf_mb", "fixed_lambda_mb", "uvfa_mb"}
PAIRS = [
    pytest.param(algo, task, marks=[pytest.mark.slow] if (i + j) % 3 or algo in VARIANTS else [])
    for i, algo in enumerate(ALGORITHMS) for j, task in enumerate(TASKS)
]  # fmt: skip
"""Every algorithm on one space, the next one on another; the rest, and those that are fields of another (of which
UVFA has both), with the slow tests."""


@pytest.mark.parametrize("algo, task", PAIRS)
def test_every_algorithm_on_every_space(algo, task, tmp_path, monkeypatch):
    fields = FIELDS | OF_ALGORITHM.get(algo, {})
    if algo.endswith("_mb"):
        fields = {name: value for name, value in fields.items() if name != "hidden_sizes"} | OF_MODEL
    run = qdac.train(task, algo=algo, preset="debug", out=tmp_path / "run", **fields)
    monkeypatch.setattr("qdac.training.learning_curves", lambda *paths: None)  # Drawn once, they are drawn.
    stopped = qdac.train(task, algo=algo, preset="debug", out=tmp_path / "stopped", **fields | {"steps": 48})
    tiny.assert_same_run(qdac.resume(stopped, steps=FIELDS["steps"]), run)

    policy = qdac.load(run)
    evaluation = qdac.evaluate(policy, rollouts=1)
    save_evaluation(evaluation, policy.task, run)
    scores = json.loads((run / "evaluation.json").read_text())
    assert scores["algo"] == algo and scores["grad_updates"] == (fields["steps"] - fields["warmup_steps"]) // tiny.ROUND
    assert np.isfinite(evaluation.observed_skills).all() and np.isfinite(evaluation.returns).all()
    assert (1 <= evaluation.lengths).all() and (evaluation.lengths <= 10).all()

    report = write_report([run], tmp_path / "report", has_png=False)
    assert not report.left_out.rows and algo in str(report.summary.rows)

    (entry,) = catalogue.open_entries([run])
    (*_, last) = entry.player.play(policy.task.skill_space.grid()[0], seed=0)
    assert last["end"] in ("terminated", "time limit")

    if not policy.policy.commands.are_skills:
        check_archive(run, stopped)


@pytest.mark.parametrize("algo", ["qdac", "qdac_mb"])
@pytest.mark.parametrize("task", [*SPECS, "my_module:my_task"])
def test_an_ablation_differs_in_its_fields_alone(algo, task):
    """With every preset, and what a preset has otherwise for the task."""
    suffix = algo.removeprefix("qdac")
    for preset in ALGORITHMS[algo].presets:
        whole = default_config(algo, task, preset)
        for ablation in ("no_sf", "fixed_lambda", "uvfa"):
            name = ablation + suffix
            agent = dataclasses.replace(whole.agent, **ALGORITHMS[name].fields)
            assert default_config(name, task, preset) == dataclasses.replace(whole, algo=name, agent=agent)


def check_archive(run: Path, stopped: Path) -> None:
    """The archive is the same after a stop, and an elite that is executed again shows what it showed before."""
    archive, policy = open_elites(run)
    example = {"command": archive.contents["command"][0], "step": np.int64(0)}
    other = load_archive(stopped / "archive.safetensors", example)
    np.testing.assert_array_equal(archive.returns, other.returns)
    steps = archive.contents["step"][archive.is_filled]
    assert steps.size and set(steps) <= {64, 80}
    evaluation, _ = evaluate_elites(run, rollouts=1)
    assert evaluation.origin["algo"] == f"{policy.origin['algo']}_archive"
    nearest = archive.nearest(evaluation.skills)
    gaps = np.linalg.norm(evaluation.observed_skills[:, 0] - archive.skills[nearest], axis=-1)
    assert gaps.mean() < 0.5, "resets differ, the behaviour does not"
