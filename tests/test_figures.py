"""The report: what is drawn where, which files are written, and the table of results."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PatchCollection, PathCollection, QuadMesh
from matplotlib.figure import Figure

from qdac.errors import UserError
from qdac.metrics import Evaluation
from qdac.report import figures
from qdac.report.results_table import BEGIN, END, results_table, update_readme
from qdac.types import Box, Circle

LINE = Box((0.0,), (0.25,), (5,))
PLANE = Box((0.0, -5.0), (1.0, 5.0), (4, 3))
VOLUME = Box((0.0,) * 3, (1.0,) * 3, (2, 3, 4))
FOUR = Box((0.0, 0.0, -2.0, 10.0), (1.0, 3.0, 2.0, 20.0), (2, 3, 4, 5))
RING = Circle(8)


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Few pixels, for speed."""
    monkeypatch.setitem(figures.STYLE, "savefig.dpi", 40.0)


def task_with(space, name="my_task"):
    return SimpleNamespace(name=name, skill_space=space, feature_names=("first (m)",), d_eval=0.1)


def evaluate_grid(space, rollouts=2, error=0.0):
    """Returns an evaluation of the grid in which every skill is missed by `error` and returns its index."""
    skills = space.grid()
    observed = np.repeat(skills[:, None], rollouts, axis=1)
    observed[..., 0] += error
    returns = np.repeat(np.arange(len(skills), dtype=np.float32)[:, None], rollouts, axis=1)
    return Evaluation(skills, observed, returns, np.full(returns.shape, 1000))


def draw(values, space, **options):
    return figures.heatmap(Figure().subplots(), values, space, **options)


def value_at(ax, x, y):
    """Returns the value of the cell that is drawn at data coordinates (x, y), masked where it is empty."""
    (mesh,) = [artist for artist in ax.collections if isinstance(artist, QuadMesh)]
    corners = mesh.get_coordinates()
    column = np.searchsorted(corners[0, :, 0], x) - 1
    row = np.searchsorted(corners[:, 0, 1], y) - 1
    return mesh.get_array()[row, column]


def test_map_has_dimension_0_on_x_and_1_upwards_on_y():
    ax = draw(np.arange(12), PLANE, feature_names=("forward (m/s)", "sideways (m/s)"))
    for index, (x, y) in enumerate(PLANE.grid()):
        assert value_at(ax, x, y) == index
    assert (ax.get_xlim(), ax.get_ylim()) == ((0.0, 1.0), (-5.0, 5.0))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("forward (m/s)", "sideways (m/s)")


def test_strip_runs_along_x():
    ax = draw(np.arange(5), LINE)
    assert [value_at(ax, x, 0.5) for (x,) in LINE.grid()] == [0, 1, 2, 3, 4]
    assert ax.get_xlim() == (0.0, 0.25)
    assert ax.get_xlabel() == "skill 0"


def test_four_dimensions_are_maps_in_the_cells_of_a_map():
    ax = draw(np.arange(120), FOUR)
    for index, (i, j, k, m) in enumerate(np.ndindex(2, 3, 4, 5)):
        x, y = (i + (k + 0.5) / 4) / 2, j + (m + 0.5) / 5
        assert value_at(ax, x, y) == index


def test_the_third_of_three_dimensions_is_nested_along_x():
    ax = draw(np.arange(24), VOLUME)
    for index, (i, j, k) in enumerate(np.ndindex(2, 3, 4)):
        x, y = (i + (k + 0.5) / 4) / 2, (j + 0.5) / 3
        assert value_at(ax, x, y) == index


def test_nested_axes_say_what_is_inside():
    ax = draw(np.arange(120), FOUR, feature_names=("a", "b", "c (m)", "d"))
    assert ax.get_xlabel() == "outer: a\ninner: c (m), -2 to 2"
    assert ax.get_ylabel() == "outer: b\ninner: d, 10 to 20"


def test_ring_draws_each_heading_at_its_angle():
    ax = draw(np.arange(8), RING, feature_names=("heading (rad)",))
    (cells,) = [artist for artist in ax.collections if isinstance(artist, PatchCollection)]
    np.testing.assert_array_equal(cells.get_array(), np.arange(8))
    for path, heading in zip(cells.get_paths(), RING.grid(), strict=True):
        assert path.contains_point(0.9 * heading)


