"""The paper's central ablation: only successor features reach skills that no single state shows."""

import pytest

from examples import ablation


@pytest.mark.parametrize(
    "algo, steps",
    [
        ("qdac", 60_000), ("no_sf", 20_000), pytest.param("uvfa", 20_000, marks=pytest.mark.slow),
        pytest.param("qdac_mb", 10_000, marks=pytest.mark.slow),
        pytest.param("fixed_lambda_mb", 20_000, marks=pytest.mark.slow),
        pytest.param("no_sf_mb", 20_000, marks=pytest.mark.slow),
        pytest.param("uvfa_mb", 20_000, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_who_reaches_the_inside_of_a_contact_space(algo, steps, tmp_path):
    _, corners, inside = ablation.train(algo, tmp_path, steps=steps)
    assert corners == (0.25 if algo == "fixed_lambda_mb" else 1.0)  # Both feet lifted, whatever the skill.
    if algo in ("qdac", "qdac_mb"):
        assert inside > 0.5
    else:
        assert inside == 0.0
