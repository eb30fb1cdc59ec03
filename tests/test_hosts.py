"""Two processes with a device each do what one process with two devices does, and end together."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from probes import needs_two_devices
from tiny import ROUND, Process, checkpoints

from qdac import hosts
from qdac.runs import read_json
from qdac.trunk import Trunk

STEPS = 7 * ROUND
ENDLESS = 1_000_000


@contextlib.contextmanager
def pair(folder: Path, *arguments: Any) -> Iterator[list[Process]]:
    """Yields the same command line as two processes that train together; none of them outlives this."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1"
    processes = [
        Process(
            folder / f"errors{number}", *arguments, XLA_FLAGS=flags, JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES="2", JAX_PROCESS_ID=str(number),
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.popen.kill()
            process.popen.wait()


@pytest.fixture(scope="module")
def trained_by_two(tmp_path_factory) -> Path:
    """The folder of a run that two processes trained. Only to be read."""
    folder = tmp_path_factory.mktemp("two")
    with pair(folder, *tiny.train_arguments(folder / "run", steps=STEPS)) as processes:
        for process in processes:
            code, text = process.wait()
            assert code == 0, text
            assert f"finished at env step {STEPS}" in text
    assert "compiling" in (folder / "errors0").read_text() and "compiling" not in text
    return folder / "run"


@pytest.fixture
def two_devices(monkeypatch):
    """Has this process train on two devices, learner included."""
    init, devices = Trunk.__init__, jax.devices()[:2]
    monkeypatch.setattr(Trunk, "__init__", lambda self, agent, task: init(self, agent, task, devices, devices))


def assert_close_runs(actual: Path, expected: Path) -> None:
    """Asserts that two runs have the same checkpoint, policy and rows up to rounding."""
    for name, tensor, expected_tensor in tiny.saved_tensors(actual, expected):
        np.testing.assert_allclose(tensor, expected_tensor, rtol=1e-4, atol=1e-5, err_msg=name)
    rows, expected_rows = (list(csv.reader((run / "metrics.csv").open())) for run in (actual, expected))
    assert rows[0] == expected_rows[0]
    # The row at the end of a budget is not part of the checkpoint.
    number = min(len(rows), len(expected_rows))
    assert [row[0] for row in rows[:number]] == [row[0] for row in expected_rows[:number]]
    numbers, expected_numbers = (np.array(table[1:number], float) for table in (rows, expected_rows))
    np.testing.assert_allclose(numbers, expected_numbers, rtol=1e-4, atol=1e-5)


@needs_two_devices
def test_two_processes_do_what_two_devices_do(trained_by_two, tmp_path, two_devices):
    run = tiny.train(tmp_path / "run", steps=STEPS)
    assert_close_runs(trained_by_two, run)
    assert len(read_json(trained_by_two / "system.json", {"devices"})["devices"]) == 2
    files = [sorted(path.relative_to(folder) for path in folder.rglob("*")) for folder in (trained_by_two, run)]
    assert files[0] == files[1]


@needs_two_devices
@pytest.mark.slow
def test_a_signal_to_one_stops_both_and_they_go_on(trained_by_two, tmp_path, two_devices):
    run = Path(shutil.copytree(trained_by_two, tmp_path / "run"))
    with pair(tmp_path, "train", "--resume", run, "--steps", ENDLESS) as processes:
        processes[0].wait_until(lambda: f"\n{3 * 48}," in (run / "metrics.csv").read_text())
        processes[1].popen.send_signal(signal.SIGTERM)
        for process in processes:
            code, text = process.wait()
            assert code == 128 + signal.SIGTERM, text
            assert "stopped by SIGTERM" in text and "Traceback" not in text
    assert_close_runs(run, tiny.train(tmp_path / "expected", steps=int(checkpoints(run)[-1].name)))


def test_an_error_of_the_first_ends_both(trained_by_two, tmp_path):
    with pair(tmp_path, *tiny.train_arguments(trained_by_two)) as processes:
        for process in processes:
            code, text = process.wait()
            assert code == 2, text
            (line,) = (line for line in text.splitlines() if line.startswith("error: "))
            assert f"{trained_by_two} already holds files" in line and "Traceback" not in text


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("JAX_COORDINATOR_ADDRESS", "here", "should be HOST:PORT of the first process, got 'here'"),
        ("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1", "no process listens at JAX_COORDINATOR_ADDRESS=127.0.0.1:1"),
        ("JAX_PROCESS_ID", "one", "JAX_PROCESS_ID should be a whole number, got 'one'"),
        ("JAX_PROCESS_ID", "", "JAX could not join the processes"),
    ],
)
def test_processes_that_cannot_meet(refused, tmp_path, monkeypatch, name, value, message):
    monkeypatch.setattr(hosts, "WAIT_SECONDS", 0.0)
    variables = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    for variable, text in (variables | {name: value}).items():
        monkeypatch.setenv(variable, text)
    assert message in refused(*tiny.train_arguments(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
