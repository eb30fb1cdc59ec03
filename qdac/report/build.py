"""A report over runs: reads their folders, makes figures and tables, and writes them with one page."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from qdac import statistics
from qdac.report import comparison, page
from qdac.report.comparison import DISTANCE, PERFORMANCE, UNFILTERED, Look
from qdac.report.figures import STYLE, save_figure
from qdac.report.page import DrawnFigure, Section
from qdac.report.runs_data import Collection, RunData, TaskRuns, collect
from qdac.report.tables import Table, cell_text
from qdac.statistics import MIN_RUNS, Comparison, Estimate, Strata

SCORES = {
    "achieved": "share achieved",
    "performance_score": "performance score",
    "distance_score": "distance score",
    "coverage": "coverage",
}
"""The scores that are compared, more being better in each."""
UNITS = {
    "achieved": "share of skills",
    "performance_score": "sum of rewards",
    "distance_score": "units of the skill",
    "coverage": "share of cells",
}
SHARES = ("achieved", "coverage")
"""Scores that lie between 0 and 1 on every task, and are not normalised."""
OTHER_SCORES = {"max_return": "best return", "mean_return": "mean return", "mean_episode_length": "episode length"}
READING = (
    "IQM: mean of the middle half of the runs. Interval: 95 % percentile interval of a bootstrap that resamples "
    f"runs within each task, {statistics.RESAMPLES:,} resamples for a number and {statistics.CURVE_RESAMPLES:,} for "
    f"a point of a curve. With fewer than {MIN_RUNS} runs an interval means nothing, so none is given and the runs "
    "themselves are shown. A run is one seed; rollouts are averaged within it."
)
Scored = dict[str, tuple[np.ndarray, Estimate]]
"""The runs' values of a score and their IQM, by label."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What `write_report` wrote."""

    index: Path
    summary: Table
    left_out: Table


@dataclasses.dataclass(frozen=True)
class Writer:
    """Saves the figures of a report in its folder."""

    folder: Path
    has_png: bool

    def figure(self, figure: Figure, name: str, title: str, caption: str) -> DrawnFigure:
        """Returns the figure as saved."""
        return DrawnFigure(title, caption, save_figure(figure, self.folder / "figures", name, self.has_png))


def write_report(paths: Sequence[str | Path], out: str | Path, has_png: bool = True) -> Report:
    """Returns the report over the runs in `paths`, after writing it to the folder `out`.

    index.html holds everything; figures/ and tables/ hold its figures as SVG and, if asked for, PNG, and its
    tables as CSV. A run that cannot be used is named in it and left out; a UserError if none can.
    """
    collection = collect(paths)
    writer = Writer(Path(out), has_png)
    looks = comparison.make_looks(collection.labels)
    scored = {task.task: _scored(task) for task in collection.tasks}
    summary = _summary(collection, scored)
    left_out = Table("left_out", ("folder", "reason"), collection.left_out)
    with matplotlib.rc_context(STYLE):
        sections = [Section("Summary", [READING], [summary]), _left_out_section(left_out)]
        sections += [
            _task_section(writer, task, scored[task.task], looks, name)
            for task, name in zip(collection.tasks, _file_names(collection), strict=True)
        ]
        sections += [_comparison_section(writer, collection, looks), _compute_section(collection)]
    tables = [table for section in sections for table in section.tables]
    for table in [*tables, left_out, _estimates_table(scored)]:
        table.save(writer.folder / "tables")
    runs = [run for task in collection.tasks for run in _all_runs(task)]
    introduction = (
        f"{len(runs)} run{'s' if len(runs) > 1 else ''} of {len(collection.labels)} algorithm"
        f"{'s' if len(collection.labels) > 1 else ''} on {len(collection.tasks)} task"
        f"{'s' if len(collection.tasks) > 1 else ''}. Everything here is computed from the files of the run folders."
    )
    index = writer.folder / "index.html"
    index.write_text(page.render("Quality-diversity report", introduction, sections), encoding="utf-8")
    return Report(index, summary, left_out)


def _all_runs(task: TaskRuns) -> list[RunData]:
    return [run for runs in task.algorithms.values() for run in runs]


