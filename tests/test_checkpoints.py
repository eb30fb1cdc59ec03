"""Checkpoints: bit for bit, whole or not at all, whatever happens to the process or the disk."""

import errno
import os
import shutil
import signal
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved import assert_same_bits, make_state, run_script

from qdac import files, runs
from qdac.errors import UserError
from qdac.runs import create_run, open_run


def templates(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


def checkpoint_names(run):
    return sorted(os.listdir(run.path / "checkpoints"))


@pytest.mark.parametrize("as_template", [lambda state: state, templates])
def test_checkpoint_round_trip(run, as_template):
    state = make_state()
    run.save_checkpoint(5, state, {"iteration": 2})
    tree, metadata = open_run(run.path).load_checkpoint(as_template(state))
    assert_same_bits(tree, state)
    assert metadata == {"iteration": 2, "step": 5}
    assert isinstance(tree.pair.key, jax.Array)
    assert jax.random.uniform(tree.pair.key) == jax.random.uniform(state.pair.key)


def test_sharded_arrays_return_to_their_devices(tmp_path):
    script = """
import sys
import jax, jax.numpy as jnp, numpy as np
from qdac.runs import create_run
mesh = jax.make_mesh((2,), ("data",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
array = jax.device_put(jnp.arange(8.0), sharding)
run = create_run(sys.argv[1], {})
run.save_checkpoint(1, array, {})
loaded, _ = run.load_checkpoint(array)
assert loaded.sharding == sharding
np.testing.assert_array_equal(loaded, np.arange(8.0))
"""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    process = run_script(script, tmp_path / "run", env=environment)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


def test_the_newest_two_are_kept(run):
    for step in (1, 2, 10):
        run.save_checkpoint(step, make_state(step), {})
    assert checkpoint_names(run) == ["000000000002", "000000000010"]
    tree, _ = run.load_checkpoint(make_state())
    assert_same_bits(tree, make_state(10))


def test_a_step_saved_again_is_replaced(run):
    run.save_checkpoint(1, make_state(1), {})
    run.save_checkpoint(1, make_state(2), {})
    assert checkpoint_names(run) == ["000000000001"]
    assert_same_bits(run.load_checkpoint(make_state())[0], make_state(2))


def test_later_checkpoints_of_a_rewound_run_are_deleted(run):
    for step in (10, 20):
        run.save_checkpoint(step, make_state(step), {})
    run.save_checkpoint(15, make_state(15), {})
    assert checkpoint_names(run) == ["000000000010", "000000000015"]


@pytest.mark.parametrize("checkpoint_file", ["tensors.safetensors", "metadata.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(run, checkpoint_file, damage):
    run.log(1, {"a": 1.0}, {"b": 1.0})
    run.save_checkpoint(1, make_state(1), {})
    expected = {name: (run.path / name).read_bytes() for name in runs.CSV_NAMES}
    run.log(2, {"a": 2.0}, {"b": 2.0})
    run.save_checkpoint(2, make_state(2), {})
    path = run.path / "checkpoints" / "000000000002" / checkpoint_file
    data = path.read_bytes()
    middle = len(data) // 2
    if damage == "flip":
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif damage == "truncate":
        path.write_bytes(data[:middle])
    else:
        path.unlink()

    warnings = []
    tree, metadata = run.load_checkpoint(make_state(), warn=warnings.append)
    assert_same_bits(tree, make_state(1))
    assert metadata["step"] == 1
    assert len(warnings) == 1 and "000000000002 is damaged" in warnings[0]
    assert {name: (run.path / name).read_bytes() for name in runs.CSV_NAMES} == expected

    run.log(2, {"a": 2.0}, {"b": 2.0})
    run.save_checkpoint(2, make_state(2), {})
    assert_same_bits(run.load_checkpoint(make_state(), warn=pytest.fail)[0], make_state(2))


def test_no_intact_checkpoint(run, capsys):
    with pytest.raises(UserError, match="no intact checkpoint"):
        run.load_checkpoint(make_state())
    run.save_checkpoint(1, make_state(), {})
    (run.path / "checkpoints" / "000000000001" / "tensors.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="no intact checkpoint"):
        run.load_checkpoint(make_state())
    assert "warning: checkpoint" in capsys.readouterr().err


def test_resumed_rows_continue_exactly(tmp_path):
    whole, resumed = create_run(tmp_path / "whole", {}), create_run(tmp_path / "resumed", {})
    for step in (1, 2, 3):
        whole.log(step, {"a": step / 3}, {"b": 0.0})
    resumed.log(1, {"a": 1 / 3}, {"b": 0.0})
    resumed.save_checkpoint(1, jnp.ones(2), {})
    resumed.log(2, {"a": 2 / 3}, {"b": 0.0})
    with (resumed.path / "metrics.csv").open("a") as file:
        file.write("3,0.9")
    resumed.load_checkpoint(jnp.ones(2))
    for step in (2, 3):
        resumed.log(step, {"a": step / 3}, {"b": 0.0})
    for name in runs.CSV_NAMES:
        assert (whole.path / name).read_bytes() == (resumed.path / name).read_bytes()


def test_lost_rows_are_reported_not_padded(run):
    run.log(1, {"a": 1.0}, {"b": 1.0})
    run.save_checkpoint(1, jnp.ones(2), {})
    (run.path / "metrics.csv").write_text("step,a\n")
    warnings = []
    run.load_checkpoint(jnp.ones(2), warn=warnings.append)
    assert len(warnings) == 1 and "metrics.csv" in warnings[0]
    assert (run.path / "metrics.csv").read_text() == "step,a\n"


@pytest.mark.parametrize(
    "template, difference",
    [
        ({"a": jnp.ones((2, 3))}, r"holds \['b'\], which was not expected"),
        ({"a": jnp.ones((2, 3)), "b": jnp.ones(1), "c": jnp.ones(1)}, r"lacks \['c'\]"),
        ({"a": jnp.ones((3, 2)), "b": jnp.ones(1)}, r"\['a'\] as float32\[2, 3\], expected float32\[3, 2\]"),
        ({"a": jnp.ones((2, 3)), "b": jnp.ones(1, int)}, r"\['b'\] as float32\[1\], expected int32\[1\]"),
    ],
)
def test_another_template_is_refused_and_nothing_rewound(run, template, difference):
    run.save_checkpoint(1, {"a": jnp.ones((2, 3)), "b": jnp.ones(1)}, {})
    run.log(1, {"a": 1.0}, {})
    before = (run.path / "metrics.csv").read_bytes()
    with pytest.raises(UserError, match=difference):
        run.load_checkpoint(template)
    assert (run.path / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize("change, advice", [(1, "update qdac"), (-1, "start another run")])
def test_a_checkpoint_of_another_format(run, monkeypatch, change, advice):
    other = runs.CHECKPOINT_FORMAT + change
    with monkeypatch.context() as another:
        another.setattr(runs, "CHECKPOINT_FORMAT", other)
        run.save_checkpoint(1, jnp.ones(2), {})
    with pytest.raises(UserError, match=f"format {other}.*{advice}"):
        run.load_checkpoint(jnp.ones(2))


KILLED_SAVE = """
import os, sys, time
import numpy as np
from qdac import runs

run = runs.open_run(sys.argv[1])
function, calls_before = sys.argv[2], int(sys.argv[3])
original = getattr(os, function)

def stop(*arguments):
    global calls_before
    if calls_before == 0:
        print("reached", flush=True)
        time.sleep(60)
    calls_before -= 1
    return original(*arguments)

setattr(os, function, stop)
run.save_checkpoint(int(sys.argv[4]), np.full(1000, 2.0), {})
"""


@pytest.mark.parametrize(
    "function, calls_before, step, left, left_after_next_save",
    [
        ("fsync", 0, 2, ["000000000001", "partial"], ["000000000001", "000000000003"]),
        ("replace", 1, 2, ["000000000001", "partial"], ["000000000001", "000000000003"]),
        ("replace", 2, 1, ["000000000001.replaced", "partial"], ["000000000003"]),
    ],
    ids=["before the metadata", "before the rename", "while replacing the same step"],
)
def test_a_killed_save_leaves_the_last_checkpoint(
    run, function, calls_before, step, left, left_after_next_save
):
    run.save_checkpoint(1, np.ones(1000), {})
    process = run_script(KILLED_SAVE, run.path, function, calls_before, step)
    reached = process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert reached == "reached\n", errors
    assert checkpoint_names(run) == left
    tree, _ = run.load_checkpoint(np.ones(1000), warn=pytest.fail)
    assert_same_bits(tree, np.ones(1000))
    run.save_checkpoint(3, np.ones(1000), {})
    assert checkpoint_names(run) == left_after_next_save


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_while_syncing(run, monkeypatch, code):
    run.save_checkpoint(1, np.ones(1000), {})

    def full(_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"disk full.*000000000002.*8,000 bytes"):
            run.save_checkpoint(2, np.ones(1000), {})
        with pytest.raises(UserError, match=r"disk full.*evaluation.json"):
            files.write_json(run.path / "evaluation.json", {})
    assert checkpoint_names(run) == ["000000000001"]
    assert not list(run.path.glob("*.partial"))
    assert_same_bits(run.load_checkpoint(np.ones(1000))[0], np.ones(1000))


FULL_DISK = """
import os, subprocess, sys
import numpy as np
from qdac import runs
from qdac.errors import UserError

subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", sys.argv[1]], check=True)
run = runs.create_run(sys.argv[1] + "/run", {})
run.save_checkpoint(1, np.ones(1000), {})
try:
    run.save_checkpoint(2, np.ones(1000_000), {})
except UserError as error:
    print(error)
assert os.listdir(run.path / "checkpoints") == ["000000000001"]
run.load_checkpoint(np.ones(1000))
"""
PRIVATE_MOUNTS = ("unshare", "--mount", "--map-root-user")


def can_mount(folder):
    command = [*PRIVATE_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    return shutil.which("unshare") and subprocess.run(command, capture_output=True).returncode == 0


def test_a_really_full_disk(tmp_path):
    if not can_mount(tmp_path):
        pytest.skip("needs a private mount")
    process = run_script(FULL_DISK, tmp_path, prefix=PRIVATE_MOUNTS)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "disk full" in output and "8,000,000 bytes" in output
