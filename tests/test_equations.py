"""Every equation of QDAC's losses against numbers worked out by hand."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import close

from qdac.agents import qdac, skills, soft


@pytest.mark.parametrize(
    "difference, scale, distance",
    [([9, 12], 20, 5), ([12, 16], 15, 10), ([0, 0], 1, 0)],
)
def test_pseudo_huber(difference, scale, distance):
    """c (sqrt(1 + x²) - 1) where x, the norm over c, is 3/4 (root 5/4), 4/3 (root 5/3) and 0."""
    close(skills.pseudo_huber(jnp.array(difference, float), scale), distance)


def test_pseudo_huber_is_the_norm_far_away_and_smooth_at_zero():
    distance = functools.partial(skills.pseudo_huber, scale=1e-3)
    close(distance(jnp.array([3.0, 4.0])), 5.0 - 1e-3)
    close(jax.grad(distance)(jnp.array([3.0, 4.0])), [0.6, 0.8])
    np.testing.assert_array_equal(jax.grad(distance)(jnp.zeros(2)), [0, 0])
    close(jax.grad(distance)(jnp.array([0.75e-3, 0.0])), [0.6, 0])


def test_multiplier_loss():
    """A logit of log 3 says 3/4: -log(3/4) where violated, -log(1/4) where satisfied."""
    logit, threshold = jnp.log(3.0), jnp.array(0.25)
    close(skills.multiplier_loss(logit, jnp.array(0.5), threshold), math.log(4 / 3))
    close(skills.multiplier_loss(logit, jnp.array(0.1), threshold), math.log(4))
    both = skills.multiplier_loss(jnp.array([0.0, math.log(3)]), jnp.array([0.5, 0.1]), threshold)
    close(both, (math.log(2) + math.log(4)) / 2)


def test_a_distance_equal_to_the_threshold_is_satisfied():
    threshold = jnp.array(0.25)
    close(skills.multiplier_loss(jnp.log(3.0), threshold, threshold), math.log(4))


def test_critic_target_takes_the_smaller_head():
    """1 + 0.9 (8 - 0.5 * -2); the second row has no future."""
    target = soft.critic_target(
        reward=jnp.array([1.0, 3.0]), discount=jnp.array([0.9, 0.0]),
        next_values=jnp.array([[10.0, 7.0], [8.0, 9.0]]), temperature=jnp.array(0.5),
        next_log_prob=jnp.array([-2.0, -2.0]),
    )  # fmt: skip
    close(target, [9.1, 3.0])


def test_successor_target_takes_the_mean_head_and_death_for_a_future():
    """(1, 2) + 0.9 (3, 4); then (1, 2) + 0.9 (-10, 10), where the episode ended."""
    target = qdac.successor_target(
        feature=jnp.array([[1.0, 2.0]] * 2), discount=jnp.array([0.9, 0.0]),
        next_successor=jnp.array([[[2.0, 8.0]] * 2, [[4.0, 0.0]] * 2]),
        terminated=jnp.array([0.0, 0.9]), death=jnp.array([[-10.0, 10.0]] * 2),
    )  # fmt: skip
    close(target, [[3.7, 5.6], [-8, 11]])


def test_bellman_loss():
    """Errors -1, 0 of the first head and 1, 3 of the second: half of 11 / 4."""
    close(soft.bellman_loss(jnp.array([[1.0, 2.0], [3.0, 5.0]]), jnp.array([2.0, 2.0])), 1.375)


def test_bellman_loss_in_variances():
    """Half of 19 / 4, targets of variance 4; half of 8 / 4, targets of variances 1 and 4: their mean is 2.5."""
    close(soft.bellman_loss(jnp.array([[1.0, 2.0], [3.0, 5.0]]), jnp.array([2.0, 6.0]), True), 2.375 / 4)
    target = jnp.array([[0.0, 0.0], [2.0, 4.0]])
    close(soft.bellman_loss(jnp.array([[[0.0, 2.0], [2.0, 6.0]]]), target, True), 1 / 2.5)


def test_actor_loss():
    """0.75 * 10 - 0.25 * 2 + 0.5 = 7.5, and 0 * 99 - 1 * 3 - 1 = -4: their mean, negated."""
    loss = qdac.actor_loss(
        value=jnp.array([10.0, 99.0]), distance=jnp.array([2.0, 3.0]), multiplier=jnp.array([0.25, 1.0]),
        temperature=jnp.array(0.5), log_prob=jnp.array([-1.0, 2.0]),
    )  # fmt: skip
    close(loss, -1.75)


@pytest.mark.parametrize("entropy, slope", [(0.5, 2.0), (-1.5, -2.0)])
def test_the_temperature_falls_while_the_entropy_is_above_its_target(entropy, slope):
    """2 (entropy + 0.5), for a temperature of 2 and a target of -0.5; its own slope in the logarithm."""
    loss = functools.partial(
        soft.temperature_loss, log_prob=jnp.array([-entropy - 1, -entropy + 1]), target_entropy=-0.5
    )
    value, gradient = jax.value_and_grad(loss)(jnp.log(2.0))
    close([value, gradient], [slope, slope])


def test_death_goes_on_at_the_distance_lived():
    """Half of the time lived at 0.3 from the skill: to die sooner is as far, to change what is lived is all there is.

    Hardly any of it lived: no more than ten times what remains.
    """
    distance, share = jnp.array([0.15, 0.001]), jnp.array([0.5, 0.99])
    found, slopes = jax.vmap(jax.value_and_grad(skills.over_life, argnums=(0, 1)))(distance, share)
    close(found, [0.3, 0.001 + 0.01 * 0.99])
    close(slopes[0], [1.0, 1.0])
    close(slopes[1], [0.3, 0.01])
