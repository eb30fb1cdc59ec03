"""The command line: every verb, every way to mistype it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types

import numpy as np
import pytest
import tiny

from qdac import cli, demo
from qdac.agents import ALGORITHMS
from qdac.tasks.locomotion import SPECS

SCORES = (
    "task", "algo", "env_steps", "grad_updates", "wall_seconds", "num_skills", "rollouts_per_skill",
    "mean_distance", "distance_score", "achieved", "performance_score", "max_return", "mean_episode_length",
)  # fmt: skip


@pytest.mark.parametrize("word", [(), ("--help",), ("-h",), ("help",)])
def test_usage_names_every_verb(command, word):
    code, out, _ = command(*word)
    assert code == 0
    assert all(f"qdac {verb} " in out for verb in cli.VERBS)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_of_each_verb(command, verb):
    code, out, _ = command(verb, "--help")
    assert code == 0
    options, _ = cli.VERBS[verb]
    assert options.__doc__.splitlines()[0][:60] in " ".join(out.split())


def test_help_shows_the_values_of_the_preset(command):
    paper, debug = (command("train", "--preset", preset, "--help").out for preset in ("paper", "debug"))
    assert re.search(r"default:\s+512 512", paper) and re.search(r"default:\s+32 32", debug)


def test_train_and_evaluate(command, tmp_path):
    run = tmp_path / "a run"
    arguments = tiny.train_arguments(run, learning_rate=1e-3, seed=7)
    arguments[arguments.index("--steps") + 1] = "9.6e1"
    code, out, err = command(*arguments)
    assert (code, out) == (0, "")
    assert "finished at env step 96" in err and f"qdac evaluate {run}" in err
    config = json.loads((run / "config.json").read_text())["config"]
    assert (config["steps"], config["seed"], config["agent"]["learning_rate"]) == (96, 7, 1e-3)
    assert config["agent"]["hidden_sizes"] == [8]

    code, out, _ = command("evaluate", run, "--rollouts", "2", "--json")
    scores = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    assert set(SCORES) <= scores.keys()
    assert (scores["task"], scores["env_steps"], scores["num_skills"]) == (tiny.TASK, 96, 400)
    assert scores["rollouts_per_skill"] == 2 and scores["mean_episode_length"] == 10
    saved = json.loads((run / "evaluation.json").read_text())
    assert scores.items() <= saved.items() and saved.keys() - scores.keys() == {"d_eval", "skill_space"}
    for name in ("config.json", "system.json", "metrics.csv", "timing.csv", "policy.safetensors",
                 "evaluation.csv", "figures/distance.png", "figures/learning_curves.png"):  # fmt: skip
        assert (run / name).stat().st_size > 0


def test_a_policy_file_is_evaluated_without_writing(command, trained, tmp_path):
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes((trained / "policy.safetensors").read_bytes())
    code, out, _ = command("evaluate", policy, "--rollouts", "1")
    assert code == 0
    assert "mean_distance" in out and "num_skills" in out
    assert list(tmp_path.iterdir()) == [policy]


def test_tasks_and_algos_list_everything(command):
    out = command("tasks").out
    assert all(name in out for name in SPECS)
    out = command("algos").out
    for name, algorithm in ALGORITHMS.items():
        assert name in out
        assert all(f"--preset {preset} " in out for preset in algorithm.presets)


def test_bench_prints_one_json_object(command, monkeypatch):
    from qdac import bench

    monkeypatch.setattr(bench, "run", lambda algo, task, preset, seconds, report: {"task": task, "speed": 1.5})
    assert json.loads(command("bench", "--json").out) == {"task": "walker2d_feet_contact", "speed": 1.5}
    assert "1.5" in command("bench").out


def test_demo_trains_draws_and_explains(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "TASK", tiny.TASK)
    monkeypatch.setattr(demo, "PRESET", "debug")
    monkeypatch.setattr(demo, "OVERRIDES", tiny.FIELDS)
    code, out, _ = command("demo")
    assert code == 0
    (run,) = tmp_path.glob("runs/demo/*")
    assert "400 skills" in out and out.count("(correlation ") == 2
    assert f"--resume {run.relative_to(tmp_path)}" in out
    figures = [word.rstrip(":") for word in out.split() if word.endswith(".png:")]
    assert len(figures) == 4 and all((tmp_path / figure).exists() for figure in figures)
    assert (run / "report" / "index.html").exists() and str(run.relative_to(tmp_path) / "report" / "index.html") in out


def test_demo_correlations():
    asked = np.array([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    observed = np.array([[[2.0, 5.0, 2.0]], [[4.0, 5.0, 4.0]]])
    evaluation = types.SimpleNamespace(skills=asked, observed_skills=observed)
    np.testing.assert_allclose(demo.correlations(evaluation), [1.0, 0.0, -1.0])


@pytest.mark.parametrize(
    "arguments, nearest",
    [
        (["trian"], "'train'"),
        (["train", "--taks", "x"], "'--task'"),
        (["train", "--learning-rte", "1"], "'--learning-rate'"),
        (["train", "--task", "walker2d_feet_contat"], "'walker2d_feet_contact'"),
        (["train", "--algo", "qdca"], "'qdac'"),
        (["train", "--preset", "laptpo"], "'laptop'"),
        (["train", "--loggers", "tensorbord", "--task", tiny.TASK], "'tensorboard'"),
        (["evaluate", "RUN", "--rollout", "3"], "'--rollouts'"),
        (["bench", "--tsak", "x"], "'--task'"),
    ],
)
def test_mistyped_words_are_answered_with_the_nearest(refused, monkeypatch, tmp_path, arguments, nearest):
    monkeypatch.chdir(tmp_path)
    assert f"did you mean {nearest}?" in refused(*arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("--steps", "many", "expected a whole number such as 2000 or 2e6, got 'many'"),
        ("--steps", "2.5", "expected a whole number"),
        ("--steps", "inf", "expected a whole number"),
        ("--steps", "0", "steps should be at least 1"),
        ("--seed", "-1", "seed should be from 0 to 4294967295, got -1"),
        ("--seed", "1e30", "seed should be from 0 to 4294967295"),
        ("--discount", "nothing", "nothing"),
        ("--learning-rate", "fast", "fast"),
        ("--learning-rate", "-1", "learning_rate should be positive"),
        ("--max-minutes", "nan", "max_minutes should not be negative"),
        ("--hidden-sizes", "x", "for arguments: ['x']; see qdac train --help"),
        ("--death", "never", "never"),
    ],
)
def test_bad_values_are_answered_in_one_line(refused, tmp_path, option, value, message):
    out = tmp_path / "run"
    line = refused("train", "--task", tiny.TASK, "--preset", "debug", "--out", out, option, value)
    assert message in line
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments", [["evaluate"], ["train", "--task"], ["tasks", "extra"], ["evaluate", "no_such_run"]]
)
def test_other_mistakes_are_one_line(refused, arguments):
    refused(*arguments)


def test_help_waits_for_no_simulator_and_no_figures():
    check = "import sys; from qdac import cli; cli.run(['--help']); print(*sys.modules)"
    words = subprocess.run([sys.executable, "-c", check], cwd=tiny.ROOT, capture_output=True, text=True).stdout.split()
    assert "qdac.cli" in words and not {"brax", "mujoco", "matplotlib"} & set(words)


def test_a_process_answers_in_one_line_too():
    words = [sys.executable, "-m", "qdac", "train", "--task", "ant_velocty"]
    process = subprocess.run(words, cwd=tiny.ROOT, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.count("\n") == 1 and "did you mean 'ant_velocity'?" in process.stderr


def test_an_archive_is_asked_of_a_run_without_one(refused, trained):
    assert "archive.safetensors" in refused("evaluate", trained, "--archive")


def test_an_algorithm_is_not_made_another_by_its_options(refused, tmp_path):
    words = ("train", "--algo", "no_sf", "--task", tiny.TASK, "--skill-critic", "successor", "--out", tmp_path / "run")
    assert "skill_critic distance, got successor" in refused(*words)


def test_a_resumed_run_stays_the_algorithm_it_is(refused, trained):
    line = refused("train", "--resume", trained, "--algo", "reverse_smerl")
    assert "the algorithm has reverse True, got None" in line


@pytest.mark.parametrize("word", ["none", "None"])
def test_none_is_a_value(command, tmp_path, word):
    arguments = tiny.train_arguments(tmp_path / "run", n_step=word, warmup_steps=1024)
    assert command(*arguments).code == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["agent"]["n_step"] == 16


def test_smerl_wants_a_return_to_compare_with(refused, tmp_path):
    line = refused("train", "--algo", "smerl", "--task", tiny.TASK, "--out", tmp_path / "run")
    assert "--target-return" in line and not (tmp_path / "run").exists()