def _file_names(collection: Collection) -> list[str]:
    """Returns a name for the files of each task: its own, in letters that every file system takes."""
    names: list[str] = []
    for task in collection.tasks:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", task.task).strip("._") or "task"
        names.append(name if name not in names else f"{name}_{len(names)}")
    return names


def _scored(task: TaskRuns) -> dict[str, Scored]:
    """Returns the runs and the estimate of each score that a run of the task has."""
    by_score = {name: task.scores(name) for name in SCORES}
    return {
        name: {label: (runs, statistics.iqm_estimate([runs])) for label, runs in scores.items()}
        for name, scores in by_score.items()
        if scores
    }


def _summary(collection: Collection, scored: Mapping[str, Mapping[str, Scored]]) -> Table:
    rows = []
    for task in collection.tasks:
        for label, runs in task.algorithms.items():
            cells = [
                _estimate_text(name, scored[task.task].get(name, {}).get(label), len(runs)) for name in SCORES
            ]
            steps = [run.compute["env_steps"] for run in runs if run.compute["env_steps"] is not None]
            spread = " to ".join(map(_steps_text, sorted({min(steps), max(steps)}))) if steps else None
            rows.append((task.task, label, comparison.runs_text(len(runs)), *cells, spread))
    return Table("summary", ("task", "algorithm", "runs", *SCORES.values(), "env steps"), rows)


def _steps_text(steps: int) -> str:
    return f"{steps / 1e6:.3g} M" if steps >= 1e6 else cell_text(steps)


def _estimate_text(name: str, scored: tuple[np.ndarray, Estimate] | None, num_runs: int) -> str | None:
    """Returns "value [low, high]", "value (2 runs)" where not all runs have it, or None where none has."""
    if scored is None:
        return None

    def text(value: float) -> str:
        return f"{value:.1%}" if name in SHARES else cell_text(float(value))

    _, estimate = scored
    interval = "" if estimate.low is None else f" [{text(estimate.low)}, {text(estimate.high)}]"
    part = "" if estimate.num_runs == num_runs else f" ({comparison.runs_text(estimate.num_runs)})"
    return f"{text(estimate.value)}{interval}{part}"


def _estimates_table(scored: Mapping[str, Mapping[str, Scored]]) -> Table:
    rows = [
        (task, label, name, estimate.num_runs, estimate.value, estimate.low, estimate.high)
        for task, by_score in scored.items()
        for name, by_label in by_score.items()
        for label, (_, estimate) in by_label.items()
    ]
    return Table("estimates", ("task", "algorithm", "score", "runs", "IQM", "low", "high"), rows)


def _left_out_section(left_out: Table) -> Section:
    if not left_out.rows:
        return Section("What was left out", ["Nothing: every folder was whole and fully evaluated."])
    return Section("What was left out", ["Runs that were not used, wholly or in part, and why."], [left_out])


def _task_section(
    writer: Writer, task: TaskRuns, scored: Mapping[str, Scored], looks: Mapping[str, Look], name: str
) -> Section:
    figures, texts = [], []
    evaluated = task.evaluated()
    if task.view is None:
        texts.append("No run of this task has an evaluation.csv that can be drawn, so there are no maps and profiles.")
    else:
        figures += _evaluation_figures(writer, task, evaluated, looks, name)
    curves = comparison.learning_curve_comparison(task, looks)
    if curves:
        figures.append(
            writer.figure(
                curves, f"{name}_learning_curves", "Learning curves",
                "Evaluations during training: one rollout of part of the skill grid, so noisier than the scores "
                f"above. Line and band: IQM and 95 % interval at each step over the runs that reached it, where "
                f"these are at least {MIN_RUNS}; otherwise each line is a run.",
            )  # fmt: skip
        )
    if scored:
        panels = {f"{SCORES[score]}\n({UNITS[score]})": by_label for score, by_label in scored.items()}
        figures.append(
            writer.figure(
                comparison.score_intervals(panels, looks), f"{name}_scores", "Scores",
                "Marker: IQM; bar: 95 % interval; dots: runs. A hollow marker has too few runs for an interval. "
                "More is better in all.",
            )  # fmt: skip
        )
    columns = ("algorithm", "seed", *SCORES.values(), *OTHER_SCORES.values(), "folder")
    rows = [
        (label, run.seed, *(run.scores.get(score) for score in (*SCORES, *OTHER_SCORES)), str(run.path))
        for label, runs in task.algorithms.items()
        for run in runs
    ]
    return Section(task.task, texts, [Table(f"{name}_runs", columns, rows)], figures)


