"""The words a user types: what they are turned into, what is printed, and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
import sys
import types

import pytest
from conftest import POINT_MASS, ROOT, TINY, launch

from qdac import cli, demo, training
from qdac.agents import ALGORITHMS
from qdac.config import TrainConfig, default_config
from qdac.tasks import task_names

KEYS = {
    "task", "algo", "env_steps", "grad_updates", "wall_seconds", "num_skills", "rollouts_per_skill",
    "mean_distance", "distance_score", "achieved", "performance_score", "max_return", "mean_return",
    "mean_episode_length",
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def started(monkeypatch):
    """The configs and folders that `qdac train` would have started."""
    calls = []

    def start_training(config, out):
        calls.append((config, out))
        return training.Outcome(out, 0, "finished")

    monkeypatch.setattr(training, "start_training", start_training)
    return calls


def help_of(verb, capsys):
    with pytest.raises(SystemExit) as end:
        cli.run([verb, "--help"])
    assert not end.value.code
    return capsys.readouterr().out


def test_usage_names_every_verb(capsys):
    assert cli.run([]) == cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"qdac {verb} " in text for verb in cli.VERBS)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_explains_itself(verb, capsys):
    options, _ = cli.VERBS[verb]
    text = help_of(verb, capsys)
    assert options.__doc__.splitlines()[0] in text
    for field in dataclasses.fields(options):
        assert field.name == "agent" or field.name == "policy" or f"--{field.name.replace('_', '-')}" in text


def test_every_field_of_the_algorithm_is_an_option(capsys):
    text = help_of("train", capsys)
    for field in dataclasses.fields(default_config().agent):
        assert f"--{field.name.replace('_', '-')}" in text


def test_help_of_another_preset_shows_its_values(capsys):
    with pytest.raises(SystemExit):
        cli.run(["train", "--preset", "paper", "--help"])
    assert re.search(r"--hidden-sizes.*?default: 512 512", capsys.readouterr().out, re.DOTALL)


def test_help_waits_for_no_simulator_and_no_backend():
    script = """
