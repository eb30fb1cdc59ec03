"""The five lines of Python, and what each of them promises."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import POINT_MASS, ROOT, TINY

import qdac
from examples.point_mass import point_mass


@pytest.fixture(autouse=True)
def in_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def policy(trained):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return qdac.load(trained)


def test_an_action_for_one_or_for_many(policy):
    observations = np.random.default_rng(0).normal(size=(3, 4))
    skills = np.random.default_rng(1).uniform(-1, 1, size=(3, 2))
    one_by_one = [policy(obs, skill) for obs, skill in zip(observations, skills, strict=True)]
    assert one_by_one[0].shape == (2,)
    actions = policy(observations, skills)
    np.testing.assert_allclose(actions, one_by_one, rtol=1e-5)
    assert (np.abs(actions) < 1).all() and len(np.unique(actions)) == 6
    np.testing.assert_array_equal(actions, policy(observations, skills))
    np.testing.assert_allclose(policy(observations, skills[0])[1], policy(observations[1], skills[0]), rtol=1e-5)
    assert policy(observations[None], list(skills[0])).shape == (1, 3, 2)


@pytest.mark.parametrize("obs, skill, complaint", [
    (np.zeros(3), np.zeros(2), r"obs should be \[4\] or \[..., 4\], got \[3\]"),
    (np.zeros(4), 0.5, r"skill should be \[2\] or \[..., 2\], got \[\]"),
])  # fmt: skip
def test_wrong_sizes_are_named(policy, obs, skill, complaint):
    with pytest.raises(qdac.UserError, match=complaint):
        policy(obs, skill)


def test_a_rollout_is_decided_by_its_seed(policy):
    skill = [0.5, -0.5]
    rollout = qdac.roll_out(policy, skill, seed=3)
    again, other = qdac.roll_out(policy, skill, seed=3), qdac.roll_out(policy, skill, seed=4)
    np.testing.assert_array_equal(rollout.observed_skill, again.observed_skill)
    assert rollout.total_reward == again.total_reward != other.total_reward
    assert rollout.observed_skill.shape == (2,) and rollout.length == 20
    with pytest.raises(qdac.UserError, match="skill should have 2 numbers"):
        qdac.roll_out(policy, [0.5])


def test_a_rollout_is_what_the_task_does_with_the_actions(policy):
    task, skill = policy.task, jnp.array([0.3, 0.9])
    state = task.reset(jax.random.fold_in(jax.random.PRNGKey(0), 0))
    features, rewards = [], []
    for _ in range(task.episode_length):
        features.append(task.feature(state))
        state = task.step(state, policy(state.obs, skill))
        rewards.append(state.reward)
    rollout = qdac.roll_out(policy, skill, seed=0)
    np.testing.assert_allclose(rollout.observed_skill, np.mean(features, axis=0), atol=1e-5)
    np.testing.assert_allclose(rollout.total_reward, np.sum(rewards), atol=1e-4)


def test_evaluation_of_chosen_skills(policy):
    skills = [[0.5, 0.5], [-0.5, 0.0], [0.0, 0.0]]
    evaluation = qdac.evaluate(policy, rollouts=2, skills=skills)
    assert evaluation.observed_skills.shape == (3, 2, 2)
    scores = evaluation.summary
    assert scores["num_skills"] == 3 and scores["rollouts_per_skill"] == 2 and scores["env_steps"] == 2048
    first = qdac.roll_out(policy, skills[0], seed=0)
    np.testing.assert_allclose(evaluation.observed_skills[0, 0], first.observed_skill, rtol=1e-5)
    with pytest.raises(qdac.UserError, match=r"skills should be \[num, 2\], got \[1, 3\]"):
        qdac.evaluate(policy, skills=[0.0, 0.0, 0.0])
    with pytest.raises(qdac.UserError, match="rollouts should be at least 1, got 0"):
        qdac.evaluate(policy, rollouts=0)


def test_evaluation_does_not_depend_on_its_chunks(policy, monkeypatch):
    whole = qdac.evaluate(policy, rollouts=1)
    monkeypatch.setattr("qdac.evaluation.ROLLOUTS_PER_DEVICE", 30)
    parts = qdac.evaluate(policy, rollouts=1)
    np.testing.assert_allclose(whole.observed_skills, parts.observed_skills, rtol=1e-4, atol=1e-6)


def test_a_task_object_serves_where_a_name_does(train_tiny):
    task = point_mass(episode_length=10)
    run = train_tiny(task=task, steps=256, episode_length=None)
    with pytest.raises(qdac.UserError, match="unknown task 'point_mass'"):
        qdac.load(run)
    policy = qdac.load(run, task=task)
    assert policy.task is task and qdac.roll_out(policy, [0.0, 0.0]).length == 10
    assert qdac.resume(run, task=task, steps=384) == run


def test_the_example_is_found_from_its_own_folder(monkeypatch):
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path not in ("", str(ROOT))])
    task = qdac.make_task("point_mass:point_mass", episode_length=7)
    assert (task.name, task.episode_length, task.obs_size, task.action_size) == ("point_mass", 7, 4, 2)


def test_a_task_stands_alone():
    task = qdac.make_task(POINT_MASS)
    state = task.reset(jax.random.PRNGKey(0))
    for _ in range(50):
        state = task.step(state, jnp.array([1.0, -0.5]))
    np.testing.assert_allclose(task.feature(state), [1.2, -0.6], rtol=1e-3)
    np.testing.assert_allclose(state.reward, 1.2 - 0.1 * 1.25, rtol=1e-3)
    assert task.skill_space.sample(jax.random.PRNGKey(0), 8).shape == (8, 2)
    assert task.skill_space.grid().shape == (400, 2)
    assert (task.threshold, task.d_eval) == (0.05, 0.2)


@pytest.mark.parametrize("arguments, complaint", [
    ({"learning_rat": 1.0}, "unknown config field 'learning_rat'; did you mean 'learning_rate'"),
    ({"algo": "qdca"}, "did you mean 'qdac'"),
    ({"preset": "big"}, "unknown preset of qdac 'big'"),
    ({"steps": 0}, "steps should be at least 1"),
    ({"loggers": ["tensorbord"]}, "unknown logger 'tensorbord'; did you mean 'tensorboard'"),
])  # fmt: skip
def test_wrong_arguments_are_user_errors(tmp_path, arguments, complaint):
    with pytest.raises(qdac.UserError, match=complaint):
        qdac.train(POINT_MASS, out=tmp_path / "run", **{"preset": "debug", **arguments})
    assert not (tmp_path / "run").exists()


def test_public_names():
    assert set(qdac.__all__) <= set(dir(qdac))
    for name in qdac.__all__:
        assert getattr(qdac, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        qdac.trian  # noqa: B018


def readme_blocks():
    readme = ROOT / "README.md"
    return re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL) if readme.exists() else []


def test_the_five_lines_of_the_readme_run(tmp_path, monkeypatch):
    [block] = [block for block in readme_blocks() if "qdac.train(" in block] or [None]
    if block is None:
        pytest.skip("no README yet")
    train, default = qdac.train, dict(TINY, steps=384)

    def tiny_train(task, preset, out):
        assert preset in ("laptop", "paper", "debug") and qdac.make_task(task)
        return train(POINT_MASS, out=tmp_path / out, **default)

    monkeypatch.setattr(qdac, "train", tiny_train, raising=False)
    names = {}
    exec(block, names)  # noqa: S102
    assert names["scores"]["task"] == POINT_MASS and names["rollout"].length == 20


@pytest.mark.parametrize("block", [block for block in readme_blocks() if "qdac.train(" not in block])
def test_the_other_python_of_the_readme_runs(block):
    exec(block, {})  # noqa: S102
