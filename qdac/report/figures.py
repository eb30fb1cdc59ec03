"""Figures of an evaluation and of a run, drawn with matplotlib objects: no global state, no simulator.

The drawing functions take data and an axes or a figure, and return it; `save_evaluation_figures` and
`learning_curves` write files. Colour maps are colour-blind safe and, but for headings, sequential.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.patches import Annulus, Rectangle, Wedge
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from qdac import metrics
from qdac.errors import UserError
from qdac.metrics import Evaluation
from qdac.report.spaces import TaskView, is_circle
from qdac.report.tables import points, read_rows

if TYPE_CHECKING:
    from qdac.types import SkillSpace, Task

STYLE = {
    "font.size": 7.0,
    "axes.titlesize": 7.0,
    "figure.titlesize": 8.0,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "legend.frameon": False,
    "legend.handlelength": 1.5,
    "hatch.linewidth": 0.4,
    "savefig.dpi": 300.0,
    "svg.hashsalt": "qdac",
    "text.parse_math": False,
}
"""Legible at the width of one journal column; the salt makes two drawings of the same data the same SVG.
Names come from users, so a $ in one is a $."""
COLUMN_WIDTH = 3.5
EMPTY = {"facecolor": "0.95", "edgecolor": "0.7", "hatch": "//////"}
RING_WIDTH = 0.3
CURVES = {
    "eval/mean_distance": "mean distance d(z)\n(units of the skill)",
    "eval/achieved": "share achieved",
    "eval/mean_return": "mean return\n(sum of rewards)",
    "train/multiplier": "multiplier λ",
}
"""Columns of metrics.csv that are drawn, and their labels."""


def heatmap(
    ax: Axes,
    values: np.ndarray,
    skill_space: SkillSpace,
    feature_names: Sequence[str] = (),
    *,
    label: str = "",
    vmax: float | None = None,
    mark: float | None = None,
) -> Axes:
    """Returns `ax` with one coloured cell a skill; a cell whose value is NaN is left empty and hatched.

    `values` are in C order of `skill_space.grid_shape`. Dimensions go to the x and y axes in turn,
    and later ones are nested in the cells of earlier ones: a strip for one dimension, a map for two,
    a map of maps for four. Headings are drawn as a ring. `mark` is a value marked on the colour bar.
    """
    cells = draw_cells(ax, values, skill_space, feature_names)
    shown = cells.get_array().compressed()
    if shown.size:
        cells.set_clim(shown.min(), shown.max() if vmax is None else vmax)
        location = "bottom" if skill_space.size == 1 else "right"
        ticks = MaxNLocator(5) if location == "bottom" else None
        bar = ax.figure.colorbar(cells, ax=ax, label=label, location=location, aspect=30, pad=0.06, ticks=ticks)
        mark_colour_bar(bar, mark)
    return ax


def draw_cells(
    ax: Axes, values: np.ndarray, skill_space: SkillSpace, feature_names: Sequence[str] = ()
) -> ScalarMappable:
    """Returns the coloured cells that it draws into `ax`, see `heatmap`; scale and bar are the caller's."""
    values = np.ma.masked_invalid(np.asarray(values, np.float64))
    if values.size != math.prod(skill_space.grid_shape):
        raise ValueError(f"expected a value for each of {skill_space.grid_shape} cells, got {values.size}")
    return (_ring if is_circle(skill_space) else _nested_map)(ax, values, skill_space, feature_names)


def mark_colour_bar(bar: Colorbar, mark: float | None) -> None:
    """Draws a line at the value `mark`, if it is on the colour bar."""
    if mark is not None and bar.norm.vmin <= mark <= bar.norm.vmax:
        bar.add_lines([mark, mark], colors=["white", "black"], linewidths=[2.5, 1.0])


