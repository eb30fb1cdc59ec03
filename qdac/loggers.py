"""Optional extras beside metrics.csv: each is started for a run folder and then given every row."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

from qdac.errors import UserError, unknown_name

Logger = Callable[[int, Mapping[str, float]], None]


def check_loggers(names: tuple[str, ...]) -> None:
    """Raises a UserError for a logger that is unknown or not installed."""
    for name in names:
        if name not in _LOGGERS:
            raise unknown_name("logger", name, _LOGGERS)
        package, _ = _LOGGERS[name]
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(
                f"the {name} logger needs {package}; install it with `pip install qdac[{name}]`"
            ) from error


def start_loggers(names: tuple[str, ...], path: Path, config: dict) -> tuple[Logger, ...]:
    """Returns the loggers of the run in a folder."""
    return tuple(_LOGGERS[name][1](path, config) for name in names)


def _start_tensorboard(path: Path, config: dict) -> Logger:
    writer = importlib.import_module("tensorboardX").SummaryWriter(str(path / "tensorboard"))

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, float(value), step)
        writer.flush()

    return log


def _start_wandb(path: Path, config: dict) -> Logger:
    folder = path.resolve()
    name = "-".join(folder.parts[-2:])
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:8]  # Folders of the same name are different runs.
    run = importlib.import_module("wandb").init(
        project="qdac", id=f"{name}-{mark}", name=name, dir=str(path), config=config, resume="allow"
    )
    return lambda step, values: run.log({key: float(value) for key, value in values.items()}, step=step)


_LOGGERS = {"tensorboard": ("tensorboardX", _start_tensorboard), "wandb": ("wandb", _start_wandb)}
"""The package that each needs, and what starts it."""
