"""What is saved in a run folder, for the tests of runs and of their checkpoints."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from qdac import runs

SOURCE_ROOT = Path(runs.__file__).parents[1]


class Pair(NamedTuple):
    key: jax.Array
    count: jax.Array


@flax.struct.dataclass
class State:
    pair: Pair
    nets: dict
    empty: tuple = ()


def make_state(seed=0):
    kernel = jnp.asarray(np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32))
    return State(
        Pair(jax.random.PRNGKey(seed), jnp.int32(7 + seed)),
        {
            "kernel": kernel,
            "transposed": np.asarray(kernel).T,
            "mask": jnp.array([True, False]),
            "half": kernel.astype(jnp.bfloat16),
            "odd": jnp.array([jnp.nan, -0.0, jnp.inf]),
            "none": jnp.zeros((0, 2)),
            "exact": np.array(0.1, np.float64),
        },
    )


def assert_same_bits(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())


def run_script(script, *arguments, prefix=(), **options):
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", script, *map(str, arguments)],
        cwd=SOURCE_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
