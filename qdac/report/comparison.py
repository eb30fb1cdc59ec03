"""Figures that set algorithms side by side: skill maps, profiles, learning curves, scores, improvement.

Each algorithm has one `Look` in all figures of a report: colour, line style and marker, so that one of them is
enough to tell it, in greyscale too. A band or a bar is a 95 % interval over at least three runs; with fewer
there are only the runs themselves. Call these functions within `matplotlib.rc_context(STYLE)`.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import EngFormatter, PercentFormatter

from qdac import metrics, statistics
from qdac.metrics import Evaluation
from qdac.report.figures import CURVES, draw_cells, mark_colour_bar, profile_thresholds
from qdac.report.runs_data import RunData, TaskRuns
from qdac.report.spaces import TaskView, is_circle
from qdac.report.tables import Curve
from qdac.statistics import MIN_RUNS, Comparison, Estimate

PAGE_WIDTH = 7.0
"""Inches: two journal columns."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours without the yellow, which is too light for a line."""
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "X", "P", "*")
MAPS_PER_ROW = 4
MAX_POINTS = 300
"""Steps at which learning curves of several runs are compared."""
FAINT = {"color": "0.9", "linewidth": 0.4}


@dataclasses.dataclass(frozen=True)
class Look:
    """How an algorithm is drawn, everywhere."""

    colour: str
    line_style: str | tuple
    marker: str


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A number for each skill that is drawn as a map."""

    title: str
    label: str
    values: Callable[[Evaluation, float], np.ndarray]
    """From an evaluation and d_eval to [S]; NaN is an empty cell."""
    vmax: float | None = None
    is_marked: bool = False
    """Whether -d_eval is marked on the colour bar."""


DISTANCE = Quantity(
    "distance to skill", "−d(z), in units of the skill\n(line: −d_eval)",
    lambda evaluation, d_eval: -metrics.skill_distances(evaluation), vmax=0.0, is_marked=True,
)  # fmt: skip
PERFORMANCE = Quantity(
    "performance", "return R(z), sum of rewards\n(hatched: not achieved)",
    lambda evaluation, d_eval: np.where(
        metrics.is_achieved(evaluation, d_eval), metrics.skill_returns(evaluation), np.nan
    ),
)  # fmt: skip
UNFILTERED = Quantity(
    "performance, unfiltered", "return R(z), sum of rewards\n(achieved or not)",
    lambda evaluation, d_eval: metrics.skill_returns(evaluation),
)  # fmt: skip


def make_looks(labels: Sequence[str]) -> dict[str, Look]:
    """Returns a look for each label, no two alike."""
    return {
        label: Look(
            COLOURS[i % len(COLOURS)],
            LINE_STYLES[(i + i // len(COLOURS)) % len(LINE_STYLES)],
            MARKERS[i % len(MARKERS)],
        )
        for i, label in enumerate(labels)
    }  # fmt: skip


def skill_maps(runs: Mapping[str, RunData], view: TaskView, quantities: Sequence[Quantity]) -> Figure:
    """Returns a figure with a map of each quantity for one run of each algorithm, on one colour scale a quantity.

    Algorithms stand side by side and quantities one below the other; strips, and the maps of a single
    algorithm, the other way round.
    """
    is_strip = view.skill_space.size == 1
    is_across = len(runs) > 1 and not is_strip
    per_row = min(len(runs), MAPS_PER_ROW) if is_across else 1
    num_rows = math.ceil(len(runs) / per_row)
    if is_across:
        side = min(2.4, (PAGE_WIDTH - 0.9) / per_row)
        labels_height = 0.65 if len(view.skill_space.grid_shape) > 2 else 0.4
        height = len(quantities) * num_rows * (side + labels_height)
        figure = Figure((per_row * side + 0.9, height), layout="constrained")
        parts = figure.subfigures(len(quantities), 1, squeeze=False).ravel()
    else:
        width = PAGE_WIDTH / 2 * len(quantities)
        figure = Figure((width, 0.9 + 0.75 * len(runs) if is_strip else 2.8), layout="constrained")
        parts = figure.subfigures(1, len(quantities), squeeze=False).ravel()
    for part, quantity in zip(parts, quantities, strict=True):
        _draw_quantity(part, quantity, runs, view, (num_rows, per_row))
    return figure


def _draw_quantity(
    part: SubFigure, quantity: Quantity, runs: Mapping[str, RunData], view: TaskView, shape: tuple[int, int]
) -> None:
    panels = part.subplots(*shape, squeeze=False).ravel()
    values = {label: quantity.values(run.evaluation, view.d_eval) for label, run in runs.items()}
    shown = np.concatenate(list(values.values()))
    shown = shown[np.isfinite(shown)]
    for number, (label, run) in enumerate(runs.items()):
        ax = panels[number]
        cells = draw_cells(ax, values[label], view.skill_space, view.feature_names)
        ax.set_title(f"{textwrap.fill(label, 28)}, seed {run.seed}" + ("" if shape[1] > 1 else f": {quantity.title}"))
        if shown.size:
            cells.set_clim(shown.min(), shown.max() if quantity.vmax is None else quantity.vmax)
        if not is_circle(view.skill_space):
            _wrap_labels(ax)
            x_label = ax.get_xlabel()
            ax.label_outer()
            if number + shape[1] >= len(runs):  # no map is below it
                ax.set_xlabel(x_label)
                ax.tick_params(labelbottom=True)
    for ax in panels[len(runs) :]:
        ax.set_visible(False)
    if shown.size:
        location = "bottom" if view.skill_space.size == 1 else "right"
        drawn = list(panels[: len(runs)])
        bar = part.colorbar(cells, ax=drawn, label=quantity.label, location=location, aspect=30, pad=0.03)
        mark_colour_bar(bar, -view.d_eval if quantity.is_marked else None)


def _wrap_labels(ax: Axes) -> None:
    """Breaks axis labels that are longer than a small map is wide, before their units if there are any."""
    for axis in (ax.xaxis, ax.yaxis):
        lines = axis.get_label_text().splitlines()
        text = "\n".join(line.replace(" (", "\n(", 1) if len(line) > 24 else line for line in lines)
        axis.set_label_text("\n".join(textwrap.fill(line, 30) for line in text.splitlines()))


def run_profiles(runs: Mapping[str, Sequence[RunData]], view: TaskView, looks: Mapping[str, Look]) -> Figure:
    """Returns a figure with the distance profile and the performance profiles with and without the d_eval filter."""
    figure = Figure((PAGE_WIDTH, 2.5), layout="constrained")
    left, middle, right = figure.subplots(1, 3, sharey=True)
    evaluations = [run.evaluation for group in runs.values() for run in group]
    distances = np.concatenate([metrics.skill_distances(evaluation) for evaluation in evaluations])
    returns = np.concatenate([metrics.skill_returns(evaluation) for evaluation in evaluations])
    near, high = profile_thresholds(np.append(distances, [0.0, 2 * view.d_eval])), profile_thresholds(returns)
    panels = (
        (left, near, lambda evaluation: metrics.distance_profile(evaluation, near)),
        (middle, high, lambda evaluation: metrics.performance_profile(evaluation, high, view.d_eval)),
        (right, high, lambda evaluation: metrics.performance_profile(evaluation, high)),
    )
    for ax, thresholds, profile in panels:
        for label, group in runs.items():
            draw_runs(ax, thresholds, np.stack([profile(run.evaluation) for run in group]), looks[label])
        ax.grid(**FAINT)
    left.axvline(view.d_eval, color="0.5", linestyle=":", linewidth=0.8)
    left.annotate(" d_eval", (view.d_eval, 0.0), color="0.35")
    left.set(xlabel="distance x (units of the skill)", ylabel="share of skills", title="d(z) < x")
    middle.set(xlabel="return x (sum of rewards)", title="R(z) > x and achieved")
    right.set(xlabel="return x (sum of rewards)", title="R(z) > x, achieved or not", ylim=(-0.02, 1.02))
    left.yaxis.set_major_formatter(PercentFormatter(1.0))
    for ax in (middle, right):
        ax.locator_params(axis="x", nbins=5)
    _legend(figure, {label: len(group) for label, group in runs.items()}, looks)
    return figure


def learning_curve_comparison(task: TaskRuns, looks: Mapping[str, Look]) -> Figure | None:
    """Returns a figure with a panel for each of `CURVES` that a run has, None if there is none."""
    columns = [
        name for name in CURVES if any(name in run.curves for runs in task.algorithms.values() for run in runs)
    ]
    if not columns:
        return None
    num_rows = math.ceil(len(columns) / 2)
    figure = Figure((PAGE_WIDTH, 0.5 + 1.8 * num_rows), layout="constrained")
    panels = figure.subplots(num_rows, min(2, len(columns)), squeeze=False).ravel()
    counts = dict.fromkeys(task.algorithms, 0)
    for ax, name in zip(panels, columns, strict=False):
        for label, runs in task.algorithms.items():
            curves = [run.curves[name] for run in runs if name in run.curves]
            counts[label] = max(counts[label], len(curves))
            if len(curves) >= MIN_RUNS:
                draw_runs(ax, *align(curves), looks[label])
            for steps, values in curves if len(curves) < MIN_RUNS else ():
                draw_runs(ax, steps, values[None], looks[label])
        ax.set(xlabel="environment steps", ylabel=CURVES[name])
        ax.xaxis.set_major_formatter(EngFormatter())
        if name == "eval/achieved":
            ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        ax.grid(**FAINT)
    for ax in panels[len(columns) :]:
        ax.set_visible(False)
    _legend(figure, {label: count for label, count in counts.items() if count}, looks)
    return figure


def align(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Returns common steps [T] and the curves at them [runs, T], interpolated; NaN where a run has not been."""
    steps = np.unique(np.concatenate([steps for steps, _ in curves]))
    if len(steps) > MAX_POINTS:
        steps = steps[np.linspace(0, len(steps) - 1, MAX_POINTS).astype(int)]
    return steps, np.stack([np.interp(steps, *curve, left=np.nan, right=np.nan) for curve in curves])