def _evaluation_figures(
    writer: Writer, task: TaskRuns, evaluated: Mapping[str, Sequence[RunData]], looks: Mapping[str, Look], name: str
) -> list[DrawnFigure]:
    view = task.view
    chosen = {label: _median_run(runs) for label, runs in evaluated.items()}
    which = "Each map is one run, that with the median performance score. " if any(
        len(runs) > 1 for runs in evaluated.values()
    ) else ""  # fmt: skip
    return [
        writer.figure(
            comparison.skill_maps(chosen, view, [DISTANCE, PERFORMANCE]), f"{name}_maps", "Skill space",
            f"{which}A cell is a skill that was asked for. Distance: how close the policy came, negated, so that "
            f"lighter is better; skills lighter than the line on the bar (d_eval = {view.d_eval:g}) are achieved. "
            "Performance: the mean return; hatched cells were not achieved. All algorithms share one scale.",
        ),
        writer.figure(
            comparison.skill_maps(chosen, view, [UNFILTERED]), f"{name}_maps_unfiltered", "Returns, unfiltered",
            f"{which}The mean return of every skill that was asked for, whether the policy achieved it or not.",
        ),
        writer.figure(
            comparison.run_profiles(evaluated, view, looks), f"{name}_profiles", "Profiles",
            "Left: share of skills closer than x. Middle: share of skills achieved with a return above x. Right: "
            "the same without asking whether they were achieved. Higher is better. Line and band: IQM and 95 % "
            f"interval over runs, where there are at least {MIN_RUNS}; otherwise each line is a run.",
        ),
    ]  # fmt: skip


