"""The run folder: its config, its rows, its policy, and the loggers beside them."""

import csv
import json
import shutil
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from saved import assert_same_bits, make_state, run_script

from qdac.errors import UserError
from qdac.runs import config_difference, create_run, open_run, read_tensor_file, unflatten


def test_created_run_opens_with_its_config(run):
    assert open_run(run.path).config == {"algo": "qdac", "seed": 3}
    system = json.loads((run.path / "system.json").read_text())
    assert system["packages"]["jax"] == jax.__version__
    assert system["devices"] == [device.device_kind for device in jax.devices()]


def test_a_folder_with_files_is_refused(run):
    with pytest.raises(UserError, match=rf"qdac train --resume {run.path}.*--out") as error:
        create_run(run.path, {})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("parent", ["file", "/proc"])
def test_an_unwritable_parent_is_refused(tmp_path, parent):
    (tmp_path / "file").write_text("")
    path = tmp_path / parent / "run"
    with pytest.raises(UserError, match=f"{path}.*--out"):
        create_run(path, {})


def test_no_run_folder(tmp_path):
    with pytest.raises(UserError, match="no config.json"):
        open_run(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "config"', '{"format": 1, "config": null}', "\x00\xff"]
)
def test_a_damaged_config(run, text):
    (run.path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match="config.json is damaged"):
        open_run(run.path)


def test_a_newer_config_format(run):
    (run.path / "config.json").write_text('{"format": 2, "config": {}}')
    with pytest.raises(UserError, match="format 2, expected at most 1; update qdac"):
        open_run(run.path)


def test_one_process_trains_in_a_folder(run):
    with run.alone():
        with pytest.raises(UserError, match="another process is training in"), open_run(run.path).alone():
            pass
    with run.alone():
        pass


def test_csv_rows_are_exact(run):
    values = {"a,b": 0.1, "loss": np.float32(0.1), "none": float("nan"), "big": 1e300, "jax": jnp.float32(2)}
    run.log(10, values, {"seconds": 0.5})
    open_run(run.path).log(20, values, {"seconds": 1.5})
    assert (run.path / "metrics.csv").read_bytes() == (
        b'step,"a,b",loss,none,big,jax\n'
        b"10,0.1,0.10000000149011612,nan,1e+300,2.0\n"
        b"20,0.1,0.10000000149011612,nan,1e+300,2.0\n"
    )
    with (run.path / "timing.csv").open() as file:
        assert list(csv.DictReader(file))[1] == {"step": "20", "seconds": "1.5"}


def test_other_columns_are_refused_before_anything_is_written(run):
    run.log(1, {"a": 1.0}, {"b": 1.0})
    before = (run.path / "metrics.csv").read_bytes()
    with pytest.raises(UserError, match="columns"):
        run.log(2, {"a": 1.0}, {"c": 1.0})
    assert (run.path / "metrics.csv").read_bytes() == before


def test_a_vanished_folder_is_named(run):
    shutil.rmtree(run.path)
    with pytest.raises(UserError, match="metrics.csv"):
        run.log(1, {"a": 1.0}, {})
    with pytest.raises(UserError, match="policy.safetensors"):
        run.save_policy({"a": np.ones(2)}, {})


def test_policy_round_trip(run):
    state = make_state()
    metadata = {"task": "walker", "algo": "qdac", "config": {"discount": 0.99}}
    run.save_policy(state, metadata)
    tensors, loaded = read_tensor_file(run.path / "policy.safetensors")
    assert loaded == metadata
    assert_same_bits(unflatten(state, tensors, "policy"), state)
    with pytest.raises(UserError, match=r"policy lacks \['other'\]"):
        unflatten({"other": np.ones(1)}, tensors, "policy")


def test_policy_files_that_are_none(run, tmp_path):
    run.save_policy(make_state(), {})
    good = (run.path / "policy.safetensors").read_bytes()
    foreign = safetensors.numpy.save({"a": np.ones(2)}, {"format": "pt"})
    newer = safetensors.numpy.save({"a": np.ones(2)}, {"qdac_format": "2", "metadata": "{}"})
    path = tmp_path / "policy.safetensors"
    for data, complaint in [
        (b"", "no whole safetensors"),
        (b"not tensors at all", "no whole safetensors"),
        (good[:-3], "no whole safetensors"),
        (foreign, "no qdac policy"),
        (newer, "format 2"),
    ]:
        path.write_bytes(data)
        with pytest.raises(UserError, match=f"{path}.*{complaint}") as error:
            read_tensor_file(path)
        assert "\n" not in str(error.value)
    for missing in (tmp_path / "absent", tmp_path):
        with pytest.raises(UserError, match=str(missing)):
            read_tensor_file(missing)


def test_config_difference():
    old = {"seed": 3, "sizes": [8, 8], "agent": {"discount": 0.9, "rate": 1}, "gone": None}
    new = {"seed": 4, "sizes": (8, 8), "agent": {"discount": 0.9, "rate": 2}, "added": {}}
    assert config_difference(old, new) == [
        "seed: 3 -> 4",
        "agent.rate: 1 -> 2",
        "gone: None -> absent",
        "added: absent -> {}",
    ]
    assert config_difference(old, old) == []


def test_loggers_get_the_rows_too(tmp_path, monkeypatch):
    calls = []
    fake_run = types.SimpleNamespace(log=lambda values, step: calls.append((step, values)))
    ids = set()

    def init(**options):
        ids.add(options["id"])
        calls.append(options["config"])
        return fake_run

    fake_wandb = types.SimpleNamespace(init=init)
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb)
    pytest.importorskip("tensorboardX")
    run = create_run(tmp_path / "run", {"seed": 1}, loggers=("tensorboard", "wandb"))
    run.log(5, {"a": 1.0}, {"b": 2.0})
    assert calls == [{"seed": 1}, (5, {"a": 1.0, "b": 2.0})]
    assert list((run.path / "tensorboard").glob("events*"))
    assert (run.path / "metrics.csv").read_text() == "step,a\n5,1.0\n"
    create_run(tmp_path / "other" / tmp_path.name / "run", {}, loggers=("wandb",))
    assert len(ids) == 2


def test_missing_and_unknown_loggers(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UserError, match=r"pip install qdac\[tensorboard\]"):
        create_run(tmp_path / "run", {}, loggers=("tensorboard",))
    with pytest.raises(UserError, match="did you mean 'wandb'"):
        create_run(tmp_path / "run", {}, loggers=("wandbb",))
    assert not (tmp_path / "run").exists()


def test_importing_starts_no_backend():
    script = "import qdac.runs, jax._src.xla_bridge as bridge; assert not bridge._backends"
    process = run_script(script)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