def _nested_map(
    ax: Axes, values: np.ma.MaskedArray, space: SkillSpace, feature_names: Sequence[str]
) -> ScalarMappable:
    shape = space.grid_shape
    x_dims, y_dims = list(range(0, len(shape), 2)), list(range(1, len(shape), 2))
    num_columns = math.prod(shape[i] for i in x_dims)
    image = values.reshape(shape).transpose(y_dims + x_dims).reshape(-1, num_columns)
    x_low, x_high = space.low[0], space.high[0]
    y_low, y_high = (space.low[1], space.high[1]) if y_dims else (0.0, 1.0)
    cells = ax.pcolormesh(
        np.linspace(x_low, x_high, image.shape[1] + 1),
        np.linspace(y_low, y_high, image.shape[0] + 1),
        image,
        rasterized=True,
    )
    ax.patch.set(**EMPTY)
    ax.set(xlim=(x_low, x_high), ylim=(y_low, y_high))
    ax.set_xlabel(_axis_label(x_dims, space, feature_names))
    if y_dims:
        ax.set_ylabel(_axis_label(y_dims, space, feature_names))
        ax.set_box_aspect(1)
    else:
        ax.set_yticks([])
    for dims, draw_line in ((x_dims, ax.axvline), (y_dims, ax.axhline)):
        if len(dims) > 1:
            edges = np.linspace(space.low[dims[0]], space.high[dims[0]], shape[dims[0]] + 1)
            for edge in edges[1:-1]:
                draw_line(edge, color="white", linewidth=1.5)
    return cells


def _axis_label(dims: Sequence[int], space: SkillSpace, feature_names: Sequence[str]) -> str:
    if len(dims) == 1:
        return _name(feature_names, dims[0])
    outer, *inner = dims
    lines = [f"{_name(feature_names, i)}, {space.low[i]:g} to {space.high[i]:g}" for i in inner]
    return "\ninner: ".join([f"outer: {_name(feature_names, outer)}", *lines])


def _name(feature_names: Sequence[str], dim: int) -> str:
    return feature_names[dim] if dim < len(feature_names) else f"skill {dim}"


def _ring(
    ax: Axes, values: np.ma.MaskedArray, space: SkillSpace, feature_names: Sequence[str]
) -> ScalarMappable:
    edges = np.linspace(-180.0, 180.0, space.grid_shape[0] + 1)
    wedges = [Wedge((0, 0), 1.0, *arc, width=RING_WIDTH) for arc in itertools.pairwise(edges)]
    cells = PatchCollection(wedges, edgecolor="face", linewidth=0.2)
    cells.set_array(values)
    ax.add_patch(Annulus((0, 0), 1.0, RING_WIDTH, linewidth=0.6, **EMPTY))
    ax.add_collection(cells)
    ax.text(0, 0, _name(feature_names, 0), ha="center", va="center")
    _frame_circle(ax)
    return cells


def _frame_circle(ax: Axes) -> None:
    for angle, text in ((0.0, "0"), (0.5, "π/2"), (1.0, "±π"), (1.5, "−π/2")):
        x, y = math.cos(angle * math.pi), math.sin(angle * math.pi)
        ax.plot([x, 1.05 * x], [y, 1.05 * y], color="black", linewidth=0.6)
        ax.text(1.17 * x, 1.14 * y, text, ha="center", va="center")
    ax.set(xlim=(-1.3, 1.3), ylim=(-1.25, 1.25), aspect="equal")
    ax.set_axis_off()


def profiles(figure: Figure, evaluation: Evaluation, d_eval: float) -> Figure:
    """Returns `figure` with the distance profile on the left and the performance profile on the right."""
    left, right = figure.subplots(1, 2, sharey=True)
    thresholds = profile_thresholds(np.append(metrics.skill_distances(evaluation), [0.0, 2 * d_eval]))
    left.plot(thresholds, metrics.distance_profile(evaluation, thresholds), color="black")
    left.axvline(d_eval, color="0.5", linestyle=":", label="d_eval")
    left.set(xlabel="distance threshold x", ylabel="share of skills", title="d(z) < x")
    left.legend(loc="lower right")
    thresholds = profile_thresholds(metrics.skill_returns(evaluation))
    shares = metrics.performance_profile(evaluation, thresholds, d_eval)
    right.plot(thresholds, shares, color="black", label="achieved")
    shares = metrics.performance_profile(evaluation, thresholds)
    right.plot(thresholds, shares, color="0.5", linestyle="--", label="all")
    right.set(xlabel="return threshold x", title="R(z) > x", ylim=(-0.02, 1.02))
    right.locator_params(axis="x", nbins=4)
    right.legend()
    left.yaxis.set_major_formatter(PercentFormatter(1.0))
    for ax in (left, right):
        ax.grid(color="0.9", linewidth=0.4)
    return figure