def _median_run(runs: Sequence[RunData]) -> RunData:
    """Returns the run with the median performance score, the lower one of two."""
    ranked = sorted(runs, key=lambda run: run.scores.get("performance_score", -np.inf))
    return ranked[(len(ranked) - 1) // 2]


def _comparison_section(writer: Writer, collection: Collection, looks: Mapping[str, Look]) -> Section:
    """Returns the part that compares algorithms: on each task, and over all tasks with normalised scores."""
    title = "Comparison of algorithms"
    if len(collection.labels) < 2:
        return Section(title, ["There is a single algorithm, so there is nothing to compare."])
    by_task = {task.task: task for task in collection.tasks}
    compared = {score: _compare_tasks(by_task, score) for score in SCORES}
    figures = []
    for task, name in zip(by_task, _file_names(collection), strict=True):
        panels = {SCORES[score]: found[task] for score, found in compared.items() if task in found}
        if panels:
            figures.append(_improvement_figure(writer, panels, f"{name}_improvement", task))
    aggregated, texts = _aggregate(collection)
    for score, strata in aggregated.items():
        compared[score]["all tasks"] = statistics.adjust(statistics.compare(strata))
    if aggregated:
        figures += _aggregated_figures(writer, aggregated, compared, looks)
    rows = [
        (task, SCORES[score], c.first, c.second, c.probability.value, c.probability.low, c.probability.high,
         c.p_value, c.adjusted_p_value)
        for score, found in compared.items() for task, comparisons in found.items() for c in comparisons
    ]  # fmt: skip
    columns = ("task", "score", "first", "second", "P(first > second)", "low", "high", "p", "p (Holm)")
    texts.append(
        "p: two-sided Mann-Whitney U test; p (Holm): corrected over all pairs and tasks of a score, those over all "
        f"tasks apart. Neither an interval nor a test is given with fewer than {MIN_RUNS} runs of a task on a side; "
        f"with {MIN_RUNS} on each, p cannot be below 0.1."
    )
    return Section(title, texts, [Table("comparisons", columns, rows)] if rows else [], figures)


def _aggregated_figures(
    writer: Writer, aggregated: Mapping[str, Mapping[str, Strata]],
    compared: Mapping[str, Mapping[str, Sequence[Comparison]]], looks: Mapping[str, Look],
) -> list[DrawnFigure]:  # fmt: skip
    panels = {
        SCORES[score] if score in SHARES else f"normalised\n{SCORES[score]}": {
            label: (np.concatenate(strata), statistics.iqm_estimate(strata)) for label, strata in by_label.items()
        }
        for score, by_label in aggregated.items()
    }
    improvements = {SCORES[score]: compared[score]["all tasks"] for score in aggregated}
    return [
        writer.figure(
            comparison.score_intervals(panels, looks), "aggregated_scores", "Scores over all tasks",
            "IQM over all runs of all tasks, with intervals that resample runs within each task. Distance and "
            "performance scores are normalised on each task: 0 is the worst run of this report, 1 the best. Shares "
            "are as they are.",
        ),
        _improvement_figure(writer, improvements, "aggregated_improvement", "all tasks"),
    ]  # fmt: skip


def _compare_tasks(by_task: Mapping[str, TaskRuns], score: str) -> dict[str, list[Comparison]]:
    """Returns the comparisons on each task in one score, with Holm's correction over all of them."""
    pairs = [
        (task, found)
        for task, runs in by_task.items()
        for found in statistics.compare({label: [values] for label, values in runs.scores(score).items()})
    ]
    adjusted = statistics.adjust([found for _, found in pairs])
    compared: dict[str, list[Comparison]] = {}
    for (task, _), found in zip(pairs, adjusted, strict=True):
        compared.setdefault(task, []).append(found)
    return compared


def _aggregate(collection: Collection) -> tuple[dict[str, dict[str, Strata]], list[str]]:
    """Returns the strata of each score by label, one for each task that all algorithms have, and what is left out."""
    labels = collection.labels
    tasks = [task for task in collection.tasks if set(task.algorithms) == set(labels)]
    if len(tasks) < 2:
        needed = "Scores are aggregated over tasks that all algorithms have runs of, two at least"
        return {}, [f"{needed}; here there {'is' if len(tasks) == 1 else 'are'} {len(tasks)}."]
    aggregated: dict[str, dict[str, Strata]] = {}
    texts = []
    for score in SCORES:
        usable = []
        for task in tasks:
            values = task.scores(score)
            if set(values) != set(labels):
                texts.append(f"{SCORES[score]}: {task.task} is left out, an algorithm has no evaluated run of it.")
                continue
            scaled = values if score in SHARES else statistics.normalise(values)
            if scaled is None:
                texts.append(f"{SCORES[score]}: {task.task} is left out, all its runs score the same.")
                continue
            usable.append(scaled)
        if usable:
            aggregated[score] = {label: [values[label] for values in usable] for label in labels}
    return aggregated, texts


def _improvement_figure(
    writer: Writer, panels: Mapping[str, Sequence[Comparison]], name: str, where: str
) -> DrawnFigure:
    return writer.figure(
        comparison.improvement_intervals(panels), name, f"Probability of improvement: {where}",
        "How likely a run of the first algorithm scores more than a run of the second; a tie counts half. Bar: 95 % "
        "interval; a hollow marker has too few runs for one. Star: Holm-corrected p below 0.05.",
    )  # fmt: skip


def _compute_section(collection: Collection) -> Section:
    columns = (
        "task", "algorithm", "seed", "env steps", "updates", "training minutes", "env steps/s",
        "rollouts a skill", "machine", "folder",
    )  # fmt: skip
    rows = []
    for task in collection.tasks:
        for label, runs in task.algorithms.items():
            for run in runs:
                spent = run.compute
                seconds, steps = spent["wall_seconds"], spent["env_steps"]
                rows.append(
                    (task.task, label, run.seed, steps, spent["updates"],
                     seconds / 60 if seconds else None, steps / seconds if seconds and steps else None,
                     spent["rollouts"], spent["machine"], str(run.path))
                )  # fmt: skip
    text = "What each run has spent so far, over all resumptions. Training minutes hold compilation and evaluations."
    return Section("Compute spent", [text], [Table("compute", columns, rows)])
