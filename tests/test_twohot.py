"""Numbers as distributions over bins: there and back, and losses known by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import close

from qdac.twohot import Bins, symexp, symlog


def test_symlog_and_back():
    numbers = jnp.array([-1e4, -1.0, -1e-3, 0.0, 1e-3, 1.0, 1e4])
    close(symexp(symlog(numbers)), numbers, atol=1e-6)
    close(symlog(jnp.array([np.e - 1, 1 - np.e])), [1, -1])
    close(jax.grad(lambda x: symlog(x).sum())(jnp.array([1e-6, -1e-6])), [1, 1])


def test_two_bins_share_a_number():
    """Bins at 0 and symexp(±1), symexp(±2): a quarter of the first is three quarters the middle one."""
    bins = Bins(5, 2.0)
    numbers = jnp.array([0.25, -1.0]) * (np.e - 1)
    close(bins.two_hot(numbers), [[0, 0, 0.75, 0.25, 0], [0, 1, 0, 0, 0]], atol=1e-6)


def test_the_mean_is_that_of_the_numbers():
    """A contact that is there in three of four cases has the mean 0.5, whatever symlog makes of its ends."""
    bins = Bins(41, 5.0)
    close(bins.mean(jnp.log(bins.two_hot(jnp.array([1.0, -1.0])).T @ jnp.array([0.75, 0.25]) + 1e-30)), 0.5, rtol=1e-4)


@pytest.mark.parametrize("num, limit", [(255, 20.0), (27, 3.25), (10, 4.0)])
def test_even_odds_are_exactly_0(num, limit):
    """Bins of millions of either sign cancel: a head that begins with even odds says 0, whatever its range."""
    assert Bins(num, limit).mean(jnp.zeros(num)) == 0


@pytest.mark.parametrize("num, limit", [(41, 5.0), (255, 6.0)])
def test_the_mean_of_a_two_hot_is_its_number(num, limit):
    bins = Bins(num, limit)
    numbers = jnp.array([-140.0, -3.3, -0.01, 0.0, 0.5, 1.0, 100.0])
    weights = bins.two_hot(numbers)
    close(weights.sum(axis=-1), 1.0)
    assert ((weights > 0).sum(axis=-1) <= 2).all()
    close(bins.mean(jnp.log(weights + 1e-30)), numbers, rtol=1e-4, atol=1e-5)


def test_numbers_beyond_the_bins_are_cut_off():
    bins = Bins(5, 2.0)
    close(bins.two_hot(jnp.array([1e6, -1e6])), [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]])


def test_loss_is_the_cross_entropy():
    bins = Bins(5, 2.0)
    close(bins.loss(jnp.zeros(5), jnp.array(0.3)), np.log(5))
    logits = jnp.log(jnp.array([0.1, 0.1, 0.4, 0.3, 0.1]))
    close(bins.loss(logits, jnp.array(0.25 * (np.e - 1))), -0.75 * np.log(0.4) - 0.25 * np.log(0.3))
    close(bins.mean(jnp.zeros(5)), 0.0, atol=1e-6)
