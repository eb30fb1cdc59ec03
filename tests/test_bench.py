"""The benchmark runs to its end and its ratios are those of its parts."""

import math

import pytest

from qdac import bench


@pytest.fixture(scope="module")
def measured() -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "EVALUATED", 64)
        return bench.run("sac", "examples.point_mass:point_mass", preset="debug", seconds=0.2)


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
