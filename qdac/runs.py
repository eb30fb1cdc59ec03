"""Run folders: configuration, metrics, checkpoints and policies on disk.

    config.json          the resolved configuration
    system.json          package versions, platform, device and JAX flags
    metrics.csv          what the seed decides: the same seed writes the same bytes
    timing.csv           what the clock decides
    checkpoints/<step>/  tensors.safetensors and metadata.json, the newest two
    policy.safetensors   the trained policy
    evaluation.csv, evaluation.json, figures/
    archive.safetensors, policies/, archive/     of algorithms that fill an archive, see `elites`

Every file but the CSVs appears whole or not at all. What cannot be read or written is a UserError.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from qdac.errors import UserError
from qdac.files import explained, json_bytes, read_json, sync, write_bytes, write_file, write_json
from qdac.loggers import Logger, check_loggers, start_loggers

FORMAT = 1
"""The number in every file whose layout may change; a higher one is refused."""
CHECKPOINT_FORMAT = 3
"""The same for checkpoints, of which a lower one is refused too: training goes on only with all it was made of."""
FORMAT_KEYS = {"policy": "qdac_format", "archive": "qdac_archive_format"}
"""Where the header of a tensor file has that number, by what the file holds."""
KEPT_CHECKPOINTS = 2
CSV_NAMES = ("metrics.csv", "timing.csv")

Tree = Any


def print_warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def create_run(path: str | Path, config: dict, loggers: tuple[str, ...] = ()) -> Run:
    """Returns a new run in `path`, which must be empty or not exist; `config` must be JSON."""
    path = Path(path)
    check_loggers(loggers)
    with explained(path, "create the run folder", "choose another --out"):
        path.mkdir(parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
    if not is_empty:
        raise UserError(
            f"expected an empty or new folder, but {path} already holds files; "
            f"continue that run with `qdac train --resume {path}` or choose another --out"
        )
    write_json(path / "system.json", system_description())
    # Last, because a folder with a config.json is a run.
    _write_config(path, config)
    return open_run(path, loggers)


def open_run(path: str | Path, loggers: tuple[str, ...] = ()) -> Run:
    """Returns the run that `create_run` made in `path`."""
    path = Path(path)
    check_loggers(loggers)
    config_path = path / "config.json"
    with explained(config_path, "read"):
        if not config_path.is_file():
            raise UserError(
                f"{path} is no run folder: it has no config.json; give one that `qdac train` made"
            )
        try:
            saved = read_json(config_path, {"format", "config"})
            if not isinstance(saved["config"], dict):
                raise ValueError("its config is no object")
        except ValueError as error:
            raise UserError(f"{config_path} is damaged ({error}); restore it or start another run") from error
    _check_format(saved["format"], config_path)
    return Run(path, saved["config"], start_loggers(loggers, path, saved["config"]))


def _write_config(path: Path, config: dict) -> None:
    write_json(path / "config.json", {"format": FORMAT, "config": config})


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder that exists. Made by `create_run` and `open_run`."""

    path: Path
    config: dict
    loggers: tuple[Logger, ...] = ()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other processes from training in the folder; the lock ends with the process, however that ends."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(folder)
            raise UserError(
                f"expected a run that has stopped, but another process is training in {self.path}; "
                "wait for it or stop it"
            ) from error
        except OSError:
            pass  # A file system without locks.
        try:
            yield
        finally:
            os.close(folder)

    def save_config(self, config: dict) -> None:
        """Writes config.json anew, for a run that goes on with another budget."""
        _write_config(self.path, config)

    def log(self, step: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        """Appends a row to metrics.csv and to timing.csv; the first row decides the columns."""
        texts = [
            _csv_text(path, step, row) for path, row in zip(self._csv_paths, (metrics, timing), strict=True)
        ]
        for path, text in zip(self._csv_paths, texts, strict=True):
            with explained(path, "write", num_bytes=len(text)), path.open("a", newline="") as file:
                file.write(text)
        for logger in self.loggers:
            logger(step, {**metrics, **timing})

    def save_checkpoint(self, step: int, tree: Tree, metadata: dict) -> None:
        """Writes a pytree of arrays, all or nothing, then deletes all but the newest two checkpoints.

        Checkpoints of later steps are deleted too: they are left from before the run was rewound.
        """
        tensors = flatten(tree)
        final = self._checkpoints / f"{step:012d}"
        partial = self._checkpoints / "partial"
        replaced = self._checkpoints / f"{final.name}.replaced"
        num_bytes = sum(tensor.nbytes for tensor in tensors.values())
        with explained(final, "write the checkpoint", num_bytes=num_bytes):
            shutil.rmtree(partial, ignore_errors=True)
            try:
                partial.mkdir(parents=True)
                self._write_checkpoint(partial, step, tensors, metadata)
                if final.exists():
                    shutil.rmtree(replaced, ignore_errors=True)
                    os.replace(final, replaced)
                os.replace(partial, final)
                sync(self._checkpoints)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            complete = [folder for folder in self._checkpoint_folders() if folder.name.isdigit()]
            kept = [folder for folder in complete if int(folder.name) <= step][:KEPT_CHECKPOINTS]
            for folder in self._checkpoint_folders():
                if folder not in kept:
                    shutil.rmtree(folder)

    def start_over(self) -> bool:
        """Returns whether there is no checkpoint, not even a damaged one; removes rows and archive if so."""
        if self._checkpoint_folders():
            return False
        for path in (*self._csv_paths, self.path / "archive.safetensors"):
            with explained(path, "remove"):
                path.unlink(missing_ok=True)
        return True

    def load_checkpoint(
        self, template: Tree, warn: Callable[[str], None] = print_warning
    ) -> tuple[Tree, dict]:
        """Returns the newest intact checkpoint's tree and its metadata, `step` among it.

        Rewinds the CSVs to the rows they had when it was saved, so that a resumed run continues
        them exactly. `template` has the names, shapes and dtypes to expect, see `unflatten`.
        """
        for folder in self._checkpoint_folders():
            try:
                saved = _verified_metadata(folder)
            except (OSError, ValueError) as error:
                warn(f"checkpoint {folder} is damaged ({error}); trying the one before it")
                continue
            tensors_path = folder / "tensors.safetensors"
            with explained(tensors_path, "read"), safe_open(tensors_path, framework="np") as file:
                tree = _restore(template, file.keys(), file.get_tensor, str(folder))
            for path in self._csv_paths:
                _rewind(path, saved["csv_sizes"][path.name], warn)
            return tree, {**saved["metadata"], "step": saved["step"]}
        raise UserError(f"no intact checkpoint in {self._checkpoints}; start again with another --out")

    def save_policy(self, tree: Tree, metadata: dict) -> None:
        """Writes policy.safetensors: a small pytree of arrays and, in its header, JSON metadata."""
        write_tensor_file(self.path / "policy.safetensors", tree, metadata)

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def _csv_paths(self) -> tuple[Path, ...]:
        return tuple(self.path / name for name in CSV_NAMES)

    def _checkpoint_folders(self) -> list[Path]:
        """Returns the checkpoints, newest first, among them any that a killed save was replacing."""
        with explained(self._checkpoints, "read"):
            names = os.listdir(self._checkpoints) if self._checkpoints.exists() else []
        ours = [name for name in names if re.fullmatch(r"\d{12}(\.replaced)?", name)]
        return [self._checkpoints / name for name in sorted(ours, reverse=True)]

    def _write_checkpoint(
        self, folder: Path, step: int, tensors: Mapping[str, np.ndarray], metadata: dict
    ) -> None:
        tensors_path = folder / "tensors.safetensors"
        _save_tensors(tensors_path, tensors)
        for path in self._csv_paths:
            if path.exists():
                sync(path)
        saved = {
            "format": CHECKPOINT_FORMAT,
            "step": step,
            "tensors_sha256": _file_sha256(tensors_path),
            "csv_sizes": {path.name: path.stat().st_size if path.exists() else 0 for path in self._csv_paths},
            "metadata": metadata,
        }
        saved["own_sha256"] = hashlib.sha256(json_bytes(saved)).hexdigest()
        write_bytes(folder / "metadata.json", json_bytes(saved))
        # safetensors leaves its files readable to their owner only.
        shutil.copymode(folder / "metadata.json", tensors_path)
        sync(tensors_path)


def write_tensor_file(path: Path, tree: Tree, metadata: dict, kind: str = "policy") -> None:
    """Writes a pytree of arrays and, in the file's header, JSON metadata, all or nothing."""
    header = {FORMAT_KEYS[kind]: str(FORMAT), "metadata": json.dumps(metadata)}
    data = safetensors.numpy.save(flatten(tree), header)
    write_file(path, data)


def read_tensor_file(path: str | Path, kind: str = "policy") -> tuple[dict[str, np.ndarray], dict]:
    """Returns the tensors by name and the metadata of a file that `write_tensor_file` wrote."""
    path = Path(path)
    advice = "give a policy.safetensors `qdac train` wrote" if kind == "policy" else f"give a saved {kind}"
    with explained(path, f"read the {kind}"):
        try:
            with safe_open(path, framework="np") as file:
                header = file.metadata() or {}
                tensors = file.get_tensors()
        except SafetensorError as error:
            raise UserError(f"{path} is no whole safetensors file ({error}); {advice}") from error
    if not header.get(FORMAT_KEYS[kind], "").isdigit():
        raise UserError(f"{path} holds no qdac {kind}; {advice}")
    _check_format(int(header[FORMAT_KEYS[kind]]), path)
    return tensors, json.loads(header["metadata"])


def flatten(tree: Tree) -> dict[str, np.ndarray]:
    """Returns the leaves by their path in the tree, without copying those already in host memory."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    # safetensors writes the memory as it lies, so the order matters; unlike
    # np.ascontiguousarray, this keeps arrays without dimensions so.
    return {jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in leaves}


def unflatten(template: Tree, tensors: Mapping[str, np.ndarray], source: str) -> Tree:
    """Returns `tensors` as a tree like `template`, of arrays or ShapeDtypeStructs.

    Where the template has a NumPy array, or a dtype that JAX would narrow, so has the tree; all else
    becomes a JAX array, with the template's sharding if it has one. A difference is a UserError that
    names `source`.
    """
    return _restore(template, tensors, tensors.__getitem__, source)


def config_difference(old: dict, new: dict) -> list[str]:
    """Returns a line "field: 3 -> 4" for each value in which the configs differ once saved."""
    old, new = _leaf_values(json.loads(json.dumps(old))), _leaf_values(json.loads(json.dumps(new)))
    return [
        f"{field}: {old.get(field, 'absent')} -> {new.get(field, 'absent')}"
        for field in {**old, **new}
        if field not in old or field not in new or old[field] != new[field]
    ]


def system_description() -> dict:
    """Returns what the results may depend on besides config and seed. Starts the JAX backend."""
    flags = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl")
    packages = {package.name: package.version for package in importlib.metadata.distributions()}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "devices": [device.device_kind for device in jax.devices()],
        "jax_flags": {flag: getattr(jax.config, flag) for flag in flags},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "packages": dict(sorted(packages.items())),
    }


def _restore(template: Tree, names: Iterable[str], read: Callable[[str], np.ndarray], source: str) -> Tree:
    """Returns the tree like `template` of the arrays that `read` gives, one at a time to save memory."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    expected = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    names = set(names)
    advice = "load it with the configuration and the version of qdac that it was saved with"
    for name in [*expected, *sorted(names)]:
        if name not in names:
            raise UserError(f"{source} lacks {name}, which was expected; {advice}")
        if name not in expected:
            raise UserError(f"{source} holds {name}, which was not expected; {advice}")

    def restore_leaf(name: str, leaf: Any) -> Any:
        tensor = read(name)
        if tensor.shape != leaf.shape or tensor.dtype != leaf.dtype:
            raise UserError(
                f"{source} holds {name} as {tensor.dtype}{list(tensor.shape)}, "
                f"expected {leaf.dtype}{list(leaf.shape)}; {advice}"
            )
        is_narrowed = jax.dtypes.canonicalize_dtype(tensor.dtype) != tensor.dtype
        if is_narrowed or isinstance(leaf, (np.ndarray, np.generic)):
            return tensor
        return jax.device_put(tensor, getattr(leaf, "sharding", None))

    return jax.tree_util.tree_unflatten(structure, [restore_leaf(*item) for item in expected.items()])


def _verified_metadata(folder: Path) -> dict:
    """Returns a checkpoint's metadata.json; raises OSError or ValueError if any of it is damaged."""
    saved = read_json(folder / "metadata.json", {"format", "own_sha256"})
    own_sha256 = saved.pop("own_sha256")
    if hashlib.sha256(json_bytes(saved)).hexdigest() != own_sha256:
        raise ValueError("metadata.json does not match its checksum")
    _check_format(saved["format"], folder / "metadata.json", CHECKPOINT_FORMAT)
    if saved["format"] < CHECKPOINT_FORMAT:
        raise UserError(
            f"{folder} was written by an older qdac, with format {saved['format']}, expected {CHECKPOINT_FORMAT}; "
            "its policy can be evaluated, but to train start another run"
        )
    if _file_sha256(folder / "tensors.safetensors") != saved["tensors_sha256"]:
        raise ValueError("tensors.safetensors does not match its checksum")
    return saved


def _rewind(path: Path, size: int, warn: Callable[[str], None]) -> None:
    """Cuts a CSV back to `size` bytes."""
    with explained(path, "rewind"):
        current_size = path.stat().st_size if path.exists() else 0
        if current_size > size:
            os.truncate(path, size)
    if current_size < size:
        warn(f"{path} has {current_size} bytes, {size} when the checkpoint was saved; rows are missing")


def _csv_text(path: Path, step: int, row: Mapping[str, float]) -> str:
    """Returns the lines to append to a CSV: the row, after the header if the file has none yet."""
    columns = ["step", *row]
    with explained(path, "read"):
        header = []
        if path.exists():
            with path.open(newline="") as file:
                header = next(csv.reader(file), [])
    if header and header != columns:
        raise UserError(
            f"{path} has the columns {header}, got {columns}; a run goes on with the version of qdac that began it"
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not header:
        writer.writerow(columns)
    writer.writerow([step, *(repr(float(value)) for value in row.values())])
    return text.getvalue()


def _leaf_values(config: dict, prefix: str = "") -> dict[str, Any]:
    """Returns the values of nested dicts by their dotted path."""
    values = {}
    for name, value in config.items():
        nested = isinstance(value, dict) and value
        values.update(_leaf_values(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value})
    return values


def _check_format(found: Any, path: Path, newest: int = FORMAT) -> None:
    if not isinstance(found, int) or found > newest:
        raise UserError(f"{path} has format {found!r}, expected at most {newest}; update qdac to read it")


def _save_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    try:
        safetensors.numpy.save_file(dict(tensors), path)
    except SafetensorError as error:
        # The operating system's errors arrive only as text.
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
