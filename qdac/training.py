"""The data walk: config -> task and agent -> init or resume -> iterate -> evaluate -> log -> checkpoint."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdac import hosts, metrics
from qdac.agents import get_algorithm
from qdac.config import TrainConfig, check_resumable, default_config, from_dict, with_overrides
from qdac.elites import Elites
from qdac.errors import UserError
from qdac.evaluation import Evaluator
from qdac.progress import Progress
from qdac.report.figures import learning_curves
from qdac.runs import Run, config_difference, create_run, flatten, open_run
from qdac.tasks import check_task
from qdac.types import Task

EVALUATION_SEED = 1
UNCHANGING_SCORES = ("num_skills", "rollouts_per_skill")


class Outcome(NamedTuple):
    """How training ended; whichever way, all is saved."""

    path: Path
    step: int
    reason: str
    """What ended it, in words."""
    signal: int = 0
    """The signal that ended it; 0 if none did."""


class Means:
    """Running means between two rows of metrics.csv; plain numbers, so that a checkpoint can hold them."""

    def __init__(self, sums: Mapping[str, tuple[float, float]] | None = None):
        self.sums = dict(sums or {})

    def add(self, totals: Mapping[str, Any], count: float) -> None:
        """Adds sums over `count` rounds or episodes."""
        for name, total in totals.items():
            before, count_before = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = (before + float(total), count_before + float(count))

    def row(self) -> dict[str, float]:
        """Returns the means; NaN where nothing was counted."""
        return {name: total / count if count else math.nan for name, (total, count) in self.sums.items()}


class Training:
    """A run in progress: what it is made of, its state, and its clock."""

    def __init__(self, config: TrainConfig, task: Task):
        self.config, self.task = config, task
        self.agent = config.make_agent(task)
        self.trainer = get_algorithm(config.algo).make_trainer(self.agent, task)
        grid = task.skill_space.grid()
        chosen = np.random.default_rng(EVALUATION_SEED).permutation(len(grid))[: config.eval_skills]
        self.eval_skills = grid[np.sort(chosen)]
        self.evaluator = Evaluator(task, self.agent)
        has_skills = self.agent.commands.are_skills
        self.elites = None if has_skills else Elites(self.agent, task, config.eval_skills)
        round_size = self.trainer.steps_per_iteration
        self.total_steps = -(-config.steps // round_size) * round_size
        self.state: Any = None
        self.means = Means()
        self.best: float | None = None
        """The largest share of skills achieved so far, where the best policy is kept."""
        self.compiled: set[str] = set()
        self.saved_step = -1
        self.start_time = time.monotonic()
        """When this process would have started had it done all the training."""

    @property
    def step(self) -> int:
        """Returns the env steps so far."""
        return int(self.state.env_steps) if self.state else 0

    @property
    def num_updates(self) -> int:
        """Returns the gradient updates so far."""
        return int(self.state.agent.num_updates)

    @property
    def wall_seconds(self) -> float:
        """Returns the training time so far, over all resumptions."""
        return time.monotonic() - self.start_time

    def is_row_due(self) -> bool:
        """Returns whether the last iteration reached another multiple of the interval.

        The budget has no part in it: a run with a larger one has the same rows. Nor has the warm-up,
        which would have a row without losses.
        """
        interval, before = self.config.eval_interval, self.step - self.trainer.steps_per_iteration
        return self.num_updates > 0 and self.step // interval > before // interval

    def restore(self, run: Run) -> None:
        """Goes back to the run's newest intact checkpoint, or to the start if it has none yet."""
        with hosts.together():
            if run.start_over():
                return
            tree, metadata = run.load_checkpoint(self.checkpoint_tree(self.trainer.template()))
        self.state = self.trainer.place(tree["training"])
        if self.elites:
            self.elites.restore(tree["elites"], run.path)
        self.means, self.best = Means(metadata["means"]), metadata.get("best")
        self.start_time -= metadata["wall_seconds"]
        self.saved_step = self.step

    def checkpoint_tree(self, state: Any) -> dict[str, Any]:
        """Returns all that a checkpoint holds, or its template for that of a state."""
        return {"training": state} | ({"elites": self.elites.tree} if self.elites else {})

    @property
    def origin(self) -> dict[str, Any]:
        """Returns what a saved policy says of where it comes from."""
        return {
            "task": self.config.task, "algo": self.config.algo, "env_steps": self.step,
            "grad_updates": self.num_updates, "wall_seconds": self.wall_seconds, "config": self.config.to_dict(),
        }  # fmt: skip

    def save(self, run: Run) -> None:
        """Writes a checkpoint, unless this very step has one, and the policy, unless the best is kept and there."""
        state = hosts.read(self.state)
        self.check_finite(_not_finite({"agent": state.agent, "replay": state.replay}), run)
        if self.best is None:
            hosts.by_first(run.save_policy, self.agent.policy_params(state.agent), self.origin)
        if self.saved_step != self.step:
            metadata = {"means": self.means.sums, "best": self.best, "wall_seconds": self.wall_seconds}
            hosts.by_first(run.save_checkpoint, self.step, self.checkpoint_tree(state), metadata)
            self.saved_step = self.step

    def check_finite(self, broken: list[str], run: Run) -> None:
        """Raises a UserError if anything is broken."""
        if broken:
            more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
            kept = f"step {self.saved_step:,} is saved" if self.saved_step >= 0 else "nothing is saved yet"
            raise UserError(
                f"not finite at env step {self.step:,}: {', '.join(broken[:3])}{more}; training stopped, "
                f"{kept} in {run.path}. Try a lower --learning-rate or --max-gradient-norm 1 in another run"
            )

    def iterate(self, run: Run, progress: Progress) -> None:
        """Does one round of collection and updates, and checks that all it gave is finite."""
        # Warm-up and updates are separate programs, each compiled when first used.
        phase = "collection" if self.step < self.config.agent.warmup_steps else "updates"
        with self.compiling(phase, progress):
            self.state, losses, episodes = self.trainer.iterate(self.state)
            losses, episodes = hosts.read((losses, episodes))
        episodes = jax.tree.map(lambda x: x.all() if x.dtype == bool else x.sum(), episodes)
        broken = [name for name, value in losses.items() if not math.isfinite(value)]
        if not episodes.is_finite:
            broken.append("observations or rewards of the env")
        self.check_finite(broken, run)
        self.means.add(losses, 1)
        ended = {
            "train/return": episodes.total_reward,
            "train/episode_length": episodes.length,
        }
        self.means.add(ended, episodes.count)
        self.means.add({"train/distance": episodes.distance}, episodes.num_skills)
        progress.update(self.step, losses)

    def log_row(self, run: Run, progress: Progress) -> None:
        """Evaluates, writes a row of metrics.csv and of timing.csv, and begins new means."""
        params = self.agent.policy_params(self.state.agent)
        with self.compiling("evaluation", progress):
            evaluation = self.evaluator(params, self.eval_skills, 1, EVALUATION_SEED)
            if self.elites:
                self.elites.add(params, self.origin, run.path)
        scores = metrics.summary(evaluation, self.task.d_eval)
        row = {
            f"eval/{name}": math.nan if value is None else value
            for name, value in scores.items() if name not in UNCHANGING_SCORES
        }
        if self.elites:
            row["eval/archive_coverage"] = self.elites.archive.coverage
        row = dict(sorted({**row, **self.means.row(), "train/updates": self.num_updates}.items()))
        timing = {"wall_seconds": self.wall_seconds, "steps_per_second": self.step / self.wall_seconds}
        hosts.by_first(run.log, self.step, row, timing)
        # Not the row at the end of a budget: a run with a larger one does not have it.
        if self.config.keep == "best" and self.is_row_due():
            self.best = max(self.best or 0.0, scores["achieved"])
            error = math.sqrt(self.best * (1.0 - self.best) / len(self.eval_skills))
            if scores["achieved"] >= self.best - error:
                self.check_finite(_not_finite(params), run)
                hosts.by_first(run.save_policy, params, self.origin)
        progress.update(self.step, row, is_evaluation=True)
        self.means = Means()

    @contextlib.contextmanager
    def compiling(self, what: str, progress: Progress) -> Iterator[None]:
        """Says that the first use of a program compiles it, and how long that took."""
        with contextlib.nullcontext() if what in self.compiled else progress.compiling(what):
            yield
        self.compiled.add(what)

    def train(self, run: Run) -> Outcome:
        """Returns how it ended: at the last step, at the time limit, or by a signal."""
        limit = self.config.max_minutes * 60 or math.inf
        save_interval = self.config.checkpoint_minutes * 60
        progress = Progress(self.total_steps, self.step, hosts.screen(), max_seconds=limit - self.wall_seconds)
        with caught_signals() as caught, progress:
            if self.state is None:
                with progress.compiling("the first episodes"):
                    self.state = self.trainer.init(jax.random.PRNGKey(self.config.seed))
            save_time = time.monotonic()
            while self.step < self.total_steps and not hosts.largest(self.wall_seconds >= limit or bool(caught)):
                self.iterate(run, progress)
                if self.is_row_due():
                    self.log_row(run, progress)
                if hosts.largest(time.monotonic() - save_time >= save_interval):
                    self.save(run)
                    save_time = time.monotonic()
            self.save(run)
            # The last row is not part of the checkpoint: a run that goes on has it at no other step than
            # one that was never stopped.
            if not hosts.largest(len(caught)) and not self.is_row_due():
                self.log_row(run, progress)
            number = hosts.largest(caught[0] if caught else 0)
        if number:
            return Outcome(run.path, self.step, f"stopped by {signal.Signals(number).name}", number)
        hosts.by_first(learning_curves, run.path / "metrics.csv", run.path / "figures")
        is_done = self.step >= self.total_steps
        return Outcome(run.path, self.step, "finished" if is_done else "stopped by the time limit")