def test_nan_is_an_empty_cell_and_does_not_touch_the_colours():
    values = np.array([1.0, np.nan, 3.0, np.inf, 2.0])
    ax = draw(values, LINE)
    (mesh,) = ax.collections
    np.testing.assert_array_equal(mesh.get_array().mask.ravel(), [False, True, False, True, False])
    assert mesh.get_clim() == (1.0, 3.0)
    assert ax.patch.get_hatch()


@pytest.mark.parametrize("space", [LINE, PLANE, FOUR, RING])
def test_without_any_value_there_is_no_colour_bar(space):
    ax = draw(np.full(math.prod(space.grid_shape), np.nan), space)
    assert ax.figure.axes == [ax]


def test_colour_bar_is_labelled_and_marked():
    ax = draw(-np.arange(5.0), LINE, label="−d(z)", vmax=0.0, mark=-1.5)
    (bar,) = [other for other in ax.figure.axes if other is not ax]
    assert bar.get_xlabel() == "−d(z)"
    (line,) = [a for a in bar.collections if isinstance(a, LineCollection) and a.get_linewidths()[0] == 2.5]
    assert line.get_segments()[0][0][0] == -1.5


def test_values_have_to_fill_the_grid():
    with pytest.raises(ValueError, match=r"each of \(4, 3\) cells, got 11"):
        draw(np.arange(11), PLANE)


def test_profiles_pass_through_the_share_achieved():
    evaluation = evaluate_grid(LINE)
    evaluation.observed_skills[:2] += 1.0
    left, right = figures.profiles(Figure(), evaluation, 0.1).axes
    thresholds, shares = left.lines[0].get_data()
    assert shares[np.searchsorted(thresholds, 0.1)] == pytest.approx(3 / 5)
    achieved, everything = (line.get_ydata() for line in right.lines)
    assert achieved[0] == pytest.approx(3 / 5)
    assert everything[0] == pytest.approx(4 / 5)  # the lowest return is not above itself


def test_coverage_of_a_plane_colours_what_was_observed_by_what_was_asked():
    evaluation = evaluate_grid(PLANE, error=0.01)
    figure = figures.coverage(Figure(), evaluation, task_with(PLANE))
    for dim, ax in enumerate(figure.axes[:2]):
        (dots,) = [artist for artist in ax.collections if isinstance(artist, PathCollection)]
        observed, asked = dots.get_offsets(), dots.get_array()
        assert len(observed) == evaluation.returns.size
        np.testing.assert_allclose(asked, observed[:, dim] - (0.01 if dim == 0 else 0.0), atol=1e-5)


def test_coverage_of_a_line_draws_observed_against_asked():
    (ax,) = figures.coverage(Figure(), evaluate_grid(LINE, error=0.01), task_with(LINE)).axes
    (dots,) = [artist for artist in ax.collections if isinstance(artist, PathCollection)]
    asked, observed = dots.get_offsets().T
    np.testing.assert_allclose(observed - asked, 0.01, atol=1e-6)


def test_coverage_needs_at_most_two_dimensions():
    with pytest.raises(ValueError, match="got 4"):
        figures.coverage(Figure(), evaluate_grid(FOUR), task_with(FOUR))


@pytest.mark.parametrize("space, num_figures", [(LINE, 4), (PLANE, 4), (FOUR, 3), (RING, 4)])
def test_every_shape_of_skill_space_is_saved(tmp_path, space, num_figures):
    paths = figures.save_evaluation_figures(evaluate_grid(space), task_with(space), tmp_path / "figures")
    assert len(paths) == len(set(paths)) == 2 * num_figures
    assert {path.stem for path in paths} >= {"distance", "performance", "profiles"}
    for path in paths:
        start = path.read_bytes()[:8]
        assert start == b"\x89PNG\r\n\x1a\n" if path.suffix == ".png" else start.startswith(b"<?xml")