def profile_thresholds(values: np.ndarray) -> np.ndarray:
    """Returns 201 thresholds over the range of the finite values."""
    finite = values[np.isfinite(values)]
    return np.linspace(finite.min(), finite.max(), 201) if finite.size else np.zeros(1)


def coverage(figure: Figure, evaluation: Evaluation, task: TaskView | Task) -> Figure:
    """Returns `figure` with the skill that each rollout showed against the skill it was asked for."""
    if is_circle(task.skill_space):
        _coverage_of_circle(figure.subplots(), evaluation, task)
    elif task.skill_space.size == 1:
        _coverage_of_line(figure.subplots(), evaluation, task)
    elif task.skill_space.size == 2:
        _coverage_of_plane(figure, evaluation, task)
    else:
        raise ValueError(f"coverage can be drawn for 1 or 2 dimensions, got {task.skill_space.size}")
    return figure


def _coverage_of_line(ax: Axes, evaluation: Evaluation, task: TaskView | Task) -> None:
    ends = np.array([task.skill_space.low[0], task.skill_space.high[0]])
    asked = np.repeat(evaluation.skills[:, 0], evaluation.returns.shape[1])
    ax.fill_between(ends, ends - task.d_eval, ends + task.d_eval, color="0.9", label="within d_eval")
    ax.plot(ends, ends, color="0.5", linewidth=0.6)
    ax.scatter(asked, evaluation.observed_skills.ravel(), s=3, color="black", linewidths=0, label="rollout")
    ax.set(xlabel=f"asked: {_name(task.feature_names, 0)}", ylabel="observed", xlim=ends)
    ax.legend(loc="upper left")


def _coverage_of_circle(ax: Axes, evaluation: Evaluation, task: TaskView | Task) -> None:
    asked = np.repeat(evaluation.skills, evaluation.returns.shape[1], axis=0)
    observed = evaluation.observed_skills.reshape(-1, 2)
    look = {"cmap": "twilight", "edgecolors": "0.3", "linewidths": 0.2, "zorder": 2}
    ax.add_collection(LineCollection(np.stack([asked, observed], axis=1), colors="0.8", linewidths=0.3))
    ax.scatter(*evaluation.skills.T, c=_angles(evaluation.skills), marker="s", s=12, **look)
    ax.scatter(*observed.T, c=_angles(asked), s=4, **look)
    ax.set_title(f"{_name(task.feature_names, 0)}; square: asked, dot: observed")
    _frame_circle(ax)


def _angles(skills: np.ndarray) -> np.ndarray:
    return np.arctan2(skills[:, 1], skills[:, 0])


def _coverage_of_plane(figure: Figure, evaluation: Evaluation, task: TaskView | Task) -> None:
    """Draws the observed skills twice, coloured by each number of the skill asked for, in random order."""
    order = np.random.default_rng(0).permutation(evaluation.returns.size)
    asked = np.repeat(evaluation.skills, evaluation.returns.shape[1], axis=0)[order]
    observed = evaluation.observed_skills.reshape(-1, 2)[order]
    (x_low, y_low), (x_high, y_high) = task.skill_space.low, task.skill_space.high
    for dim, ax in enumerate(figure.subplots(1, 2, sharex=True, sharey=True)):
        dots = ax.scatter(*observed.T, c=asked[:, dim], s=2, linewidths=0, rasterized=True)
        ax.add_patch(Rectangle((x_low, y_low), x_high - x_low, y_high - y_low, fill=False, linewidth=0.6))
        ax.set_box_aspect(1)
        ax.set_xlabel(textwrap.fill(f"observed: {_name(task.feature_names, 0)}", 24))
        label = textwrap.fill(f"asked: {_name(task.feature_names, dim)}", 24)
        figure.colorbar(dots, ax=ax, label=label, location="top")
    figure.axes[0].set_ylabel(f"observed: {_name(task.feature_names, 1)}")


