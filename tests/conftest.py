"""A tiny run on the example task, trained once, and how tests run the command line in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
POINT_MASS = "examples.point_mass:point_mass"
TINY = {
    "preset": "debug", "steps": 2_048, "eval_interval": 500, "eval_skills": 16, "episode_length": 20,
    "hidden_sizes": (8,), "replay_size": 512, "warmup_steps": 256,
}  # fmt: skip
"""16 iterations of 128 steps, 2 of them warm-up; rows at 512, 1024, 1536 and 2048 steps."""


def pytest_configure(config: pytest.Config) -> None:
    """Keeps compiled programs, also the smallest, for the processes of this and later sessions."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(config.cache.mkdir("jax"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


def flags(fields: dict[str, Any]) -> list[str]:
    """Returns the fields as options of `qdac train`."""
    words = []
    for name, value in fields.items():
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


def launch(*arguments: Any, script: str = "from qdac.cli import main; main()") -> subprocess.Popen:
    """Returns the process of a command line, with `script` in place of the `qdac` command."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture
def train_tiny(tmp_path, monkeypatch) -> Callable[..., Path]:
    """A function that trains the tiny run, with changes, in tmp_path and returns its folder."""
    import qdac

    monkeypatch.chdir(ROOT)

    def train(name: str = "run", task: Any = POINT_MASS, **changes: Any) -> Path:
        return qdac.train(task, out=tmp_path / name, **{**TINY, **changes})

    return train


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """The folder of the tiny run, trained by the command line without a stop; not to be changed."""
    from qdac import cli

    out = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert cli.run(["train", "--task", POINT_MASS, "--out", str(out), *flags(TINY)]) == 0
    return out
