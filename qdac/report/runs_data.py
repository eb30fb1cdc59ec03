"""Run folders as a report sees them: what each holds, what it lacks, and which belong together.

Nothing in a folder is trusted to be there or to be whole. What cannot be used is said in one sentence, with
what to do about it, and never stops the report of the other runs.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdac import metrics
from qdac.cells import grid_cells
from qdac.errors import UserError
from qdac.metrics import Evaluation
from qdac.report.spaces import TaskView, task_view
from qdac.report.tables import Curve, points, read_rows
from qdac.runs import open_run, read_tensor_file

ENVIRONMENT_FIELDS = ("backend", "episode_length")
"""Fields of a config, besides those of the agent, in which runs of one algorithm have to agree."""
MAX_NAMED_FIELDS = 2
"""Differences in configuration that fit in the label of a variant."""


@dataclasses.dataclass(frozen=True)
class RunData:
    """All that a report uses of one run folder."""

    path: Path
    task: str
    algo: str
    preset: str
    seed: int
    settings: Mapping[str, Any]
    """What has to be the same in runs that differ by their seed only, by field."""
    curves: Mapping[str, Curve]
    """Columns of metrics.csv that have values."""
    scores: Mapping[str, float]
    """The finite scores of its evaluation, from evaluation.csv where there is one, else evaluation.json."""
    evaluation: Evaluation | None
    """The table of rollouts; None if there is none or it cannot be drawn."""
    view: TaskView | None
    """The task as figures need it; there is one exactly where there is an evaluation."""
    compute: Mapping[str, Any]
    """env_steps, updates, wall_seconds, rollouts and machine; None for what is not known."""
    notes: tuple[str, ...]
    """What is missing or odd, each with what to do."""


@dataclasses.dataclass(frozen=True)
class TaskRuns:
    """The runs of one task by the label of their algorithm."""

    task: str
    view: TaskView | None
    algorithms: Mapping[str, tuple[RunData, ...]]

    def evaluated(self) -> dict[str, tuple[RunData, ...]]:
        """Returns the runs with a table of rollouts, by label; labels without one are left out."""
        having = {
            label: tuple(run for run in runs if run.evaluation is not None)
            for label, runs in self.algorithms.items()
        }
        return {label: runs for label, runs in having.items() if runs}

    def scores(self, name: str) -> dict[str, np.ndarray]:
        """Returns the values of one score by label; labels without any are left out."""
        values = {
            label: np.array([run.scores[name] for run in runs if name in run.scores])
            for label, runs in self.algorithms.items()
        }
        return {label: runs for label, runs in values.items() if len(runs)}


@dataclasses.dataclass(frozen=True)
class Collection:
    """The runs of a report by task, and what was left out of it."""

    tasks: tuple[TaskRuns, ...]
    left_out: tuple[tuple[str, str], ...]
    """(folder, reason): what was not used, wholly or in part."""

    @property
    def labels(self) -> list[str]:
        """Returns the labels of all algorithms, sorted."""
        return sorted({label for task in self.tasks for label in task.algorithms})


def collect(paths: Iterable[str | Path]) -> Collection:
    """Returns the usable runs of `paths` by task and algorithm; a UserError if there is none.

    A path is a run folder, or a folder with run folders anywhere below it.
    """
    runs: list[RunData] = []
    left_out: list[tuple[str, str]] = []
    for path in _run_folders(paths):
        try:
            run = read_run(path)
            runs += [run, *_archive_of(run)]
        except UserError as error:
            left_out.append((str(path), str(error)))
        except Exception as error:  # a damage that nobody thought of must not cost the report of the others
            left_out.append((str(path), f"could not be read ({error!r})"))
    if not runs:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in left_out[:3])
        more = f" (and {len(left_out) - 3} more)" if len(left_out) > 3 else ""
        raise UserError(f"no usable run: {reasons or 'no folder was given'}{more}")
    labels, variants = _labels(runs)
    labelled, repeated = _without_repeated_seeds(list(zip(labels, runs, strict=True)))
    left_out += repeated
    tasks = []
    for task in sorted({run.task for run in runs}):
        members = [(label, run) for label, run in labelled if run.task == task]
        view = next((run.view for _, run in members if run.view), None)
        fitting = [(label, _fitting(run, view)) for label, run in members]
        algorithms = {
            label: tuple(sorted((run for other, run in fitting if other == label), key=lambda run: run.seed))
            for label in sorted({label for label, _ in fitting})
        }
        tasks.append(TaskRuns(task, view, algorithms))
        left_out += [(str(run.path), note) for runs_of in algorithms.values() for run in runs_of for note in run.notes]
    return Collection(tuple(tasks), tuple(left_out + variants))


def _run_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Returns the run folders in the order given, each once; a path without any stays, to be complained about."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        below = [] if os.path.exists(path / "config.json") else sorted(path.glob("**/config.json"))
        for folder in [config.parent for config in below] or [path]:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def read_run(path: Path) -> RunData:
    """Returns what a run folder holds; a UserError if that is nothing a report could use."""
    run = open_run(path)
    config = run.config
    try:
        task, algo, seed = str(config["task"]), str(config["algo"]), int(config["seed"])
        settings = dict(config.get("agent") or {}) | {name: config.get(name) for name in ENVIRONMENT_FIELDS}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"its config.json names no task, algorithm and seed ({error!r})") from error
    notes: list[str] = []
    rows = _rows(path / "metrics.csv", notes)
    timing = _rows(path / "timing.csv", notes)
    saved = _json_object(path / "evaluation.json", notes)
    has_rows = len(rows.get("step", ())) > 0
    if not has_rows and not saved:
        reason = "; ".join(notes) or "it stopped before its first evaluation"
        raise UserError(f"has neither rows in metrics.csv nor scores ({reason}); try `qdac train --resume {path}`")
    if not has_rows:
        notes.append("has no rows in metrics.csv, so it has no learning curves")
    evaluation, view, scores = _evaluation(path, task, saved, notes, f"qdac evaluate {path}")
    compute = _compute(rows, timing, saved, _json_object(path / "system.json", notes))
    notes += _stale(saved, _policy_step(path) or compute["env_steps"], f"qdac evaluate {path}")
    return RunData(
        path=path, task=task, algo=algo, preset=str(config.get("preset", "")), seed=seed, settings=settings,
        curves={name: curve for name in rows if len((curve := points(rows, name))[0])},
        scores=scores, evaluation=evaluation, view=view, compute=compute, notes=tuple(notes),
    )  # fmt: skip


def _archive_of(run: RunData) -> list[RunData]:
    """Returns the evaluation of a run's archive, where there is one, as a run of its own without curves."""
    folder, notes = run.path / "archive", []
    saved = _json_object(folder / "evaluation.json", notes)
    if not saved and not notes:
        return []
    again = f"qdac evaluate {run.path} --archive"
    evaluation, view, scores = _evaluation(folder, run.task, saved, notes, again)
    notes += _stale(saved, _policy_step(run.path) or run.compute["env_steps"], again)
    return [
        dataclasses.replace(
            run, path=folder, algo=f"{run.algo}_archive", curves={}, scores=scores, evaluation=evaluation, view=view,
            notes=tuple(notes),
        )
    ]  # fmt: skip