def test_the_same_data_give_the_same_bytes(tmp_path):
    evaluation, task = evaluate_grid(LINE), task_with(LINE)
    one = figures.save_evaluation_figures(evaluation, task, tmp_path / "one")
    two = figures.save_evaluation_figures(evaluation, task, tmp_path / "two")
    for first, second in zip(one, two, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name
        assert b"<dc:date>" not in first.read_bytes()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("space", [PLANE, RING])
def test_a_policy_that_diverged_still_gets_its_figures(tmp_path, space):
    evaluation = evaluate_grid(space)
    evaluation.observed_skills[:] = np.nan
    evaluation.returns[:] = np.nan
    assert figures.save_evaluation_figures(evaluation, task_with(space), tmp_path)


@pytest.mark.parametrize("other", [LINE, Box((0.0, -4.0), (1.0, 5.0), (4, 3))])
def test_skills_off_the_grid_are_refused(tmp_path, other):
    with pytest.raises(UserError, match=r"need its skill grid \(4, 3\)"):
        figures.save_evaluation_figures(evaluate_grid(other), task_with(PLANE), tmp_path)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, as objects."""
    saved = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, folder, name: saved.append(figure) or [folder])
    return saved


def test_titles_have_task_share_and_scores(tmp_path, drawn):
    evaluation = evaluate_grid(LINE)
    evaluation.observed_skills[0] += 1.0
    figures.save_evaluation_figures(evaluation, task_with(LINE, "jump"), tmp_path)
    assert [figure.get_suptitle() for figure in drawn[:2]] == [
        "jump\n80% of skills achieved (d < 0.1), distance score −0.2",
        "jump\n80% of skills achieved (d < 0.1), performance score 2",
    ]


def test_performance_leaves_failed_skills_empty(tmp_path, drawn):
    evaluation = evaluate_grid(PLANE)
    evaluation.observed_skills[5] += 1.0
    figures.save_evaluation_figures(evaluation, task_with(PLANE), tmp_path)
    ax = drawn[1].axes[0]
    cells = [value_at(ax, *skill) for skill in PLANE.grid()]
    assert [index for index, value in enumerate(cells) if value is np.ma.masked] == [5]
    assert cells[6] == 6


def test_learning_curves_draw_the_columns_that_have_values(tmp_path, drawn):
    path = tmp_path / "metrics.csv"
    path.write_text("step,eval/achieved,train/multiplier,train/other\n0,0.25,nan,1\n1000,nan,nan,2\n2000,0.5,,3\n30")
    assert figures.learning_curves(path, tmp_path)
    (ax,) = drawn[0].axes
    assert ax.get_ylabel() == "share achieved"
    np.testing.assert_array_equal(ax.lines[0].get_data(), [[0, 2000], [0.25, 0.5]])


def test_learning_curves_are_saved(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,eval/mean_return,eval/achieved\n0,1.0,0.1\n10,2.0,0.2\n")
    paths = figures.learning_curves(tmp_path / "metrics.csv", tmp_path / "figures")
    assert [path.name for path in paths] == ["learning_curves.png", "learning_curves.svg"]
    assert all(path.stat().st_size for path in paths)


@pytest.mark.parametrize("text", ["", "step,eval/achieved\n", "step,train/loss\n0,1.0\n"])
def test_without_curves_nothing_is_drawn(tmp_path, text):
    (tmp_path / "metrics.csv").write_text(text)
    assert figures.learning_curves(tmp_path / "metrics.csv", tmp_path / "figures") == []


def write_run(results, task, seed, preset="paper", algo="qdac", **scores):
    folder = results / preset / task / algo / f"seed{seed}"
    folder.mkdir(parents=True)
    evaluation = {
        "task": task, "algo": algo, "env_steps": 1_000_000, "grad_updates": 250_000, "wall_seconds": 5400.0,
        "num_skills": 2500, "rollouts_per_skill": 10, "mean_distance": 0.0512, "distance_score": -0.0512,
        "achieved": 0.8, "performance_score": 1200.0, "max_return": 2345.6, "mean_episode_length": 987.6,
        "mean_return": 1500.0,
    } | scores  # fmt: skip
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    (folder / "config.json").write_text(json.dumps({"format": 1, "config": {"seed": seed}}))
    return folder


def table_rows(results):
    """Returns the rows of the table, each as a dict by column."""
    header, _, *rows = [line.strip("| ").split(" | ") for line in results_table(results / "paper").splitlines()]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_table_has_a_row_for_each_run(tmp_path):
    write_run(tmp_path, "walker2d_feet_contact", 0)
    assert table_rows(tmp_path) == [
        {
            "task": "walker2d_feet_contact", "algorithm": "qdac", "seed": "0",
            "minutes": "90", "env steps": "1,000,000", "updates": "250,000", "rollouts": "10",
            "achieved": "80.0% (target 75%)", "performance score": "1200 (target 1000)", "best return": "2346",
            "mean distance": "0.0512", "episode length": "988",
        }
    ]  # fmt: skip


def test_table_is_ordered_by_task_algorithm_and_seed(tmp_path):
    for task, seed in (("point", 0), ("humanoid_jump", 10), ("humanoid_jump", 2), ("ant_velocity", 1)):
        write_run(tmp_path, task, seed)
    write_run(tmp_path, "humanoid_jump", 0, preset="debug")
    write_run(tmp_path, "humanoid_jump", 0, algo="domino")
    assert [tuple(row[name] for name in ("task", "algorithm", "seed")) for row in table_rows(tmp_path)] == [
        ("ant_velocity", "qdac", "1"),
        ("humanoid_jump", "qdac", "2"),
        ("humanoid_jump", "qdac", "10"),
        ("humanoid_jump", "domino", "0"),
        ("point", "qdac", "0"),
    ]


def test_other_algorithms_have_no_targets(tmp_path):
    write_run(tmp_path, "ant_velocity", 0, algo="sac", achieved=0.0)
    table = results_table(tmp_path / "paper")
    assert "| 0.0% |" in table and "target" not in table


def test_a_miss_is_a_miss_and_a_tie_is_not(tmp_path):
    write_run(tmp_path, "ant_velocity", 0, achieved=0.95, performance_score=-700.0, max_return=3499.0)
    write_run(tmp_path, "ant_velocity", 1, achieved=0.949, performance_score=-701.0, max_return=3500.0)
    write_run(tmp_path, "ant_velocity", 2, achieved=0.0, performance_score=0.0, max_return=None)
    columns = ("achieved", "performance score", "best return")
    assert [tuple(row[column] for column in columns) for row in table_rows(tmp_path)] == [
        ("95.0% (target 95%)", "−700 (target −700)", "3499 **miss** (target 3500)"),
        ("94.9% **miss** (target 95%)", "−701 **miss** (target −700)", "3500 (target 3500)"),
        ("0.0% **miss** (target 95%)", "0 (target −700)", "– **miss** (target 3500)"),
    ]


def test_a_task_without_target_cannot_miss(tmp_path):
    write_run(tmp_path, "point", 0, achieved=0.0, max_return=None)
    (row,) = table_rows(tmp_path)
    assert (row["achieved"], row["best return"]) == ("0.0%", "–")


def test_broken_runs_are_named_and_left_out(tmp_path, capsys):
    write_run(tmp_path, "ant_velocity", 0)
    (tmp_path / "paper" / "ant_velocity" / "qdac" / "seed1").mkdir()
    (write_run(tmp_path, "ant_velocity", 2) / "evaluation.json").write_text('{"task": "ant_vel')
    (write_run(tmp_path, "ant_velocity", 3) / "evaluation.json").write_text('{"task": "ant_velocity"}')
    (write_run(tmp_path, "ant_velocity", 4) / "evaluation.json").write_text("[]")
    (write_run(tmp_path, "ant_velocity", 5) / "config.json").unlink()
    write_run(tmp_path, "ant_velocity", 6, wall_seconds=None)
    assert [row["seed"] for row in table_rows(tmp_path)] == ["0"]
    messages = capsys.readouterr().err
    for seed in range(1, 7):
        assert f"left out {tmp_path}/paper/ant_velocity/qdac/seed{seed}: " in messages


def test_no_finished_run_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match="no finished run"):
        results_table(tmp_path)


def test_readme_changes_between_the_marks_only(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter {END}\n")
    for table in ("| first |\n", "| second |\n"):
        update_readme(readme, table)
        assert readme.read_text() == f"before\n{BEGIN}\n{table}{END}\nafter {END}\n"


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END} {BEGIN}"])
def test_readme_without_marks_is_left_alone(tmp_path, text):
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(UserError, match="should hold"):
        update_readme(readme, "table")
    assert readme.read_text() == text


def test_the_table_in_the_readme_is_that_of_the_results():
    root = Path(__file__).parents[1]
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert results_table(root / "results" / "laptop") in readme, "run `make results`"


def test_table_from_the_command_line(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}{END}")
    command = [sys.executable, "-W", "error", "-m", "qdac.report.results_table", tmp_path / "paper", readme]
    failed = subprocess.run(command, capture_output=True, text=True)
    assert (failed.returncode, failed.stderr.startswith("error: no finished run")) == (1, True)
    write_run(tmp_path, "humanoid_angle", 0)
    subprocess.run(command, check=True)
    assert "| humanoid_angle | qdac | 0 |" in readme.read_text()