import sys
from qdac.cli import run
run(["--help"])
from jax._src import xla_bridge
assert not {"brax", "mujoco", "matplotlib"} & set(sys.modules), "imported too much"
assert not xla_bridge._backends, "started a backend"
"""
    process = launch(script=script)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "qdac train" in output


def test_python_m_qdac():
    process = launch("algos", script="import runpy; runpy.run_module('qdac', run_name='__main__')")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert output.startswith("qdac: ")


def test_options_are_typed_and_start_from_the_preset(started):
    words = "train --preset paper --task ant_velocity --steps 2e6 --hidden-sizes 64 1e2 --learning-rate 1e-3"
    assert cli.run([*words.split(), "--num_envs=1_024", "--no-relabel", "--loggers", "a", "b", "--out", "RUN"]) == 0
    [(config, out)] = started
    expected = default_config("qdac", "ant_velocity", "paper")
    agent = dataclasses.replace(
        expected.agent, hidden_sizes=(64, 100), learning_rate=1e-3, num_envs=1024, relabel=False
    )
    assert config == dataclasses.replace(expected, agent=agent, steps=2_000_000, loggers=("a", "b"))
    assert type(config) is TrainConfig and str(out) == "RUN"


def test_the_default_folder_tells_task_algorithm_seed_and_time():
    config = dataclasses.replace(default_config(task=POINT_MASS), seed=3)
    folder = training.default_out(config).as_posix()
    assert re.fullmatch(r"runs/examples\.point_mass-point_mass/qdac-s3-\d{8}-\d{6}", folder)


@pytest.mark.parametrize(
    "words, complaint",
    [
        ("trian", r"unknown verb 'trian'; did you mean 'train'\?"),
        ("train --stesp 3", r"unknown option '--stesp'; did you mean '--steps'\?"),
        ("train --steps=x --learning-rat 1", "--steps: expected a whole number such as 2000 or 2e6, got 'x'"),
        ("train --steps 2.5", "expected a whole number .* got '2.5'"),
        ("train --steps inf", "expected a whole number .* got 'inf'"),
        ("train --steps", "--steps"),
        ("train --steps 0", "steps should be at least 1, got 0"),
        ("train --max-minutes nan", "max_minutes should not be negative, got nan"),
        ("train --seed -1", "seed should not be negative, got -1"),
        ("train --learning-rate fast", "--learning-rate: .*'fast'"),
        ("train --learning-rate -1", "learning_rate should be positive, got -1.0"),
        ("train --hidden-sizes 1.5", "--hidden-sizes: .*1.5"),
        ("train --death slow", "'slow' .*--death.*'centre', 'opposite'"),
        ("train --algo", "--algo: expected one argument"),
        ("train --algo qdca", "unknown algorithm 'qdca'; did you mean 'qdac'"),
        ("train --preset laptpo", "unknown preset of qdac 'laptpo'; did you mean 'laptop'"),
        ("train --task ant_velocty", "unknown task 'ant_velocty'; did you mean 'ant_velocity'"),
        ("train --task nowhere:task", "no module 'nowhere'"),
        ("train --task examples.point_mass:plane_mass", "'examples.point_mass' has no 'plane_mass'"),
        (f"train --task {POINT_MASS} --backend mjx", "could not be made with options .*backend"),
        ("train --resume nowhere", "nowhere is no run folder"),
        ("evaluate", "qdac evaluate"),
        ("evaluate nowhere", "could not read the policy nowhere"),
        ("evaluate tests", "tests is no run folder"),
        ("tasks --all", "unknown option '--all'"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_clear_line(words, complaint, capsys, tmp_path):
    words = words.split()
    if words[0] == "train":
        words += ["--out", str(tmp_path / "run")]
    assert cli.run(words) == 2
    output, errors = capsys.readouterr()
    assert not output and errors.startswith("error: ") and errors.count("\n") == 1
    assert re.search(complaint, errors)
    assert not (tmp_path / "run").exists()


def test_tasks_lists_all_six_with_their_skills(capsys):
    assert cli.run(["tasks"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"ant_velocity\n.*velocity.*\n.*\[-5, 5\] x \[-5, 5\], 50 x 50 .*0\.1, d_eval 1\n", text)
    assert re.search(r"humanoid_angle\n.*\n.*\(cos, sin\)", text)
    assert len(re.findall(r"^\w+$", text, re.MULTILINE)) == 6


def test_algos_lists_algorithms_and_presets(capsys):
    assert cli.run(["algos"]) == 0
    text = capsys.readouterr().out
    for name, algorithm in ALGORITHMS.items():
        assert f"{name}: " in text and all(f"--preset {preset}" in text for preset in algorithm.presets)


def test_training_says_what_differs_from_the_preset_and_how_it_goes(train_tiny, capsys):
    run = train_tiny(steps=384)
    _, errors = capsys.readouterr()
    assert f"qdac on {POINT_MASS}, preset debug, seed 0, on " in errors
    assert f"configuration {run / 'config.json'}" in errors
    assert re.search(r"^ +hidden_sizes +\[32, 32\] -> \[8\]$", errors, re.MULTILINE)
    assert "learning_rate" not in errors
    assert re.search(r"compiling updates\.\.\.\ncompiled updates in [\d.]+ s\n", errors)
    assert re.search(r"384/384 steps .*ETA 0:00:00  skill distance .*achieved .*return .*multiplier", errors)


def test_a_run_folder_holds_what_the_readme_lists(trained):
    assert {path.name for path in trained.iterdir()} == {
        "config.json", "system.json", "metrics.csv", "timing.csv", "checkpoints", "policy.safetensors", "figures",
    }  # fmt: skip
    with (trained / "metrics.csv").open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [512, 1024, 1536, 2048]
    assert (trained / "figures" / "learning_curves.png").stat().st_size > 1000
    saved = json.loads((trained / "config.json").read_text())["config"]
    assert saved["task"] == POINT_MASS and saved["steps"] == 2048 and saved["agent"]["hidden_sizes"] == [8]


def test_evaluate_prints_one_json_object_and_writes_the_run(trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "run")
    assert cli.run(["evaluate", str(run), "--json", "--rollouts", "2"]) == 0
    output, errors = capsys.readouterr()
    scores = json.loads(output)
    assert scores.keys() == KEYS and output.count("\n") == 1
    assert scores["task"] == POINT_MASS and scores["algo"] == "qdac"
    assert scores["env_steps"] == 2048 and scores["grad_updates"] == 28 and scores["wall_seconds"] > 0
    assert scores["num_skills"] == 400 and scores["rollouts_per_skill"] == 2
    assert scores["mean_distance"] == -scores["distance_score"] and scores["mean_episode_length"] == 20
    assert "800/800 rollouts" in errors
    assert json.loads((run / "evaluation.json").read_text()) == scores
    assert len((run / "evaluation.csv").read_text().splitlines()) == 801
    for name in ("distance", "performance", "profiles", "coverage", "learning_curves"):
        assert (run / "figures" / f"{name}.png").exists()


def test_evaluate_of_a_policy_file_writes_only_where_it_is_told(trained, tmp_path, capsys):
    policy = shutil.copy(trained / "policy.safetensors", tmp_path)
    assert cli.run(["evaluate", str(policy), "--rollouts", "1"]) == 0
    assert re.search(r"^achieved +[\d.]+$", capsys.readouterr().out, re.MULTILINE)
    assert list(tmp_path.iterdir()) == [tmp_path / "policy.safetensors"]
    out = tmp_path / "scores"
    assert cli.run(["evaluate", str(policy), "--rollouts", "1", "--seed", "1", "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {"evaluation.csv", "evaluation.json", "figures"}


def test_bench_prints_what_was_measured(monkeypatch, capsys):
    def run(task, preset, seconds, report):
        report("measuring")
        return {"task": task, "preset": preset, "steps_per_second": seconds}

    monkeypatch.setitem(sys.modules, "qdac.bench", types.SimpleNamespace(run=run))
    assert cli.run(["bench", "--json", "--task", "ant_velocity", "--seconds", "0.5"]) == 0
    output, errors = capsys.readouterr()
    assert json.loads(output) == {"task": "ant_velocity", "preset": "laptop", "steps_per_second": 0.5}
    assert errors == "measuring\n"


def test_demo_leaves_earlier_demos_alone_and_says_what_to_see(tmp_path, capsys):
    (tmp_path / "demo-1").mkdir()
    budget = {name: value for name, value in TINY.items() if name != "preset"} | {"steps": 384}
    assert demo.run(POINT_MASS, "debug", budget, tmp_path) == 0
    text = capsys.readouterr().out
    figures = tmp_path / "demo-2" / "figures"
    assert f"In {figures}:" in text and re.search(r"It executes \d+% of them to within 0.2", text)
    for name in re.findall(r"\w+\.png", text):
        assert (figures / name).exists()
    assert f"qdac train --resume {tmp_path / 'demo-2'} " in text
    assert not list((tmp_path / "demo-1").iterdir())


def test_the_demo_trains_an_embedded_task_for_a_bounded_time():
    assert demo.TASK in task_names()
    assert 0 < demo.BUDGET["max_minutes"] < 5
