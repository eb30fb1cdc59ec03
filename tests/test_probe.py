"""Whole training runs, of seconds, on problems whose answers are known in closed form."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import QUICK, clock_task, dial_task, small_config, trained

from qdac import nets
from qdac.agents.qdac import QDAC
from qdac.evaluation import Evaluator
from qdac.types import Task

GAMMA = 0.9
"""The discount of `small_config`."""


class Trained(NamedTuple):
    agent: QDAC
    state: Any
    metrics: dict[str, jax.Array]
    """Means over the last round of updates."""

    def answers(self, obs: np.ndarray, skill: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns Q, psi and the multiplier at the policy's own actions, for rows of states and skills."""
        agent, params = self.agent, self.state.params
        _, action = agent.step(agent.policy_params(self.state), (), obs, skill)
        normalized = agent.normalize(skill)
        value, successor = agent.critics(params, obs, action, normalized)
        scale = 1.0 - GAMMA if agent.config.average_heads else 1.0
        logit = nets.apply_mlp(params["multiplier"], jnp.concatenate([obs, normalized], axis=-1))
        return value.mean(axis=0) / scale, successor.mean(axis=0) / scale, jax.nn.sigmoid(logit[:, 0])


def train(task: Task, num_rounds: int, **fields: Any) -> Trained:
    """Returns the agent after rounds of quick updates."""
    agent = QDAC(small_config(**QUICK | fields), task)
    return Trained(agent, *trained(agent, num_rounds))


# The dial: it pays 1 a step, and shows half of the last action. Skills beyond 0.5 cannot be executed.


REACHABLE = np.array([-0.3, -0.15, 0.0, 0.15, 0.3], np.float32)[:, None]
UNREACHABLE = np.array([-1.0, -0.85, 0.85, 1.0], np.float32)[:, None]


@functools.cache
def trained_dial(threshold: float = 0.15) -> Trained:
    """With episodes of 20 steps: a limit that the values must not notice."""
    return train(dial_task(episode_length=20, threshold=threshold), 30)


@pytest.mark.parametrize("skill", [REACHABLE, UNREACHABLE], ids=["reachable", "unreachable"])
def test_value_of_a_constant_reward(skill):
    """1 / (1 - gamma); the entropy adds at most a hundredth."""
    value, _, _ = trained_dial().answers(np.clip(2 * skill, -1, 1), skill)
    np.testing.assert_allclose(value, 1 / (1 - GAMMA), atol=0.3)


@pytest.mark.parametrize("skill", [REACHABLE, UNREACHABLE], ids=["reachable", "unreachable"])
def test_executed_and_expected_features_are_the_nearest_possible(skill):
    """The skill itself, or the end of the dial, where the dial already stands there.

    With a threshold that is never met the multiplier stays near 1, and the skill is all that counts.
    """
    agent, state, _ = trained = trained_dial(threshold=0.01)
    nearest = np.clip(skill, -0.5, 0.5)
    executed = Evaluator(agent.task, agent)(agent.policy_params(state), skill, num_rollouts=1, seed=0)
    np.testing.assert_allclose(executed.observed_skills[:, 0], nearest, atol=0.15)
    _, successor, _ = trained.answers(2 * nearest, skill)
    np.testing.assert_allclose((1 - GAMMA) * successor, nearest, atol=0.15)


def test_multiplier_tells_what_can_be_executed():
    _, _, low = trained_dial().answers(2 * REACHABLE, REACHABLE)
    _, _, high = trained_dial().answers(np.sign(UNREACHABLE), UNREACHABLE)
    assert low.mean() < 0.3 and high.min() > 0.9


def test_value_counts_the_entropy_to_come():
    """With nothing to choose the policy becomes nearly uniform: Q = (1 + gamma alpha H) / (1 - gamma)."""
    _, _, metrics = train(dial_task(threshold=10.0), 20, initial_temperature=0.5)
    np.testing.assert_allclose(metrics["train/entropy"], math.log(2), atol=0.1)
    np.testing.assert_allclose(metrics["train/temperature"], 0.5, rtol=1e-5)
    expected = (1 + GAMMA * 0.5 * metrics["train/entropy"]) / (1 - GAMMA)
    np.testing.assert_allclose(metrics["train/value"], expected, atol=0.4)


# The clock: it lives three steps whatever is done, pays 1, 2, 3 and shows 0, 1, 2 of skills in [0, 4].


OBS = np.array([[0.5, time] for time in (0, 1, 2)], np.float32)


@pytest.mark.parametrize(
    "death, skill, future",
    [("centre", 1.71, 0.0), ("opposite", 1.0, 10.0), ("opposite", 3.0, -10.0)],
)
@pytest.mark.parametrize(
    "fields", [{}, {"shared_critics": True, "average_heads": True, "n_step": 2}], ids=["sums", "averages"]
)
def test_what_follows_death(death, skill, future, fields):
    """Q sums the rewards left, psi the features N(0), N(1), N(2) left and `future`, psi of what follows.

    A future of zeros makes a life this short look like the skill 1.71 on its first step:
    0.1 (N(0) + 0.9 N(1) + 0.81 N(2)) = N(1.71). The opposite corner for a future makes it look like none.
    """
    value, successor, multiplier = trained_clock(death, **fields).answers(OBS, np.full((3, 1), skill, np.float32))
    values, successors = [0.0], [future]
    for time in (2, 1, 0):
        values.append(time + 1 + GAMMA * values[-1])
        successors.append(time / 2 - 1 + GAMMA * successors[-1])
    np.testing.assert_allclose(value, values[:0:-1], atol=0.3)
    np.testing.assert_allclose(successor[:, 0], successors[:0:-1], atol=0.4)
    if death == "centre":
        assert multiplier[0] < 0.3
    else:
        assert multiplier[0] > 0.9


def test_death_apart_leaves_the_skill_alone():
    """psi sums the features left and then the skill itself, N(1.5) = -0.25; beside them death: 2 a step, for ever."""
    _, successor, multiplier = trained_clock("apart").answers(OBS, np.full((3, 1), 1.5, np.float32))
    features, deaths = [-2.5], [20.0]
    for time in (2, 1, 0):
        features.append(time / 2 - 1 + GAMMA * features[-1])
        deaths.append(GAMMA * deaths[-1])
    np.testing.assert_allclose(successor[:, 0], features[:0:-1], atol=0.4)
    np.testing.assert_allclose(successor[:, 1], deaths[:0:-1], atol=0.6)
    assert multiplier.min() > 0.9


def test_expected_distances_of_a_short_life():
    """The skill is at N(1) = -0.5: the three steps are 0.5, 0 and 0.5 away, and after them the far end 1.5."""
    trained = trained_clock("opposite", skill_critic="distance")
    _, distances, multiplier = trained.answers(OBS, np.ones((3, 1), np.float32))
    sums = [1.5 / (1 - GAMMA)]
    for distance in (0.5, 0.0, 0.5):
        sums.append(distance + GAMMA * sums[-1])
    np.testing.assert_allclose(distances[:, 0], sums[:0:-1], atol=0.4)
    assert multiplier.min() > 0.9


@functools.cache
def trained_clock(death: str, **fields: Any) -> Trained:
    return train(clock_task(lifetime=3), 25, death=death, **fields)
