"""Each thing that can go wrong with a run: one line, an exit code, and nothing overwritten."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import tiny
from tiny import checkpoints, train_arguments

import qdac
from examples.point_mass import point_mass
from qdac.training import Training

FAULTY_TASKS = """
import dataclasses

import jax.numpy as jnp
from examples.point_mass import PointMass, point_mass


class Aging(PointMass):
    '''A point mass whose rewards are spoiled from the twentieth step of an episode.'''

    observation_size = 5

    def __init__(self, spoiled):
        self.spoiled = spoiled

    def reset(self, rng):
        state = super().reset(rng)
        return state._replace(obs=jnp.append(state.obs, 0.0))

    def step(self, state, action):
        age = state.obs[4] + 1.0
        state = super().step(state._replace(obs=state.obs[:4]), action)
        reward = jnp.where(age >= 20.0, self.spoiled, state.reward)
        return state._replace(obs=jnp.append(state.obs, age), reward=reward)


def with_env(env):
    return dataclasses.replace(point_mass(), env=env, feature_fn=lambda state: state.obs[2:4])


not_a_number = with_env(Aging(jnp.nan))
huge = with_env(Aging(1e30))
wrong_feature = dataclasses.replace(point_mass(), feature_fn=lambda state: state.obs)
not_a_task = 3


class Tall(PointMass):
    observation_size = 7


wrong_obs = with_env(Tall())


class Forgetful(PointMass):
    def step(self, state, action):
        return {"state": state}["info"]


forgetful = with_env(Forgetful())


def unmade():
    raise RuntimeError("no robot here")
"""


@pytest.fixture
def faulty_tasks(tmp_path, monkeypatch):
    """Makes the module faulty_tasks importable."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "faulty_tasks.py").write_text(FAULTY_TASKS)
    monkeypatch.syspath_prepend(tmp_path / "modules")


