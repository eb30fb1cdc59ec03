"""The report over runs: what it reads, whom it groups, what it says of broken folders, and what it writes."""

import csv
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from run_folders import D_EVAL, NAMES, PLANE, make_evaluation, make_run, write_csv

from qdac import statistics
from qdac.errors import UserError
from qdac.report import comparison, figures
from qdac.report.build import SCORES, write_report
from qdac.report.runs_data import collect, read_run
from qdac.report.spaces import describe_space, infer_d_eval, infer_space, task_view
from qdac.report.tables import Table, read_rows
from qdac.types import Box, Circle

FOUR = Box((0.0,) * 4, (1.0,) * 4, (2, 3, 2, 2))


@pytest.fixture(autouse=True, scope="module")
def coarse():
    """Few pixels and few resamples, for speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(figures.STYLE, "savefig.dpi", 40.0)
        for function in (statistics.iqm_estimate, statistics.pointwise_iqm, statistics.compare):
            patch.setattr(function, "__defaults__", (100, 0))
        yield


def reasons(collection):
    return {folder.rsplit("/", 1)[-1]: reason for folder, reason in collection.left_out}


def cells(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


# Reading


def test_a_whole_run_needs_no_note(tmp_path):
    run = read_run(make_run(tmp_path / "run", seed=3, missed=3))
    assert (run.task, run.algo, run.seed, run.notes) == ("point", "qdac", 3, ())
    assert run.scores["achieved"] == 9 / 12
    assert run.scores["coverage"] == 9 / 12  # the three that missed are where another is, or outside
    assert run.view.feature_names == NAMES
    assert run.compute == {
        "env_steps": 3000, "updates": 750, "wall_seconds": 300.0, "rollouts": 2, "machine": "2 cores, 2 × cpu",
    }  # fmt: skip
    np.testing.assert_array_equal(run.curves["eval/achieved"], [[1000, 2000, 3000], [0.03, 0.13, 0.23]])


def test_scores_are_computed_again_from_the_rollouts(tmp_path):
    folder = make_run(tmp_path / "run", missed=3)
    saved = json.loads((folder / "evaluation.json").read_text())
    (folder / "evaluation.json").write_text(json.dumps(saved | {"achieved": 1.0}))
    assert read_run(folder).scores["achieved"] == 9 / 12


def test_rows_are_read_as_far_as_they_are_whole(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,a,b\n200,2,\n100,1,1.5\nx,1,1\n300,3\n100,7,nan\n400,4,4.")
    rows = read_rows(path)
    np.testing.assert_array_equal(rows.columns["step"], [100, 200])
    np.testing.assert_array_equal(rows.columns["a"], [7, 2])
    assert np.isnan(rows.columns["b"]).all() and rows.num_bad == 2


@pytest.mark.parametrize(
    "space", [PLANE, Box((-5.0, 0.0), (5.0, 0.25), (50, 3)), Box((0.0,), (0.25,), (50,)), Circle(50), FOUR]
)
def test_a_skill_space_survives_its_description_and_is_inferred_from_its_grid(space):
    saved = {"d_eval": D_EVAL, "skill_space": describe_space(space, NAMES)}
    view, note = task_view("point", json.loads(json.dumps(saved)), make_evaluation(space))
    assert (view.skill_space, view.feature_names, view.d_eval, note) == (space, NAMES, D_EVAL, None)
    assert infer_space(space.grid()) == space


def test_d_eval_is_inferred_where_the_share_tells_it():
    evaluation = make_evaluation(missed=2)
    assert 0.0142 < infer_d_eval(evaluation, 10 / 12) <= 0.71
    for achieved in (0.0, 1.0, None):
        with pytest.raises(ValueError, match="no d_eval"):
            infer_d_eval(evaluation, achieved)


def test_an_evaluation_from_before_the_skill_space_was_saved(tmp_path):
    folder = make_run(tmp_path / "run", missed=2)
    saved = json.loads((folder / "evaluation.json").read_text())
    (folder / "evaluation.json").write_text(json.dumps({k: v for k, v in saved.items() if k in ("achieved", "task")}))
    run = read_run(folder)
    assert run.view.skill_space == PLANE and run.view.feature_names == ()
    assert run.scores["achieved"] == 10 / 12
    assert "were inferred" in run.notes[0] and f"qdac evaluate {folder}" in run.notes[0]


@pytest.mark.parametrize(
    "damage, reason, is_drawn",
    [
        (lambda run: (run / "evaluation.csv").unlink(), "for maps and profiles run `qdac evaluate", False),
        (lambda run: (run / "evaluation.csv").write_text("skill_0,roll"), "not a whole evaluation table", False),
        (lambda run: (run / "evaluation.json").write_text('{"task": '), "evaluation.json is damaged", False),
        (lambda run: (run / "evaluation.json").write_text("[]"), "holds no JSON object", False),
        (lambda run: (run / "metrics.csv").unlink(), "no learning curves", True),
        (lambda run: (run / "metrics.csv").write_bytes(b"\xff\x00\n1\n"), "1 damaged rows", True),
        (lambda run: (run / "system.json").write_text("{"), "system.json is damaged", True),
        (lambda run: (run / "timing.csv").unlink(), None, True),
    ],
)  # fmt: skip
def test_a_damaged_run_is_used_as_far_as_it_goes(tmp_path, damage, reason, is_drawn):
    folder = make_run(tmp_path / "run")
    damage(folder)
    run = read_run(folder)
    assert (run.evaluation is not None) == is_drawn
    assert reason in " ".join(run.notes) if reason else not run.notes


def test_an_evaluation_older_than_the_run_is_said(tmp_path):
    folder = make_run(tmp_path / "run", num_rows=3)
    write_csv(folder / "metrics.csv", {"step": [1000, 9000], "eval/achieved": [0.1, 0.2]})
    (note,) = read_run(folder).notes
    assert "evaluated at env step 3,000, and its policy is now that of 9,000" in note


@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda run: (run / "config.json").unlink(), "has no config.json"),
        (lambda run: (run / "config.json").write_text("{"), "is damaged"),
        (lambda run: (run / "config.json").write_text('{"format": 1, "config": {"algo": "x"}}'), "names no task"),
        (lambda run: (run / "config.json").write_text('{"format": 1, "config": []}'), "is damaged"),
        (lambda run: (run / "config.json").write_text('{"format": 99, "config": {}}'), "update qdac"),
        (lambda run: [path.unlink() for path in run.glob("*.csv")], "neither rows in metrics.csv nor scores"),
    ],
)  # fmt: skip
def test_a_useless_folder_is_named_and_the_others_are_reported(tmp_path, damage, reason):
    good = make_run(tmp_path / "good")
    bad = make_run(tmp_path / "bad", is_evaluated=False)
    damage(bad)
    collection = collect([good, bad])
    assert reason in reasons(collection)["bad"]
    assert [run.path.name for run in collection.tasks[0].algorithms["qdac"]] == ["good"]
    with pytest.raises(UserError, match=f"no usable run: .*{reason}"):
        collect([bad])


def test_no_damage_to_a_folder_breaks_the_report_of_another(tmp_path):
    good = make_run(tmp_path / "good", 0)
    generator = np.random.default_rng(0)
    for name in ("config.json", "system.json", "metrics.csv", "timing.csv", "evaluation.json", "evaluation.csv"):
        bad = make_run(tmp_path / name, 1)
        whole = (bad / name).read_bytes()
        for _ in range(25):
            garbled = bytearray(whole[: generator.integers(1, len(whole) + 1)])
            for place in generator.integers(0, len(garbled), 3):
                garbled[place] = generator.choice(list(b'9-e,"[{}:\n\x00\xff'))
            (bad / name).write_bytes(garbled)
            (task, *_) = [task for task in collect([good, bad]).tasks if task.task == "point"]
            assert good in [run.path for runs in task.algorithms.values() for run in runs]


@pytest.mark.parametrize("rollout", ["inf", "1e18", "-5", "nan"])
def test_a_table_with_an_absurd_rollout_is_a_note(tmp_path, rollout):
    folder = make_run(tmp_path / "run")
    lines = (folder / "evaluation.csv").read_text().splitlines()
    cells_of_last = lines[-1].split(",")
    cells_of_last[lines[0].split(",").index("rollout")] = rollout
    (folder / "evaluation.csv").write_text("\n".join([*lines[:-1], ",".join(cells_of_last)]) + "\n")
    run = read_run(folder)
    assert run.evaluation is None and "not a whole evaluation table" in run.notes[0]


# Grouping


def test_runs_are_grouped_by_task_and_algorithm_below_any_folder(tmp_path):
    for algo in ("qdac", "smerl"):
        for seed in (1, 0):
            make_run(tmp_path / "a" / f"{algo}{seed}", seed, algo)
    make_run(tmp_path / "b", 0, "qdac", "other")
    collection = collect([tmp_path, tmp_path / "b"])
    assert [task.task for task in collection.tasks] == ["other", "point"]
    seeds = {label: [run.seed for run in runs] for label, runs in collection.tasks[1].algorithms.items()}
    assert seeds == {"qdac": [0, 1], "smerl": [0, 1]}
    assert collection.left_out == ()


def test_a_seed_counts_once(tmp_path):
    short = make_run(tmp_path / "short", 0, num_rows=2)
    long = make_run(tmp_path / "long", 0, num_rows=5)
    shutil.copytree(short, tmp_path / "copy")
    collection = collect([short, long, tmp_path / "copy", make_run(tmp_path / "other", 1)])
    assert [run.path.name for run in collection.tasks[0].algorithms["qdac"]] == ["long", "other"]
    assert reasons(collection).keys() == {"short", "copy"}


def test_a_setting_that_an_older_run_does_not_name_is_the_same(tmp_path):
    make_run(tmp_path / "old", seed=0, agent={"discount": 0.99})
    make_run(tmp_path / "new", seed=1, agent={"discount": 0.99, "added": True})
    assert collect([tmp_path]).labels == ["qdac"]
    make_run(tmp_path / "again", seed=0, agent={"discount": 0.99, "added": True})
    collection = collect([tmp_path])
    assert [run.seed for run in collection.tasks[0].algorithms["qdac"]] == [0, 1]
    assert len(collection.left_out) == 1 and "no independent run" in str(collection.left_out)


def test_the_evaluation_of_an_archive_is_an_algorithm_of_its_own(tmp_path):
    run = make_run(tmp_path / "run", algo="smerl", missed=3)
    other = make_run(tmp_path / "other", missed=0)
    (run / "archive").mkdir()
    for name in ("evaluation.csv", "evaluation.json"):
        (run / "archive" / name).write_bytes((other / name).read_bytes())
    (task,) = collect([run]).tasks
    achieved = {label: float(values[0]) for label, values in task.scores("achieved").items()}
    assert achieved == {"smerl": 0.75, "smerl_archive": 1.0}


def test_other_settings_are_other_variants_and_not_other_seeds(tmp_path):
    same = {"a": 0, "b": 0}
    settings = [{"discount": 0.99, **same}, {"discount": 0.9, **same}, {"discount": 0.99, "a": 1, "b": 2}]
    first, second, third = (make_run(tmp_path / f"{i}", i, agent=agent) for i, agent in enumerate(settings))
    assert set(collect([first, second]).labels) == {"qdac (discount=0.99)", "qdac (discount=0.9)"}
    collection = collect([first, second, third])
    assert collection.labels == ["qdac (variant 1)", "qdac (variant 2)", "qdac (variant 3)"]
    assert "differ in a, b, discount" in reasons(collection)["point: qdac"]
    other = make_run(tmp_path / "paper", 0, agent=settings[0], preset="paper")
    assert set(collect([first, other]).labels) == {"qdac laptop", "qdac paper"}


def test_an_evaluation_on_another_grid_is_not_mixed_in(tmp_path):
    runs = [make_run(tmp_path / "a", 0), make_run(tmp_path / "b", 1, space=Box((0.0, 0.0), (1.0, 1.0), (3, 3)))]
    collection = collect(runs)
    (task,) = collection.tasks
    assert [run.seed for run in task.evaluated()["qdac"]] == [0]
    assert list(task.scores("achieved")["qdac"]) == [11 / 12]
    assert "on the grid (3, 3)" in reasons(collection)["b"]


# Figures


def draw(function, *arguments):
    with matplotlib.rc_context(figures.STYLE):
        figure = function(*arguments)
        figure.canvas.draw()
    return figure


def test_looks_differ_in_more_than_colour():
    looks = list(comparison.make_looks([f"algorithm {i}" for i in range(20)]).values())
    assert len({(look.colour, look.line_style) for look in looks}) == 20
    for one, other in zip(looks, looks[1:], strict=False):
        assert one.line_style != other.line_style and one.marker != other.marker
    assert all(max(to_rgb(look.colour)) < 1.0 and np.mean(to_rgb(look.colour)) < 0.8 for look in looks)


@pytest.mark.parametrize("space", [PLANE, Box((0.0,), (1.0,), (6,)), FOUR, Circle(8)])
@pytest.mark.parametrize("num_algorithms", [1, 2, 5])
def test_maps_of_all_algorithms_share_a_scale_and_leave_failed_skills_empty(tmp_path, space, num_algorithms):
    runs = {
        f"a{i}": read_run(make_run(tmp_path / f"{i}", algo=f"a{i}", space=space, level=100.0 * i, missed=i))
        for i in range(num_algorithms)
    }
    view = runs["a0"].view
    figure = draw(comparison.skill_maps, runs, view, [comparison.DISTANCE, comparison.PERFORMANCE])
    maps = [cells for ax in figure.axes if ax.get_title() for cells in ax.collections if cells.get_array() is not None]
    assert len(maps) == 2 * num_algorithms
    near, returns = maps[:num_algorithms], maps[num_algorithms:]
    assert len({cells.get_clim() for cells in near}) == len({cells.get_clim() for cells in returns}) == 1
    assert near[0].get_clim()[1] == 0.0
    assert returns[0].get_clim() == (0.0, 100.0 * (num_algorithms - 1) + len(space.grid()) - 1)
    assert [cells.get_array().mask.sum() for cells in returns] == list(range(num_algorithms))


def test_three_runs_have_a_band_and_two_are_two_lines(tmp_path):
    looks = comparison.make_looks(["few", "many"])
    for label, count in (("few", 2), ("many", 3)):
        for seed in range(count):
            make_run(tmp_path / label / str(seed), seed, label, missed=seed)
    (task,) = collect([tmp_path]).tasks
    figure = draw(comparison.learning_curve_comparison, task, looks)
    ax = next(ax for ax in figure.axes if ax.get_ylabel() == "share achieved")
    lines = [line for line in ax.lines if len(line.get_xdata())]
    assert [line.get_color() for line in lines] == [looks["few"].colour] * 2 + [looks["many"].colour]
    assert len(ax.collections) == 1
    np.testing.assert_allclose(lines[-1].get_ydata(), [0.01, 0.11, 0.21])  # the mean of three seeds
    figure = draw(comparison.run_profiles, task.evaluated(), task.view, looks)
    assert [len(ax.collections) for ax in figure.axes] == [1, 1, 1]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["few (2 runs, no interval)", "many (3 runs)"]


def test_longer_runs_go_on_alone_without_a_band(tmp_path):
    for seed, rows in enumerate((2, 3, 3, 5)):
        make_run(tmp_path / str(seed), seed, num_rows=rows)
    (task,) = collect([tmp_path]).tasks
    figure = draw(comparison.learning_curve_comparison, task, comparison.make_looks(["qdac"]))
    pooled, *alone = [line.get_ydata() for line in figure.axes[0].lines if len(line.get_xdata())]
    np.testing.assert_array_equal(np.isfinite(pooled), [True, True, True, False, False])
    np.testing.assert_array_equal(np.isfinite(alone[-1]), [False, False, True, True, True])
    assert [np.isfinite(curve).sum() for curve in alone[:-1]] == [0, 1, 1]  # a line starts where the others end


# The whole


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two algorithms on two tasks, 3 seeds each, an awkwardly named one, and a broken folder."""
    root = tmp_path_factory.mktemp("runs")
    for task in ("point", "my.module:<b>$task"):
        for number, algo in enumerate(("qdac", "a <script> $x$")):
            for seed in range(3):
                folder = root / f"{task[:2]}-{number}-{seed}"
                make_run(folder, seed, algo, task, missed=3 * number + seed, level=10.0 * seed)
    (make_run(root / "broken") / "config.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def report(folders, tmp_path_factory):
    return write_report([folders], tmp_path_factory.mktemp("report"))


class Links(HTMLParser):
    """All addresses in a page, and the names of its elements."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.names = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href") and value]


def test_the_page_holds_all_figures_and_needs_no_network(report):
    text = report.index.read_text()
    page = Links(text)
    folder = report.index.parent
    drawings = sorted((folder / "figures").glob("*.svg"))
    assert page.names.count("svg") == len(drawings) == 2 * 6 + 2
    for address in page.addresses:
        assert address.startswith(("#", "data:")) or (folder / address).is_file(), address
    assert not {"script", "link", "iframe", "img"} & set(page.names)
    assert "url(http" not in text and "@import" not in text
    assert "a &lt;script&gt; $x$" in text and "my.module:&lt;b&gt;$task" in text


def test_every_figure_has_both_formats_and_every_table_is_csv(report):
    folder = report.index.parent
    names = {path.stem for path in (folder / "figures").iterdir()}
    assert {path.name for path in (folder / "figures").iterdir()} == {f"{n}.{e}" for n in names for e in ("svg", "png")}
    assert {"aggregated_scores", "aggregated_improvement", "point_maps", "point_maps_unfiltered"} <= names
    tables = {path.stem for path in (folder / "tables").glob("*.csv")}
    assert {"summary", "estimates", "left_out", "comparisons", "compute", "point_runs"} <= tables
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names | tables)


def test_tables_hold_estimates_and_comparisons(report):
    tables = report.index.parent / "tables"
    rows = {(row["task"], row["algorithm"], row["score"]): row for row in cells(tables / "estimates.csv")}
    assert len(rows) == 2 * 2 * len(SCORES)
    row = rows["point", "qdac", "achieved"]
    assert float(row["IQM"]) == pytest.approx(11 / 12) and float(row["low"]) < 11 / 12 < float(row["high"])
    compared = cells(tables / "comparisons.csv")
    assert {row["task"] for row in compared} == {"point", "my.module:<b>$task", "all tasks"}
    row = next(row for row in compared if (row["task"], row["score"]) == ("point", "share achieved"))
    assert (row["first"], row["second"], float(row["P(first > second)"])) == ("a <script> $x$", "qdac", 0.0)
    assert (float(row["p"]), float(row["p (Holm)"])) == pytest.approx((0.1, 0.2))
    assert [row["folder"].rsplit("/")[-1] for row in cells(tables / "left_out.csv")] == ["broken"]


def test_a_report_over_one_run_compares_nothing(tmp_path):
    make_run(tmp_path / "run", is_evaluated=False)
    written = write_report([tmp_path / "run"], tmp_path / "report", has_png=False)
    text = written.index.read_text()
    assert "nothing to compare" in text and "no interval" in text
    assert [path.name for path in (tmp_path / "report" / "figures").iterdir()] == ["point_learning_curves.svg"]


def test_a_policy_that_diverged_is_reported(tmp_path):
    folder = make_run(tmp_path / "run")
    evaluation = make_evaluation()
    evaluation.observed_skills[:], evaluation.returns[:] = np.nan, np.nan
    evaluation.save(folder / "evaluation.csv")
    write_csv(folder / "metrics.csv", {"step": [1000, 2000], "eval/mean_distance": ["nan", "inf"]})
    summary = write_report([folder], tmp_path / "report", has_png=False).summary
    assert "0.0%" in summary.texts()[0]


def test_the_same_runs_make_the_same_report(tmp_path):
    make_run(tmp_path / "run")
    written = [write_report([tmp_path / "run"], tmp_path / name, has_png=False).index for name in ("one", "two")]
    first, again = ({path.name: path.read_bytes() for path in index.parent.rglob("*.*")} for index in written)
    assert first == again


def test_the_command_prints_a_summary_and_what_was_left_out(command, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    folder, broken = make_run(tmp_path / "run", missed=3), tmp_path / "broken"
    code, out, err = command("report", folder, broken, "-o", tmp_path / "report", "--no-png")
    assert code == 0
    header, row = (re.split(r"\s{2,}", line.strip()) for line in out.splitlines())
    assert dict(zip(header, row, strict=True)) == {
        "task": "point", "algorithm": "qdac", "runs": "1 run, no interval", "share achieved": "75.0%",
        "performance score": "80.2", "distance score": "−0.191", "coverage": "75.0%", "env steps": "3,000",
    }  # fmt: skip
    assert f"note: {broken}: " in err and f"report in {tmp_path / 'report' / 'index.html'}" in err
    assert not list((tmp_path / "report" / "figures").glob("*.png"))


def test_no_usable_run_is_one_line(refused, tmp_path):
    assert "no usable run" in refused("report", tmp_path / "nothing", "-o", tmp_path / "report")
    assert "at least one run folder" in refused("report")
    assert not (tmp_path / "report").exists()


def test_the_report_imports_no_simulator_and_no_agent():
    check = "import sys, qdac.report.build; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.split()
    assert "qdac.report.build" in modules
    assert not [name for name in modules if name.startswith(("brax", "mujoco", "qdac.agents", "qdac.tasks"))]


def test_tables_are_for_machines_in_full_and_for_readers_in_short(tmp_path):
    table = Table("t", ("a", "b", "c", "d"), [(1234567, -0.123456, None, "x, y")])
    assert table.texts() == [["1,234,567", "−0.123", "–", "x, y"]]
    assert table.save(tmp_path).read_text() == 'a,b,c,d\n1234567,-0.123456,,"x, y"\n'
