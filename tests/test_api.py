"""The Python interface, and the code and commands that the READMEs show."""

from __future__ import annotations

import dataclasses
import re
import shlex

import jax
import numpy as np
import pytest
import tiny

import qdac
from examples.point_mass import point_mass
from qdac.config import default_config, with_overrides
from qdac.presets import OF_TASKS
from qdac.tasks import locomotion


@pytest.fixture(scope="module")
def policy(trained):
    return qdac.load(trained)


def test_actions_for_one_and_for_many(policy):
    rng = np.random.default_rng(0)
    obs, skills = rng.normal(size=(3, 5, 4)), rng.uniform(-1, 1, size=(5, 2))
    actions = policy(obs, skills)
    assert actions.shape == (3, 5, 2)
    assert np.abs(actions).max() <= 1.0
    np.testing.assert_allclose(policy(obs[1, 2], skills[2]), actions[1, 2], rtol=1e-5)
    np.testing.assert_allclose(policy(obs[1], skills[2])[3], policy(obs[1, 3], skills[2]), rtol=1e-5)
    assert not np.allclose(policy(obs[0, 0], skills[0]), policy(obs[0, 0], skills[1]))


@pytest.mark.parametrize(
    "obs_size, skill_size, wrong", [(3, 2, r"obs should be \[4\]"), (4, 1, r"skill should be \[2\]")]
)
def test_arrays_of_the_wrong_size_are_named(policy, obs_size, skill_size, wrong):
    with pytest.raises(qdac.UserError, match=wrong):
        policy(np.zeros(obs_size), np.zeros(skill_size))


def test_a_rollout_is_decided_by_its_seed(policy):
    first, again, other = (qdac.roll_out(policy, [0.5, -0.5], seed=seed) for seed in (0, 0, 1))
    assert first.length == 10 and first.observed_skill.shape == (2,)
    assert first.total_reward == again.total_reward != other.total_reward
    with pytest.raises(qdac.UserError, match="skill should have 2 numbers"):
        qdac.roll_out(policy, [0.5])


@pytest.mark.parametrize("action_repeat", [1, 3])
def test_a_rollout_is_what_the_policy_does_step_by_step(policy, action_repeat):
    task, skill = policy.task, np.array([0.5, -0.5])
    config = dataclasses.replace(policy.policy.config, action_repeat=action_repeat)
    policy = dataclasses.replace(policy, policy=type(policy.policy)(config, task))
    state = task.reset(jax.random.fold_in(jax.random.PRNGKey(3), 0))
    features, rewards = [], []
    for step in range(task.episode_length):
        features.append(task.feature(state))
        if step % policy.action_repeat == 0:
            action = policy(state.obs, skill)
        state = task.step(state, action)
        rewards.append(state.reward)
    rollout = qdac.roll_out(policy, skill, seed=3)
    np.testing.assert_allclose(rollout.observed_skill, np.mean(features, axis=0), atol=1e-5)
    np.testing.assert_allclose(rollout.total_reward, np.sum(rewards), rtol=1e-4, atol=1e-5)


def test_evaluation_of_chosen_skills(policy):
    evaluation = qdac.evaluate(policy, rollouts=3, skills=[[0.0, 0.0], [0.5, 0.5]])
    assert evaluation.observed_skills.shape == (2, 3, 2)
    assert evaluation.summary["num_skills"] == 2 and evaluation.summary["rollouts_per_skill"] == 3
    assert evaluation.summary["grad_updates"] == 8 and evaluation.summary["algo"] == "qdac"
    for wrong in ({"rollouts": 0}, {"skills": [[0.0]]}, {"skills": np.zeros((0, 2))}, {"skills": [["a", "b"]]}):
        with pytest.raises(qdac.UserError):
            qdac.evaluate(policy, **wrong)


def test_what_is_no_array_of_numbers_gets_one_line(policy):
    obs = np.zeros((3, policy.task.obs_size))
    for call, message in (
        (lambda: policy(obs, np.zeros((4, 2))), r"leading axes that broadcast, got \[3, \d+\] and \[4, 2\]"),
        (lambda: policy("here", [0.0, 0.0]), "obs should be an array of numbers, got here"),
        (lambda: qdac.roll_out(policy, [[1], [2, 3]]), "skill should be an array of numbers"),
    ):
        with pytest.raises(qdac.UserError, match=message):
            call()


def test_a_task_object_in_place_of_a_name(tmp_path):
    fields = {name: value for name, value in tiny.FIELDS.items() if name != "episode_length"}
    task = point_mass(episode_length=10)
    run = qdac.train(task, preset="debug", out=tmp_path / "run", **fields | {"steps": 64})
    assert qdac.load(run, task=task).task is task
    assert qdac.resume(run, task=task, steps=80) == run
    with pytest.raises(qdac.UserError, match="was trained on the task 'point_mass', not on 'ant_velocity'"):
        qdac.load(run, task="ant_velocity")
    with pytest.raises(qdac.UserError, match="unknown task 'point_mass'"):
        qdac.load(run)
    with pytest.raises(qdac.UserError, match="episode_length"):
        qdac.train(task, preset="debug", out=tmp_path / "other", episode_length=5)
    assert not (tmp_path / "other").exists()