def contents(folder: Path) -> dict[Path, bytes]:
    """Returns every file of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def error_line(finished: tiny.Finished) -> str:
    """Returns the last line of a command that failed while training; there is no other like it."""
    assert finished.code == 2
    errors = [line for line in finished.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and finished.err.endswith(f"{errors[0]}\n") and "Traceback" not in finished.err
    return errors[0]


def test_an_existing_run_folder(refused, trained_copy):
    before = contents(trained_copy)
    line = refused(*train_arguments(trained_copy))
    assert f"qdac train --resume {trained_copy}" in line and "--out" in line
    assert contents(trained_copy) == before


def test_an_unwritable_folder(refused, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    line = refused(*train_arguments(file / "run"))
    assert f"could not create the run folder {file / 'run'}" in line
    assert file.read_text() == "mine"


def test_no_folder_to_resume(refused, tmp_path):
    assert "is no run folder" in refused("train", "--resume", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_resume_goes_on_in_its_own_folder(refused, trained_copy, tmp_path):
    assert "leave out --out" in refused("train", "--resume", trained_copy, "--out", tmp_path / "other")


@pytest.mark.parametrize(
    "option, value, difference",
    [
        ("--learning-rate", "1e-3", "agent.learning_rate: 0.0003 -> 0.001"),
        ("--seed", "5", "seed: 0 -> 5"),
        ("--task", "ant_velocity", f"task: {tiny.TASK} -> ant_velocity"),
        ("--preset", "laptop", "preset: debug -> laptop"),
    ],
)
def test_a_resume_with_a_changed_config(refused, trained_copy, option, value, difference):
    before = contents(trained_copy)
    line = refused("train", "--resume", trained_copy, option, value)
    assert difference in line and "only steps, max_minutes, checkpoint_minutes, loggers may change" in line
    assert contents(trained_copy) == before


@pytest.mark.parametrize("when", ["at the first checkpoint", "later"])
def test_a_full_disk(command, monkeypatch, tmp_path, when):
    run, sync, num_calls = tmp_path / "run", os.fsync, 0

    def fsync_on_a_full_disk(descriptor: int) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls > (6 if when == "at the first checkpoint" else 30):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync_on_a_full_disk)
        finished = command(*train_arguments(run, checkpoint_minutes=0.0))
    line = error_line(finished)
    assert "disk full" in line and re.search(r"needs [\d,]+ bytes", line)
    assert not list(run.rglob("*partial*"))
    assert bool(checkpoints(run)) == (when == "later")
    assert command("train", "--resume", run).code == 0
    assert checkpoints(run)[-1].name == f"{tiny.FIELDS['steps']:012d}"


@pytest.mark.parametrize(
    "name, message",
    [
        ("wrong_feature", "feature(state) should be (2,), got (4,)"),
        ("wrong_obs", "state.obs at reset should be (7,), got (4,)"),
        ("not_a_task", "could not be made"),
        ("absent", "module 'faulty_tasks' has no 'absent'"),
        ("forgetful", "reset, step or feature cannot be traced: KeyError: 'info' ("),
        ("unmade", "could not be made with options {}: RuntimeError: no robot here ("),
    ],
)
def test_a_custom_task_that_does_not_fit(refused, faulty_tasks, tmp_path, name, message):
    out = tmp_path / "run"
    line = refused("train", "--task", f"faulty_tasks:{name}", "--preset", "debug", "--out", out)
    assert message in line
    assert not out.exists()


@pytest.mark.parametrize(
    "source, message",
    [
        ("def task(:", "SyntaxError: invalid syntax ("), ("1 / 0", "ZeroDivisionError: division by zero ("),
        ("import qdac\nqdac.no_such_name", "AttributeError: "), ("from qdac import nowhere", "ImportError: "),
    ],
)  # fmt: skip
def test_a_module_that_cannot_be_imported(refused, tmp_path, monkeypatch, source, message):
    (tmp_path / "broken_task.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_task", raising=False)
    line = refused("train", "--task", "broken_task:task", "--out", tmp_path / "run")
    assert "module 'broken_task' cannot be imported" in line and message in line
    assert f"{tmp_path / 'broken_task.py'}, line" in line
    assert not (tmp_path / "run").exists()


def test_a_task_object_that_does_not_fit(tmp_path):
    wrong = dataclasses.replace(point_mass(), feature_fn=lambda state: state.reward)
    with pytest.raises(qdac.UserError, match=r"feature\(state\) should be \(2,\), got \(\)"):
        qdac.train(wrong, preset="debug", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name, broken", [("not_a_number", "observations or rewards of the env"), ("huge", "loss/critic")]
)
def test_what_is_not_finite_stops_the_run(command, faulty_tasks, tmp_path, name, broken):
    run = tmp_path / "run"
    arguments = train_arguments(run, checkpoint_minutes=0.0)
    arguments[arguments.index("--task") + 1] = f"faulty_tasks:{name}"
    del arguments[(index := arguments.index("--episode-length")) : index + 2]
    line = error_line(command(*arguments))
    assert "not finite at env step" in line and broken in line
    (last_good,) = re.findall(r"step (\d+) is saved", line)
    assert int(checkpoints(run)[-1].name) == int(last_good) >= 64
    before = contents(run / "checkpoints")
    assert np.isfinite(qdac.load(run)(np.zeros(5), np.zeros(2))).all()
    assert error_line(command("train", "--resume", run)).split(";")[0] == line.split(";")[0]
    assert contents(run / "checkpoints") == before


def test_weights_that_the_last_update_spoiled_are_not_saved(monkeypatch, tmp_path):
    """All losses up to then are finite; they are of the weights before that update."""
    iterate = Training.iterate

    def spoil(self, *arguments):
        iterate(self, *arguments)
        if self.step == 96:
            agent = self.state.agent
            params = agent.params | {"log_temperature": agent.params["log_temperature"] * np.nan}
            self.state = self.state._replace(agent=agent._replace(params=params))

    monkeypatch.setattr(Training, "iterate", spoil)
    with pytest.raises(qdac.UserError, match="at env step 96: .*log_temperature.*step 80 is saved"):
        tiny.train(tmp_path / "run", checkpoint_minutes=0.0)
    assert [int(path.name) for path in checkpoints(tmp_path / "run")] == [64, 80]


def test_a_policy_of_another_task(refused, trained):
    before = contents(trained)
    line = refused("evaluate", trained, "--task", "ant_velocity")
    assert f"was trained on the task '{tiny.TASK}', not on 'ant_velocity'" in line
    assert contents(trained) == before


def test_a_policy_of_another_task_in_a_run_folder(refused, trained_copy):
    config = json.loads((trained_copy / "config.json").read_text())
    config["config"]["task"] = "ant_velocity"
    (trained_copy / "config.json").write_text(json.dumps(config))
    before = contents(trained_copy)
    assert f"was trained on the task '{tiny.TASK}', not on 'ant_velocity'" in refused("evaluate", trained_copy)
    assert contents(trained_copy) == before


def test_a_policy_of_a_newer_format(refused, trained, tmp_path):
    path = tmp_path / "policy.safetensors"
    with safetensors.safe_open(trained / "policy.safetensors", framework="np") as file:
        safetensors.numpy.save_file(file.get_tensors(), path, file.metadata() | {"qdac_format": "2"})
    assert "has format 2, expected at most 1; update qdac" in refused("evaluate", path)


@pytest.mark.parametrize("num_bytes", [0, 5, 300, -1])
def test_a_truncated_policy(refused, trained, tmp_path, num_bytes):
    path = tmp_path / "policy.safetensors"
    path.write_bytes((trained / "policy.safetensors").read_bytes()[:num_bytes])
    assert f"{path} is no whole safetensors file" in refused("evaluate", path)


def test_a_run_without_a_policy_yet(refused, trained_copy):
    (trained_copy / "policy.safetensors").unlink()
    assert "has no policy yet" in refused("evaluate", trained_copy)


def test_a_full_disk_while_an_evaluation_is_written(command, trained_copy, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("evaluation.csv", "evaluation.json"):
        (trained_copy / name).write_text("mine")
    monkeypatch.setattr(os, "fsync", full)
    line = error_line(command("evaluate", trained_copy, "--rollouts", "1"))
    assert "disk full" in line and "evaluation.csv" in line
    assert (trained_copy / "evaluation.csv").read_text() == (trained_copy / "evaluation.json").read_text() == "mine"
    assert not list(trained_copy.glob("*.partial"))


def test_an_evaluation_that_cannot_be_written(command, trained, tmp_path):
    (tmp_path / "file").write_text("mine")
    finished = command("evaluate", trained, "--rollouts", "1", "--out", tmp_path / "file")
    assert str(tmp_path / "file") in error_line(finished)
    assert "performance_score" in finished.out  # What was computed is not lost.
    assert (tmp_path / "file").read_text() == "mine"
