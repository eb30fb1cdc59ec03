"""A task and a configuration as small as they come, and the ways to run them: called, or as a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

import qdac

ROOT = Path(__file__).parents[1]
TASK = "examples.point_mass:point_mass"
FIELDS = {
    "num_envs": 4, "steps_per_iteration": 4, "updates_per_iteration": 1, "warmup_steps": 32,
    "replay_size": 64, "batch_size": 4, "hidden_sizes": (8,), "episode_length": 10, "eval_skills": 4,
    "eval_interval": 48, "steps": 160,
}  # fmt: skip
"""Ten rounds of 16 env steps. Updates begin at step 48; rows are due at 48, 96 and 144, one more at the end."""
ON_POLICY = {"replay_size": 1, "warmup_steps": 0}
"""In place of those, for algorithms that keep nothing but the round just collected."""
ROUND = 16
SLOW_MACHINE_SECONDS = 300
MAIN = "from qdac.cli import main; main()"


class Finished(NamedTuple):
    """What a command line came to."""

    code: int
    out: str
    err: str


def train(out: Path, **fields: Any) -> Path:
    """Returns the folder of a tiny run."""
    return qdac.train(TASK, preset="debug", out=out, **FIELDS | fields)


def flags(**fields: Any) -> list[str]:
    """Returns config fields as options of the command line."""
    words = []
    for name, value in fields.items():
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


def train_arguments(out: Path, **fields: Any) -> list[str]:
    """Returns the command line of `train`."""
    return ["train", "--task", TASK, "--preset", "debug", "--out", str(out), *flags(**FIELDS | fields)]


class Process:
    """A `qdac` process whose stderr goes to a file, so that it never waits for a reader."""

    def __init__(self, errors: Path, *arguments: Any, script: str = MAIN, **variables: str):
        self.errors = errors
        with errors.open("w") as file:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", script, *map(str, arguments)], cwd=ROOT, env=os.environ | variables,
                stdout=subprocess.DEVNULL, stderr=file,
            )

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Waits for something that the process does; fails if it ends first."""
        end = time.monotonic() + SLOW_MACHINE_SECONDS
        while not is_reached():
            assert self.popen.poll() is None, self.errors.read_text()
            assert time.monotonic() < end, "the process takes too long"
            time.sleep(0.01)

    def wait(self) -> tuple[int, str]:
        """Returns its exit code and what it wrote to stderr."""
        return self.popen.wait(SLOW_MACHINE_SECONDS), self.errors.read_text()


def checkpoints(run: Path) -> list[Path]:
    """Returns the complete checkpoints of a run, oldest first."""
    return sorted(path for path in (run / "checkpoints").glob("*") if path.name.isdigit())


def saved_tensors(actual: Path, expected: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields name, actual and expected tensor of all that two runs have in their newest checkpoint and policy."""
    newest, expected_newest = checkpoints(actual)[-1], checkpoints(expected)[-1]
    assert newest.name == expected_newest.name
    for file, expected_file in (
        (newest / "tensors.safetensors", expected_newest / "tensors.safetensors"),
        (actual / "policy.safetensors", expected / "policy.safetensors"),
    ):
        tensors, expected_tensors = map(safetensors.numpy.load_file, (file, expected_file))
        assert tensors.keys() == expected_tensors.keys()
        yield from ((name, tensors[name], expected_tensors[name]) for name in tensors)


def assert_same_run(actual: Path, expected: Path) -> None:
    """Asserts that two runs end in the same checkpoint, policy and metrics, bit for bit."""
    assert (actual / "metrics.csv").read_text() == (expected / "metrics.csv").read_text()
    assert not [name for name, one, other in saved_tensors(actual, expected) if one.tobytes() != other.tobytes()]
