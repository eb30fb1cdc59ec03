"""The scores against numbers computed by hand, and the table they are computed from."""

import dataclasses
import json
import math

import numpy as np
import pytest

from qdac import metrics
from qdac.cells import Grid
from qdac.errors import UserError
from qdac.metrics import Evaluation

D_EVAL = 1.0


@pytest.fixture
def evaluation() -> Evaluation:
    """Three skills, two rollouts each: d = 0.5, 2.5, 1.0 and R = 15, 100, -4."""
    return Evaluation(
        skills=np.array([[0, 0], [1, 0], [0, 1]], np.float32),
        observed_skills=np.array(
            [[[0, 0], [1, 0]], [[1, 0], [4, 4]], [[0, 2], [0, 0]]], np.float32
        ),
        returns=np.array([[10, 20], [100, 100], [-8, 0]], np.float32),
        lengths=np.array([[1000, 500], [1000, 1000], [200, 300]], np.int32),
    )  # fmt: skip


def random_evaluation(num_skills: int, rollouts: int, size: int) -> Evaluation:
    """Returns an evaluation of float32 numbers of every magnitude."""
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * 10.0 ** rng.integers(-30, 30, shape)).astype(np.float32)

    return Evaluation(
        skills=numbers(num_skills, size),
        observed_skills=numbers(num_skills, rollouts, size),
        returns=numbers(num_skills, rollouts),
        lengths=rng.integers(1, 1001, (num_skills, rollouts)).astype(np.int32),
    )


def test_distance_is_the_mean_of_distances_not_the_distance_of_the_mean(evaluation):
    # The two rollouts of the third skill miss it on opposite sides: their mean is the skill itself.
    np.testing.assert_allclose(metrics.skill_distances(evaluation), [0.5, 2.5, 1.0])


def test_returns_are_means_over_rollouts(evaluation):
    np.testing.assert_allclose(metrics.skill_returns(evaluation), [15, 100, -4])


def test_a_distance_of_exactly_d_eval_is_not_achieved(evaluation):
    np.testing.assert_array_equal(metrics.is_achieved(evaluation, D_EVAL), [True, False, False])


def test_profiles_are_shares_of_all_skills_with_strict_bounds(evaluation):
    np.testing.assert_allclose(
        metrics.distance_profile(evaluation, np.array([0.5, 0.6, 1.0, 1.1, 3.0])), [0, 1 / 3, 1 / 3, 2 / 3, 1]
    )
    thresholds = np.array([-5, -4, 14, 15, 99, 100])
    np.testing.assert_allclose(
        metrics.performance_profile(evaluation, thresholds), [1, 2 / 3, 2 / 3, 1 / 3, 1 / 3, 0]
    )
    np.testing.assert_allclose(
        metrics.performance_profile(evaluation, thresholds, D_EVAL), [1 / 3, 1 / 3, 1 / 3, 0, 0, 0]
    )


def test_summary(evaluation):
    scores = metrics.summary(evaluation, D_EVAL)
    assert scores == pytest.approx(
        {
            "num_skills": 3,
            "rollouts_per_skill": 2,
            "mean_distance": 4 / 3,
            "distance_score": -4 / 3,
            "achieved": 1 / 3,
            "performance_score": 15 / 3,
            "max_return": 15.0,
            "mean_return": 37.0,
            "mean_episode_length": 4000 / 6,
        }
    )
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores


def test_nothing_achieved_is_valid_json(evaluation):
    scores = metrics.summary(evaluation, 0.1)
    assert scores["achieved"] == 0.0
    assert scores["performance_score"] == 0.0
    assert math.isnan(metrics.max_return(evaluation, 0.1))
    assert '"max_return": null' in json.dumps(scores, allow_nan=False)


def test_a_diverged_rollout_is_a_failed_skill_and_not_a_failed_score(evaluation):
    evaluation.observed_skills[1, 0] = np.nan
    evaluation.returns[1, 0] = np.nan
    scores = metrics.summary(evaluation, D_EVAL)
    assert scores["achieved"] == pytest.approx(1 / 3)
    assert scores["performance_score"] == pytest.approx(5.0)
    assert scores["mean_distance"] is None


@pytest.mark.parametrize("shape", [(1, 1, 1), (40, 3, 2), (5, 10, 4)])
def test_table_gives_back_every_bit(tmp_path, shape):
    saved = random_evaluation(*shape)
    saved.save(tmp_path / "evaluation.csv")
    loaded = Evaluation.load(tmp_path / "evaluation.csv")
    for name in ("skills", "observed_skills", "returns", "lengths"):
        before, after = getattr(saved, name), getattr(loaded, name)
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)


def test_table_keeps_rollouts_that_diverged(tmp_path, evaluation):
    evaluation.returns[0] = [np.nan, np.inf]
    evaluation.save(tmp_path / "evaluation.csv")
    np.testing.assert_array_equal(Evaluation.load(tmp_path / "evaluation.csv").returns, evaluation.returns)


def test_table_is_readable(tmp_path, evaluation):
    evaluation.skills[1] = [0.01, 0.99]
    evaluation.save(tmp_path / "evaluation.csv")
    lines = (tmp_path / "evaluation.csv").read_text().splitlines()
    assert lines[0] == "skill_0,skill_1,rollout,observed_0,observed_1,return,length"
    assert lines[4] == "0.01,0.99,1,4.0,4.0,100.0,1000"
    assert len(lines) == 1 + 3 * 2


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_a_cut_table_is_refused(tmp_path, evaluation, kept):
    path = tmp_path / "evaluation.csv"
    evaluation.save(path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    with pytest.raises(UserError, match="not a whole evaluation table"):
        Evaluation.load(path)


def test_a_missing_table_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        Evaluation.load(tmp_path / "evaluation.csv")


def test_shapes_that_do_not_fit_are_refused(evaluation):
    with pytest.raises(ValueError, match=r"lengths should be \(3, 2\), got \(2, 3\)"):
        Evaluation(evaluation.skills, evaluation.observed_skills, evaluation.returns, evaluation.lengths.T)


def test_coverage_counts_cells_that_were_observed_whatever_was_asked(evaluation):
    cells = Grid((0.0, 0.0), (4.0, 2.0), (4, 2))
    observed = np.zeros_like(evaluation.observed_skills) + [0.5, 0.5]
    observed[0, 0], observed[0, 1], observed[1, 0] = (4.0, 2.0), (np.nan, 1.0), (4.1, 1.0)
    seen = dataclasses.replace(evaluation, observed_skills=observed)
    assert metrics.coverage(seen, cells) == 2 / 8
