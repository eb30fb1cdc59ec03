"""The benchmark runs to its end and its ratios are those of its parts."""

import math

import jax
import jax.numpy as jnp
import pytest

from qdac import bench
from qdac.agents import ALGORITHMS


@pytest.fixture(scope="module")
def measured() -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "EVALUATED", 64)
        return bench.run("sac", "examples.point_mass:point_mass", preset="debug", seconds=0.01)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_preset_can_be_measured(algo, monkeypatch):
    """On a task whose actions last, and whose windows are longer than a round."""

    class Measured(Exception):
        pass

    def trunk(agent, task):
        raise Measured

    monkeypatch.setattr(bench, "Trunk", trunk)
    with pytest.raises(Measured):
        bench.run(algo, "humanoid_feet_contact", preset="laptop")


def test_every_figure_is_a_finite_positive_number(measured):
    numbers = {**measured, **{f"{name}.{key}": value for name in ("update", "update_256", "update_512")
                              for key, value in measured[name].items() if key != "hidden_sizes"}}
    for name, value in numbers.items():
        if isinstance(value, (int, float)):
            assert math.isfinite(value) and value > 0, name


def test_ratios_are_those_of_the_parts(measured):
    collection = measured["collection_steps_per_second"] / measured["raw_brax_steps_per_second"]
    assert measured["collection_over_raw_brax"] == pytest.approx(collection, rel=0.02)
    training = measured["env_steps_per_second"] / measured["limit_env_steps_per_second"]
    assert measured["training_over_limit"] == pytest.approx(training, rel=0.02)
    update = measured["update_512"]
    assert update["share_of_peak"] == pytest.approx(update["gflops"] / update["peak_gflops"], rel=0.02)
    assert update["hidden_sizes"] == [512, 512] and update["rows"] == 512


def test_operations_are_those_of_all_matrix_products():
    """A product of 2 x 3 and 3 x 4 has 48 operations, its two gradients as many each, in a loop five times over."""
    a, b = jnp.ones((2, 3)), jnp.ones((3, 4))
    assert bench.matrix_operations(lambda a, b: jnp.tanh(a @ b).sum(), a, b) == 48
    assert bench.matrix_operations(jax.grad(lambda a, b: jnp.tanh(a @ b).sum(), argnums=(0, 1)), a, b) == 144

    def loop(a, b):
        return jax.lax.scan(lambda total, _: (total + jax.jit(jnp.matmul)(a, b).sum(), None), 0.0, length=5)

    assert bench.matrix_operations(loop, a, b) == 240