def _policy_step(path: Path) -> int | None:
    """Returns the env step of a run's policy, which is not the last one where the best is kept."""
    with contextlib.suppress(UserError):
        return read_tensor_file(path / "policy.safetensors")[1].get("env_steps")
    return None


def _stale(saved: Mapping[str, Any], last_step: float | None, again: str) -> list[str]:
    """Returns what to say of an evaluation that training has left behind."""
    step = saved.get("env_steps")
    if not isinstance(step, (int, float)) or last_step is None or last_step <= step:
        return []
    return [
        f"was evaluated at env step {step:,}, and its policy is now that of {last_step:,}; run `{again}` to score that"
    ]


def _rows(path: Path, notes: list[str]) -> Mapping[str, np.ndarray]:
    try:
        rows = read_rows(path)
    except FileNotFoundError:
        return {}
    except (OSError, csv.Error) as error:
        notes.append(f"{path.name} cannot be read ({getattr(error, 'strerror', None) or error})")
        return {}
    if rows.num_bad:
        notes.append(f"{path.name} has {rows.num_bad} damaged rows, which were passed over")
    return rows.columns


def _json_object(path: Path, notes: list[str]) -> dict[str, Any]:
    """Returns the object of a JSON file, {} where there is none; a file that cannot be read is noted."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
        notes.append(f"{path.name} holds no JSON object; it was not used")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} is damaged ({error}); it was not used")
    return {}


def _evaluation(
    path: Path, task: str, saved: Mapping[str, Any], notes: list[str], again: str
) -> tuple[Evaluation | None, TaskView | None, dict[str, float]]:
    """Returns the table of rollouts, the task as figures need it, and the scores; `again` is what makes them."""
    scores = {name: float(value) for name, value in saved.items() if _is_number(value)}
    if not (path / "evaluation.csv").exists():
        lacking = "only the scores of its evaluation.json are shown" if saved else "only its curves are shown"
        notes.append(f"has no evaluation.csv, so {lacking}; for maps and profiles run `{again}`")
        return None, None, scores
    try:
        evaluation = Evaluation.load(path / "evaluation.csv")
        view, inferred = task_view(task, saved, evaluation)
    except (UserError, TypeError, ValueError) as error:
        lacking = "only the scores of its evaluation.json are" if saved else "nothing of its evaluation is"
        notes.append(f"{error}; {lacking} shown; run `{again}`")
        return None, None, scores
    if inferred:
        notes.append(f"{inferred}; run `{again}` to be sure, and for the names of the axes")
    again_scored = metrics.summary(evaluation, view.d_eval)
    again_scored["coverage"] = metrics.coverage(evaluation, grid_cells(view.skill_space))
    return evaluation, view, {name: value for name, value in again_scored.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _compute(
    rows: Mapping[str, np.ndarray], timing: Mapping[str, np.ndarray],
    saved: Mapping[str, Any], system: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Returns what a run has cost so far: the larger of what its CSVs and its evaluation say."""

    def largest(columns: Mapping[str, np.ndarray], column: str, key: str) -> float | None:
        values = [*points(columns, column)[1], *([saved[key]] if _is_number(saved.get(key)) else [])]
        return max(values, default=None)

    steps = largest(rows, "step", "env_steps")
    updates = largest(rows, "train/updates", "grad_updates")
    devices = system.get("devices")
    kinds = sorted({str(kind) for kind in devices}) if isinstance(devices, list) else []
    machine = [f"{system['cpu_count']} cores"] if _is_number(system.get("cpu_count")) else []
    machine += [f"{devices.count(kind)} × {kind}" for kind in kinds]
    return {
        "env_steps": None if steps is None else int(steps),
        "updates": None if updates is None else int(updates),
        "wall_seconds": largest(timing, "wall_seconds", "wall_seconds"),
        "rollouts": saved.get("rollouts_per_skill"),
        "machine": ", ".join(machine) or None,
    }