def draw_runs(ax: Axes, x: np.ndarray, values: np.ndarray, look: Look) -> None:
    """Draws the IQM and the band of curves [runs, T]; where there are fewer than `MIN_RUNS`, each curve alone."""
    spacing = max(1, len(x) // 8)
    style = {
        "color": look.colour, "linestyle": look.line_style, "marker": look.marker,
        "markersize": 3, "markevery": (spacing // 2, spacing),
    }  # fmt: skip
    if len(values) < MIN_RUNS:
        for curve in values:
            ax.plot(x, curve, linewidth=0.8, **style)
        return
    estimate = statistics.pointwise_iqm(values)
    ax.fill_between(x, estimate.low, estimate.high, color=look.colour, alpha=0.2, linewidth=0)
    ax.plot(x, estimate.value, **style)
    is_alone = np.isnan(estimate.value)
    is_shown = np.convolve(is_alone, [1, 1, 1], mode="same") > 0  # with the step where the others end
    for curve in values if is_alone.any() else ():
        ax.plot(x, np.where(is_shown, curve, np.nan), color=look.colour, linestyle=look.line_style, linewidth=0.5)


def _legend(figure: Figure, counts: Mapping[str, int], looks: Mapping[str, Look]) -> None:
    """Puts the algorithms above the panels, each with how many runs are drawn."""
    ax = figure.axes[0]
    handles = [
        ax.plot(
            [], [], color=looks[label].colour, linestyle=looks[label].line_style, marker=looks[label].marker,
            markersize=3, label=f"{label} ({runs_text(count)})",
        )[0]
        for label, count in counts.items()
    ]  # fmt: skip
    widest = max(map(len, counts), default=1)
    columns = max(1, min(len(handles), 110 // (widest + 24)))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=3.5)


def runs_text(count: int) -> str:
    """Returns how many runs there are, and whether that is enough for an interval."""
    return f"{count} run{'s' if count > 1 else ''}" + ("" if count >= MIN_RUNS else ", no interval")


def score_intervals(
    panels: Mapping[str, Mapping[str, tuple[np.ndarray, Estimate]]], looks: Mapping[str, Look]
) -> Figure:
    """Returns a figure with a panel for each score: for each algorithm its runs (dots), IQM (marker) and interval.

    `panels` are the runs and their estimate by label, by the name of the score.
    """
    labels = [label for label in looks if any(label in panel for panel in panels.values())]
    figure = Figure((PAGE_WIDTH, 0.75 + 0.26 * len(labels)), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (name, panel) in zip(axes, panels.items(), strict=True):
        for label, (runs, estimate) in panel.items():
            y = labels.index(label)
            ax.plot(runs, np.full(len(runs), y + 0.25), ".", color=looks[label].colour, alpha=0.6, markersize=3)
            draw_estimate(ax, estimate, y, looks[label])
        ax.set_xlabel(name)
        ax.margins(x=0.08)
        ax.locator_params(axis="x", nbins=4, min_n_ticks=3)
        ax.grid(axis="x", **FAINT)
    _name_rows(axes[0], labels)
    return figure


def improvement_intervals(panels: Mapping[str, Sequence[Comparison]]) -> Figure:
    """Returns a figure with a panel for each score: for each pair the probability that the first beats the second."""
    pairs = list(dict.fromkeys((c.first, c.second) for panel in panels.values() for c in panel))
    figure = Figure((PAGE_WIDTH, 0.75 + 0.24 * len(pairs)), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, sharex=True, squeeze=False)[0]
    look = Look("black", "-", "o")
    for ax, (name, comparisons) in zip(axes, panels.items(), strict=True):
        ax.axvline(0.5, color="0.5", linestyle=":", linewidth=0.8)
        for comparison in comparisons:
            y = pairs.index((comparison.first, comparison.second))
            draw_estimate(ax, comparison.probability, y, look)
            if comparison.adjusted_p_value is not None and comparison.adjusted_p_value < 0.05:
                ax.annotate("*", (1.09, y), ha="center", va="center")
        ax.set(title=name, xlabel="P(first > second)", xlim=(-0.06, 1.14), xticks=[0, 0.25, 0.5, 0.75, 1])
        ax.grid(axis="x", **FAINT)
    _name_rows(axes[0], [f"{first} > {second}" for first, second in pairs])
    return figure


def draw_estimate(ax: Axes, estimate: Estimate, y: float, look: Look) -> None:
    """Draws a marker at the value and a bar over the interval; the marker is hollow where there is none."""
    if estimate.low is not None:
        ends = [estimate.low, estimate.high]
        ax.plot(ends, [y, y], color=look.colour, linewidth=3, alpha=0.35, solid_capstyle="butt")
    face = look.colour if estimate.low is not None else "white"
    ax.plot(estimate.value, y, look.marker, color=look.colour, markerfacecolor=face, markersize=4)


def _name_rows(ax: Axes, names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), [textwrap.fill(name, 36) for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