@matplotlib.rc_context(STYLE)
def save_evaluation_figures(evaluation: Evaluation, task: TaskView | Task, folder: str | Path) -> list[Path]:
    """Returns the files written to `folder`: distance, performance, profiles and coverage, as PNG and SVG.

    Of the task only `name`, `skill_space`, `feature_names` and `d_eval` are read. The skills have to
    be the grid of its skill space. Coverage is drawn for skills of one or two numbers.
    """
    space = task.skill_space
    if evaluation.skills.shape != space.grid().shape or not np.allclose(evaluation.skills, space.grid()):
        raise UserError(
            f"figures of {task.name!r} need its skill grid {space.grid_shape}, got {len(evaluation.skills)} "
            "skills that are not on it; give the task the grid that was evaluated"
        )
    scores = metrics.summary(evaluation, task.d_eval)
    share = f"{scores['achieved']:.0%} of skills achieved (d < {task.d_eval:g})"
    is_achieved = metrics.is_achieved(evaluation, task.d_eval)
    written = []

    figure = _map_figure(space, f"{task.name}\n{share}, distance score {_number(scores['distance_score'])}")
    heatmap(
        figure.subplots(), -metrics.skill_distances(evaluation), space, task.feature_names,
        label="−d(z) in units of the skill (line: −d_eval)", vmax=0.0, mark=-task.d_eval,
    )
    written += save_figure(figure, folder, "distance")

    title = f"{task.name}\n{share}, performance score {_number(scores['performance_score'])}"
    figure = _map_figure(space, title)
    heatmap(
        figure.subplots(), np.where(is_achieved, metrics.skill_returns(evaluation), np.nan), space,
        task.feature_names, label="return R(z) (hatched: not achieved)",
    )
    written += save_figure(figure, folder, "performance")

    figure = _figure(2.1, f"{task.name}\n{share}")
    written += save_figure(profiles(figure, evaluation, task.d_eval), folder, "profiles")

    if space.size <= 2:
        figure = _figure(2.9, f"{task.name}\n{share}")
        written += save_figure(coverage(figure, evaluation, task), folder, "coverage")
    return written


def _map_figure(space: SkillSpace, title: str) -> Figure:
    return _figure(1.7 if space.size == 1 else 3.1, title)


def _figure(height: float, title: str) -> Figure:
    figure = Figure((COLUMN_WIDTH, height), layout="compressed")
    figure.suptitle(title)
    return figure


def _number(score: float | None) -> str:
    if score is None:
        return "undefined"
    digits = f"{score:.0f}" if abs(score) >= 100 else f"{score:.3g}"
    return digits.replace("-", "−")


def save_figure(figure: Figure, folder: str | Path, name: str, has_png: bool = True) -> list[Path]:
    """Returns the files written to `folder`: the figure as PNG, if asked for, and as SVG."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png"] if has_png else []
    for path in paths:
        figure.savefig(path)
        figure.set_layout_engine("none")  # the SVG reuses that of the PNG, which takes most of the time
    paths.append(folder / f"{name}.svg")
    figure.savefig(paths[-1], metadata={"Date": None})
    return paths


@matplotlib.rc_context(STYLE)
def learning_curves(metrics_csv: str | Path, folder: str | Path) -> list[Path]:
    """Returns the files written to `folder`, PNG and SVG: one panel for each of `CURVES` that has values.

    Returns an empty list when none has, as in a run that stopped before its first evaluation.
    """
    table = read_rows(metrics_csv).columns
    curves = {label: points(table, column) for column, label in CURVES.items()}
    curves = {label: curve for label, curve in curves.items() if len(curve[0])}
    if not curves:
        return []
    figure = Figure((COLUMN_WIDTH, 0.4 + 1.1 * len(curves)), layout="constrained")
    panels = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (label, curve) in zip(panels, curves.items(), strict=True):
        ax.plot(*curve, color="black", marker=".", markersize=2)
        ax.set_ylabel(label)
        ax.grid(color="0.9", linewidth=0.4)
    panels[-1].set_xlabel("environment steps")
    panels[-1].xaxis.set_major_formatter(EngFormatter())
    figure.align_ylabels()
    return save_figure(figure, folder, "learning_curves")