def _without_repeated_seeds(
    labelled: Sequence[tuple[str, RunData]],
) -> tuple[list[tuple[str, RunData]], list[tuple[str, str]]]:
    """Returns the labels and runs without those that repeat a seed under the label of another, which are named.

    Two runs of one seed are no two samples. The one with an evaluation, or else with more steps, stays.
    """

    def worth(run: RunData) -> tuple:
        return run.evaluation is not None, bool(run.scores), run.compute["env_steps"] or 0

    best: dict[tuple[str, str, int], RunData] = {}
    left_out = []
    for label, run in sorted(labelled, key=lambda pair: worth(pair[1]), reverse=True):
        other = best.setdefault((run.task, label, run.seed), run)
        if other is not run:
            left_out.append((str(run.path), f"has the seed and the configuration of {other.path}: no independent run"))
    kept = {id(run) for run in best.values()}
    return [pair for pair in labelled if id(pair[1]) in kept], left_out


def _labels(runs: Sequence[RunData]) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the label of each run, and what the labels of variants stand for where they do not say it.

    The label is the algorithm's name, with the preset where there are several, and with what differs between
    runs of one task that share both: only runs that differ by nothing but the seed are pooled.
    """
    presets: dict[str, set[str]] = {}
    for run in runs:
        presets.setdefault(run.algo, set()).add(run.preset)
    labels = [f"{run.algo} {run.preset}" if len(presets[run.algo]) > 1 else run.algo for run in runs]
    pools: dict[tuple[str, str], list[int]] = {}
    for number, (label, run) in enumerate(zip(labels, runs, strict=True)):
        pools.setdefault((run.task, label), []).append(number)
    notes = []
    for (task, base), members in pools.items():
        fields = _differing_fields([runs[number].settings for number in members])
        if len(fields) > MAX_NAMED_FIELDS:
            notes.append((f"{task}: {base}", f"its variants differ in {', '.join(fields)}, so they are not pooled"))
        variants: list[dict[str, Any]] = []
        for number in members if fields else ():
            variant = {name: runs[number].settings.get(name) for name in fields}
            if variant not in variants:
                variants.append(variant)
            text = ", ".join(f"{name}={value}" for name, value in variant.items())
            if len(fields) > MAX_NAMED_FIELDS:
                text = f"variant {1 + variants.index(variant)}"
            labels[number] = f"{base} ({text})"
    return labels, notes


def _differing_fields(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the settings in which runs differ; one that an older run does not name is taken to be the same."""
    names = sorted({name for fields in settings for name in fields})
    values = {name: [fields[name] for fields in settings if name in fields] for name in names}
    return [name for name in names if any(value != values[name][0] for value in values[name])]


def _fitting(run: RunData, view: TaskView | None) -> RunData:
    """Returns the run, without its evaluation if that is of another grid or d_eval than the others of its task."""
    if run.view is None or view is None or _same_view(run.view, view):
        return run
    note = (
        f"was evaluated on the grid {run.view.skill_space.grid_shape} with d_eval {run.view.d_eval:g}, others of the "
        f"task on {view.skill_space.grid_shape} with {view.d_eval:g}; its evaluation is not shown"
    )
    return dataclasses.replace(run, evaluation=None, view=None, scores={}, notes=(*run.notes, note))


def _same_view(one: TaskView, other: TaskView) -> bool:
    grids = one.skill_space.grid(), other.skill_space.grid()
    return one.d_eval == other.d_eval and grids[0].shape == grids[1].shape and np.allclose(*grids, atol=1e-5)
