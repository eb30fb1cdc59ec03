"""The data walk: config -> task and agent -> init or resume -> iterate -> evaluate -> log -> checkpoint."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qdac import metrics as metrics_lib
from qdac.agents import get_algorithm
from qdac.config import TrainConfig, from_dict
from qdac.errors import UserError
from qdac.evaluate import Evaluator
from qdac.progress import Progress
from qdac.rollout import EpisodeStats
from qdac.runs import Run, create_run, open_run

EVALUATION_SEED = 1


class Means:
    """Running means between two rows of metrics.csv; plain numbers, so that a checkpoint can hold them."""

    def __init__(self, sums: dict[str, float] | None = None):
        self.sums = sums or {"num_rounds": 0.0, "num_episodes": 0.0}

    def add(self, metrics: dict[str, float], stats: EpisodeStats) -> None:
        episodes = {"train/return": stats.total_reward, "train/episode_length": stats.length,
                    "train/distance": stats.distance}
        rounds = {"num_rounds": 1.0, "num_episodes": stats.count} if metrics else {"num_episodes": stats.count}
        for name, value in {**metrics, **episodes, **rounds}.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def row(self) -> dict[str, float]:
        """Returns the means: of episodes that ended, and of updates."""
        episodes = ("train/return", "train/episode_length", "train/distance")
        return {
            name: total / counter if (counter := self.sums["num_episodes" if name in episodes else "num_rounds"])
            else math.nan
            for name, total in self.sums.items() if not name.startswith("num_")
        }


class Training:
    """A run in progress: its folder, its state, and the clock."""

    def __init__(self, config: TrainConfig, run: Run, progress: Progress):
        self.config, self.run, self.progress = config, run, progress
        self.task = config.make_task()
        self.agent = config.make_agent(self.task)
        self.trainer = get_algorithm(config.algo).make_trainer(self.agent, self.task)
        skills = self.task.skill_space.grid()
        chosen = np.random.default_rng(EVALUATION_SEED).permutation(len(skills))[: config.eval_skills]
        self.eval_skills = skills[np.sort(chosen)]
        self.evaluator = Evaluator(self.task, self.agent, len(self.eval_skills))
        per_round = self.trainer.steps_per_iteration
        self.total_steps = max(1, round(config.steps / per_round)) * per_round
        rows = np.linspace(0, self.total_steps // per_round, config.num_evaluations + 1)[1:]
        self.row_steps = set((np.maximum(1, np.round(rows)) * per_round).astype(int).tolist())
        self.state: Any = None
        self.means = Means()
        self.seconds_before = 0.0
        self.start_time = time.monotonic()
        self.saved_step = -1

    @property
    def step(self) -> int:
        return int(self.state.env_steps)

    @property
    def wall_seconds(self) -> float:
        """Returns the training time so far, over all resumptions."""
        return self.seconds_before + time.monotonic() - self.start_time

    def start(self) -> None:
        self.state = self.trainer.init(jax.random.PRNGKey(self.config.seed))

    def restore(self) -> None:
        template = jax.eval_shape(self.trainer.init, jax.random.PRNGKey(0))
        tree, metadata = self.run.load_checkpoint(template, warn=self.progress.message)
        self.state = self.trainer.place(tree)
        self.means = Means(metadata["means"])
        self.seconds_before = metadata["wall_seconds"]
        self.saved_step = self.step

    def save(self) -> None:
        """Writes a checkpoint and the policy, unless this very step is saved already."""
        if self.saved_step == self.step:
            return
        metadata = {"means": self.means.sums, "wall_seconds": self.wall_seconds}
        self.run.save_checkpoint(self.step, self.state, metadata)
        self.run.save_policy(
            self.agent.policy_params(self.state.agent),
            {"task": self.config.task, "algo": self.config.algo, "config": self.config.to_dict(),
             "env_steps": self.step, "grad_updates": int(self.state.agent.num_updates),
             "wall_seconds": self.wall_seconds},
        )
        self.saved_step = self.step

    def iterate(self) -> None:
        """One round of collection and updates; stops the run if it produced anything but finite numbers."""
        self.state, metrics, stats = self.trainer.iterate(self.state)
        metrics = {name: float(value) for name, value in jax.device_get(metrics).items()}
        stats = jax.tree.map(lambda x: x.sum() if x.dtype != bool else x.all(), jax.device_get(stats))
        broken = [name for name, value in metrics.items() if not math.isfinite(value)]
        if not stats.is_finite:
            broken.append("env observations or rewards")
        if broken:
            kept = "the last good checkpoint is kept" if self.saved_step >= 0 else "no checkpoint was written yet"
            raise UserError(
                f"non-finite {', '.join(broken)} at env step {self.step}: training stopped, {kept} in "
                f"{self.run.path}; try a lower --learning-rate or --max-gradient-norm 1"
            )
        self.means.add(metrics, stats)
        self.progress.update(self.step, metrics)

    def log_row(self) -> None:
        """Evaluates, writes one row of metrics.csv and timing.csv, and starts new means."""
        evaluation = self.evaluator(
            self.agent.policy_params(self.state.agent), self.eval_skills, 1, EVALUATION_SEED
        )
        scores = metrics_lib.summary(evaluation, self.task.d_eval)
        row = {f"eval/{name}": math.nan if value is None else value for name, value in scores.items()}
        row = {"train/updates": int(self.state.agent.num_updates), **self.means.row(), **row}
        timing = {"wall_seconds": self.wall_seconds, "steps_per_second": self.step / self.wall_seconds}
        self.run.log(self.step, row, timing)
        self.progress.update(self.step, row, is_evaluation=True)
        self.means = Means()

    def loop(self, stop: list[int]) -> None:
        """Iterates to the last step, the time limit or a signal, then saves."""
        last_save = time.monotonic()
        limit = self.config.max_minutes * 60 or math.inf
        while self.step < self.total_steps and self.wall_seconds < limit and not stop:
            self.iterate()
            if self.step in self.row_steps:
                self.log_row()
            if time.monotonic() - last_save > self.config.checkpoint_minutes * 60:
                self.save()
                last_save = time.monotonic()
        self.save()


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Yields a list that SIGINT and SIGTERM add themselves to, in place of ending the process."""
    caught: list[int] = []

    def catch(number: int, frame: Any) -> None:
        caught.append(number)

    try:
        before = {number: signal.signal(number, catch) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # Not in the main thread: signals are the caller's business.
        yield caught
        return
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_training(config: TrainConfig | None, out: str | Path, resume: bool = False) -> tuple[Path, list[int]]:
    """Trains and returns the run folder, and the signals that stopped it early (none if it finished)."""
    if resume:
        run = open_run(out)
        config = from_dict(run.config) if config is None else config
        run = open_run(out, config.loggers)
    else:
        config.make_task()
        run = create_run(out, config.to_dict(), config.loggers)
    with caught_signals() as stop, Progress(config.steps) as progress:
        training = Training(config, run, progress)
        if resume:
            training.restore()
        else:
            training.start()
        training.loop(stop)
    return run.path, stop