def _not_finite(tree: Any) -> list[str]:
    """Returns the names of the arrays that hold a NaN or an infinity."""
    return [
        name for name, leaf in flatten(tree).items()
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(leaf).all()
    ]


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Yields a list that the first SIGINT or SIGTERM adds itself to; a second has its usual effect."""
    caught: list[int] = []

    def catch(number: int, frame: Any) -> None:
        caught.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        before = {number: signal.signal(number, catch) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # Not in the main thread: signals are the caller's business.
        before = {}
    try:
        yield caught
    finally:
        restore()


def start_training(config: TrainConfig, out: str | Path | None = None, task: Task | None = None) -> Outcome:
    """Returns how a new run in the folder `out` ended. `task` stands in for the one that the config names."""
    hosts.start()
    task = task or config.make_task()
    settings = config.resolved(task)
    # Before the folder is made, so that a configuration that cannot work leaves none behind.
    training = Training(settings, task)
    path, values = Path(hosts.texts(str(out or default_out(settings)))[0]), settings.to_dict()
    with hosts.together():
        run = create_run(path, values, settings.loggers) if hosts.is_first() else Run(path, values)
    preset = default_config(config.algo, config.task, config.preset)
    with contextlib.ExitStack() as held:
        hosts.by_first(held.enter_context, run.alone())
        hosts.by_first(_introduce, settings, run, config_difference(preset.to_dict(), config.to_dict()))
        return training.train(run)


def resume_training(path: str | Path, config: TrainConfig | None = None, task: Task | None = None) -> Outcome:
    """Returns how a run ended that goes on where it stopped, with the fields of `config` that may change."""
    hosts.start()
    saved = saved_config(path)
    config = config or saved
    check_resumable(saved, config)
    training = Training(config, task or config.make_task())
    with hosts.together():
        run = open_run(path, config.loggers if hosts.is_first() else ())
    with contextlib.ExitStack() as held:
        hosts.by_first(held.enter_context, run.alone())
        training.restore(run)
        hosts.by_first(run.save_config, config.to_dict())
        hosts.by_first(_introduce, config, run, config_difference(saved.to_dict(), config.to_dict()))
        return training.train(run)


def saved_config(path: str | Path) -> TrainConfig:
    """Returns the configuration of the run in a folder."""
    return from_dict(open_run(path).config)


def default_out(config: TrainConfig) -> Path:
    """Returns runs/<task>/<algo>-s<seed>-<time>."""
    task = re.sub(r"[^\w.-]+", "-", config.task)
    return Path("runs", task, f"{config.algo}-s{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}")


def _introduce(config: TrainConfig, run: Run, changes: list[str]) -> None:
    """Says on stderr what is about to run, and what was changed from the preset or the saved run."""
    devices = jax.devices()
    lines = [
        f"{config.algo} on {config.task}, preset {config.preset}, seed {config.seed}, "
        f"on {len(devices)} x {devices[0].device_kind}",
        f"run folder {run.path}, configuration {run.path / 'config.json'}",
    ]
    names, values = [], []
    for change in changes:
        name, _, value = change.removeprefix("agent.").partition(": ")
        names.append(name)
        values.append(value)
    width = max(map(len, names), default=0)
    lines += [f"    {name:<{width}}  {value}" for name, value in zip(names, values, strict=True)]
    print("\n".join(lines), file=sys.stderr, flush=True)


def train(
    task: str | Task = "walker2d_feet_contact", *, algo: str = "qdac", preset: str = "laptop",
    out: str | Path | None = None, **fields: Any,
) -> Path:
    """Returns the folder of a run that was trained to its end.

    `fields` are any of `TrainConfig` or of the algorithm's `Config`, as on the command line:
    `seed=1, steps=2_000_000, learning_rate=1e-3`. A signal saves, then has its usual effect.
    """
    name, made = (task.name, task) if isinstance(task, Task) else (task, None)
    config = with_overrides(default_config(algo, name, preset), fields)
    if made:
        check_task(made)
        if config.backend or config.episode_length:
            raise UserError(f"task {name!r} is ready-made; give it its backend and episode_length itself")
    return _path_or_signal(start_training(config, out, made))


def resume(path: str | Path, task: Task | None = None, **fields: Any) -> Path:
    """Returns the folder of a run that went on where it stopped, to its end.

    `fields` may change the budget: `steps, max_minutes, checkpoint_minutes, loggers`. `task` is
    needed only if the run was given a `Task` object rather than a name.
    """
    return _path_or_signal(resume_training(path, with_overrides(saved_config(path), fields), task))


def _path_or_signal(outcome: Outcome) -> Path:
    if outcome.signal:
        signal.raise_signal(outcome.signal)
    return outcome.path
