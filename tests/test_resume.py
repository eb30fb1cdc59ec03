"""A run that was stopped, however it was, ends with the same bits as one that never was."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import tiny
from tiny import ROUND, Process, assert_same_run, checkpoints

import qdac
from qdac import metrics
from qdac.training import Training

ENDLESS = 1_000_000
SAVE_ALWAYS = {"checkpoint_minutes": 0.0}

KILLED_IN_A_SYNC = """
import os, signal, sys

calls_left, sync = int(sys.argv.pop(1)), os.fsync

def fsync(descriptor):
    global calls_left
    calls_left -= 1
    if not calls_left:
        os.kill(os.getpid(), signal.SIGKILL)
    sync(descriptor)

os.fsync = fsync
""" + tiny.MAIN


@pytest.fixture(autouse=True)
def without_figures(monkeypatch):
    """What a dozen runs end with is compared, not looked at."""
    monkeypatch.setattr("qdac.training.learning_curves", lambda *paths: None)


def assert_ends_like_an_unstopped_run(run: Path, tmp_path: Path) -> None:
    """Lets the run go on for some rounds from its newest checkpoint and compares the end."""
    steps = int(checkpoints(run)[-1].name) + 4 * ROUND
    qdac.resume(run, steps=steps)
    assert_same_run(run, tiny.train(tmp_path / "unstopped", steps=steps))


def test_same_seed_same_run_and_other_seed_another(trained, tmp_path):
    again = tiny.train(tmp_path / "again", **SAVE_ALWAYS)
    assert_same_run(again, trained)
    assert len(checkpoints(again)) == 2
    other = tiny.train(tmp_path / "other", seed=1)
    rows, other_rows = ((run / "metrics.csv").read_text().splitlines() for run in (trained, other))
    assert rows[0] == other_rows[0] and len(rows) == len(other_rows) == 5
    assert all(row != other for row, other in zip(rows[1:], other_rows[1:], strict=True))


def test_a_budget_raised_in_steps(trained, tmp_path):
    """Stops in the warm-up, between two rows, and at a row."""
    run = tiny.train(tmp_path / "run", steps=16)
    for steps in (80, 96, 160):
        qdac.resume(run, steps=steps)
    assert_same_run(run, trained)


def test_a_time_limit_that_is_lifted(trained, tmp_path):
    """Stops before the first round; the row that it ends with is not one of an unlimited run."""
    run = tiny.train(tmp_path / "run", max_minutes=1e-9)
    assert (run / "metrics.csv").read_text().splitlines()[-1].startswith("0,")
    qdac.resume(run, max_minutes=0.0)
    assert_same_run(run, trained)


@pytest.mark.parametrize(
    "keep, last, steps", [("last", 0.3, [112, 160]), ("best", 0.3, [96, 96]), ("best", 0.4, [96, 144])]
)
def test_the_policy_that_is_kept(tmp_path, monkeypatch, keep, last, steps):
    """Rows are at 48, 96 and 144. Those at the end of a budget, 112 and 160, are not for a choice to depend on.

    A share of 0.6 of 4 skills has a standard error of 0.24: 0.4 may well be as good, and is newer.
    """
    shares, summary = iter([0.2, 0.6, 0.9, last, 0.9]), metrics.summary
    monkeypatch.setattr(metrics, "summary", lambda *table: summary(*table) | {"achieved": next(shares)})
    run = tiny.train(tmp_path / "run", steps=112, keep=keep)
    found = [qdac.load(run).origin["env_steps"]]
    qdac.resume(run, steps=160)
    assert [*found, qdac.load(run).origin["env_steps"]] == steps


@pytest.mark.parametrize("num_signals", [1, 2])
def test_an_interrupt_in_python(trained, tmp_path, monkeypatch, num_signals):
    """The first saves before it has its usual effect; with a second it has it at once."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Shells have background jobs ignore it.
    run, iterate = tmp_path / "run", Training.iterate

    def interrupted(self, *arguments):
        iterate(self, *arguments)
        if self.step == 5 * ROUND:
            for _ in range(num_signals):
                signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Training, "iterate", interrupted)
        tiny.train(run)
    assert [int(path.name) for path in checkpoints(run)] == ([5 * ROUND] if num_signals == 1 else [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    qdac.resume(run)
    assert_same_run(run, trained)


def test_a_finished_run_resumed_stays_as_it_is(trained, trained_copy):
    qdac.resume(trained_copy)
    assert_same_run(trained_copy, trained)


def test_signals_save_and_exit(tmp_path):
    run, errors = tmp_path / "run", tmp_path / "errors"
    process = Process(errors, *tiny.train_arguments(run, steps=ENDLESS))
    process.wait_until((run / "metrics.csv").exists)
    process.popen.send_signal(signal.SIGTERM)
    code, text = process.wait()
    assert code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in text and f"qdac train --resume {run}" in text and "Traceback" not in text
    (stopped,) = checkpoints(run)

    rows = (run / "metrics.csv").read_text()
    process = Process(errors, "train", "--resume", run)
    process.wait_until(lambda: (run / "metrics.csv").stat().st_size > len(rows))
    process.popen.send_signal(signal.SIGINT)
    code, text = process.wait()
    assert code == 128 + signal.SIGINT
    assert "stopped by SIGINT" in text and "Traceback" not in text
    assert checkpoints(run)[0] == stopped and len(checkpoints(run)) == 2
    assert_ends_like_an_unstopped_run(run, tmp_path)


def test_killed_at_random_moments_and_inside_saves(tmp_path):
    run, errors = tmp_path / "run", tmp_path / "errors"
    arguments = tiny.train_arguments(run, steps=ENDLESS, **SAVE_ALWAYS)
    for calls in np.random.default_rng(0).integers(30, 60, 2):
        process = Process(errors, calls, *arguments, script=KILLED_IN_A_SYNC)
        code, text = process.wait()
        assert code == -signal.SIGKILL, text
        arguments = ["train", "--resume", run]
    newest = checkpoints(run)[-1]
    process = Process(errors, *arguments)
    process.wait_until(lambda: checkpoints(run)[-1:] > [newest])
    process.popen.kill()
    process.wait()
    assert_ends_like_an_unstopped_run(run, tmp_path)


def test_killed_before_the_first_checkpoint(trained, trained_copy):
    for checkpoint in checkpoints(trained_copy):
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    qdac.resume(trained_copy)
    assert_same_run(trained_copy, trained)


@pytest.mark.parametrize("is_truncated", [True, False])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(trained, tmp_path, capsys, is_truncated):
    run = tiny.train(tmp_path / "run", steps=128, **SAVE_ALWAYS)
    before, newest = checkpoints(run)
    data = bytearray((newest / "tensors.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (newest / "tensors.safetensors").write_bytes(data[: len(data) // 2] if is_truncated else data)
    capsys.readouterr()
    qdac.resume(run, steps=160)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert f"{newest} is damaged" in warnings[0] and "trying the one before it" in warnings[0]
    assert_same_run(run, trained)