def test_unknown_fields_are_answered_with_the_nearest(tmp_path):
    with pytest.raises(qdac.UserError, match="did you mean 'learning_rate'"):
        qdac.train(tiny.TASK, out=tmp_path / "run", learning_rat=1.0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("keep", "bset", "unknown keep 'bset'; did you mean 'best'"), ("death", "never", "unknown death 'never'"),
        ("batch_size", 2.5, "batch_size should be a whole number, got 2.5"),
        ("steps", "many", "steps should be a whole number, got 'many'"),
        ("discount", "long", "discount should be a number, got 'long'"),
        ("relabel", 1, "relabel should be True or False, got 1"), ("seed", True, "seed should be a whole number"),
        ("hidden_sizes", 64, "hidden_sizes should be a sequence, each of it a whole number, got 64"),
        ("hidden_sizes", [64, "x"], "hidden_sizes should be a whole number, got 'x'"),
        ("backend", 3, "backend should be a text, got 3"), ("learning_rate", None, "learning_rate should be a number"),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused(tmp_path, field, value, message):
    with pytest.raises(qdac.UserError, match=message):
        qdac.train(tiny.TASK, out=tmp_path / "run", **{field: value})
    assert not (tmp_path / "run").exists()


def test_presets_differ_only_for_tasks_that_there_are():
    for (algo, preset), tasks in OF_TASKS.items():
        usual = default_config(algo, "my_module:my_task", preset)
        for task, fields in tasks.items():
            assert task in locomotion.SPECS
            config = default_config(algo, task, preset)
            named = {**vars(config.agent), **vars(config)}
            assert {name: named[name] for name in fields} == fields
            assert config.agent != usual.agent


def test_values_are_held_as_their_field_has_them():
    values = {"steps": 2e6, "discount": 0, "hidden_sizes": [np.int64(64), 32.0], "n_step": None}
    config = with_overrides(default_config(), values | {"max_minutes": np.float32(2)})
    found = [config.steps, config.agent.discount, config.agent.hidden_sizes, config.agent.n_step, config.max_minutes]
    assert repr(found) == "[2000000, 0.0, (64, 32), None, 2.0]"


def test_names_are_listed_and_wrong_ones_refused():
    assert {"train", "load", "make_task"} <= set(dir(qdac))
    assert not hasattr(qdac, "trian")


def blocks(path: str, language: str) -> list[str]:
    """Returns the code blocks of a Markdown file."""
    return re.findall(rf"```{language}\n(.*?)```", (tiny.ROOT / path).read_text(), re.DOTALL)


def made_tiny(code: str) -> str:
    """Returns the code of a README with another task and configuration, and all else as it is."""
    code = re.sub(r"episode_length=\d+", "episode_length=10", code)
    code = re.sub(r'task="\w+"', f'task="{tiny.TASK}", episode_length=10', code)
    code = re.sub(r'make_task\("\w+".*?\)', f'make_task("{tiny.TASK}")', code)
    code = re.sub(r'preset="\w+"', 'preset="debug", **tiny_fields', code)
    return re.sub(r"rollouts=\d+", "rollouts=1", code)


def test_the_python_of_the_readme(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    tiny_fields = {name: value for name, value in tiny.FIELDS.items() if name != "episode_length"}
    names = {}
    for code in blocks("README.md", "python"):
        names = {"tiny_fields": tiny_fields}
        exec(made_tiny(code), names)
        if "scores" in names:
            assert names["scores"]["num_skills"] == 400 and names["rollout"].length == 10
    assert names["feature"].shape == (2,) and names["skills"].shape == (8, 2)


def test_the_python_of_the_examples(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    tiny_fields = {name: value for name, value in tiny.FIELDS.items() if name != "episode_length"}
    (code,) = blocks("examples/README.md", "python")
    names = {"tiny_fields": tiny_fields}
    exec(made_tiny(code), names)
    assert names["rollout"].length == 10


@pytest.mark.parametrize("path", ["README.md", "examples/README.md"])
def test_the_commands_of_the_readmes(command, monkeypatch, tmp_path, path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qdac.explore.server.serve", lambda entries, listener, open_browser: listener.close())
    lines = [line for block in blocks(path, "sh") for line in block.splitlines() if line.startswith("qdac ")]
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "train":
            words[words.index("--task") + 1] = tiny.TASK
            if "--steps" in words:
                del words[(index := words.index("--steps")) : index + 2]
            fields = tiny.FIELDS | (tiny.ON_POLICY if "qdac_ppo" in words else {"warmup_steps": 48})
            words += tiny.flags(**fields | {"steps": 80})
        finished = command(*words)
        assert finished.code == 0, finished.err
