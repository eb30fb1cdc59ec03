"""The configuration of a run: task, budget, habits, and the algorithm's own hyper-parameters."""

from __future__ import annotations

import dataclasses
import numbers
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from qdac.agents import get_algorithm, get_preset
from qdac.errors import UserError, check_seed, unknown_name
from qdac.presets import OF_TASKS
from qdac.runs import config_difference
from qdac.types import Task

CHANGEABLE = ("steps", "max_minutes", "checkpoint_minutes", "loggers")
"""Fields that may change when a run is resumed: they have no part in what it learned or logged so far."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """All that decides a run. Saved, resolved, as config.json."""

    algo: str
    """Algorithm; `qdac algos` lists them."""
    task: str
    """Task; `qdac tasks` lists them, `my_module:my_task` is your own."""
    preset: str
    """The named configuration that all other options start from; `qdac algos` lists them."""
    agent: Any
    """Hyper-parameters of the algorithm, with the values of the preset."""
    seed: int = 0
    """Decides every random number of the run."""
    steps: int = 0
    """Env steps in all, rounded up to whole iterations. May change when a run is resumed."""
    max_minutes: float = 0.0
    """Stop, save and finish after this much training time, counted over all resumptions; 0 for no
    limit. May change when a run is resumed."""
    backend: str | None = None
    """Physics backend of Brax: spring (the tasks' own), positional, generalized or mjx."""
    episode_length: int | None = None
    """Time limit of an episode in env steps, if not the task's own."""
    eval_interval: int = 0
    """Env steps between two evaluations, each a row of metrics.csv; 0 for a twentieth of `steps`, but at
    most 500,000. There is none in the warm-up, and one more when training ends."""
    eval_skills: int = 128
    """Skills of the grid executed in each of them, once each."""
    keep: Literal["last", "best"] = "last"
    """The policy that policy.safetensors holds in the end: the last one, or the latest whose share of skills achieved
    is within a standard error of the largest in an evaluation."""
    checkpoint_minutes: float = 10.0
    """Time between checkpoints; has no influence on the results. May change when a run is resumed."""
    loggers: tuple[str, ...] = ()
    """Optional extras besides metrics.csv: tensorboard, wandb. May change when a run is resumed."""

    def __post_init__(self) -> None:
        for name in ("steps", "eval_skills"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} should be at least 1, got {getattr(self, name)}")
        check_seed(self.seed)
        for name in ("max_minutes", "eval_interval", "checkpoint_minutes"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} should not be negative, got {getattr(self, name)}")
        if self.episode_length is not None and self.episode_length < 1:
            raise UserError(f"episode_length should be at least 1, got {self.episode_length}")
        get_algorithm(self.algo).check(self.agent)

    def resolved(self, task: Task) -> TrainConfig:
        """Returns the config with everything that depends on other fields or on the task written out."""
        interval = self.eval_interval or min(max(self.steps // 20, 1), 500_000)
        return dataclasses.replace(self, eval_interval=interval, agent=self.agent.for_task(task))

    def make_task(self) -> Task:
        """Returns the task, with the options that were given."""
        from qdac.tasks import make_task  # Brax takes seconds to import, and --help needs none of it.

        options = {"backend": self.backend, "episode_length": self.episode_length}
        return make_task(self.task, **{name: value for name, value in options.items() if value is not None})

    def make_agent(self, task: Task) -> Any:
        """Returns the algorithm for the task: an agent, which is also its `Policy`."""
        return get_algorithm(self.algo).make_agent(self.agent, task)

    def to_dict(self) -> dict:
        """Returns plain values for JSON; `from_dict` gives the config back."""
        return dataclasses.asdict(self)


def default_config(
    algo: str = "qdac", task: str = "walker2d_feet_contact", preset: str = "laptop"
) -> TrainConfig:
    """Returns a preset of an algorithm for a task."""
    found = get_preset(algo, preset)
    config = TrainConfig(
        algo=algo, task=task, preset=preset, agent=found.config, steps=found.steps,
        max_minutes=found.max_minutes, keep=found.keep, eval_interval=found.eval_interval,
    )
    return with_overrides(config, OF_TASKS.get((algo, preset), {}).get(task, {}))


def with_overrides(config: TrainConfig, overrides: Mapping[str, Any]) -> TrainConfig:
    """Returns the config with fields of the run or of the algorithm, by their plain names, replaced."""
    of_agent = {field.name for field in dataclasses.fields(config.agent)}
    of_run = {field.name for field in dataclasses.fields(config)} - {"agent"}
    for name in overrides:
        if name not in of_agent | of_run:
            raise unknown_name("config field", name, of_agent | of_run)
    hints = typing.get_type_hints(type(config)) | typing.get_type_hints(type(config.agent))
    values = {name: _typed(name, value, hints[name]) for name, value in overrides.items()}
    agent = dataclasses.replace(config.agent, **{name: values[name] for name in of_agent & values.keys()})
    return dataclasses.replace(config, agent=agent, **{name: values[name] for name in of_run & values.keys()})


def _typed(name: str, value: Any, hint: Any) -> Any:
    """Returns the value as a field of the type holds it (2e6 is an int too), or raises a UserError if it cannot."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind is types.UnionType:
        if value is None and type(None) in inner:
            return None
        (hint,) = (part for part in inner if part is not type(None))
        return _typed(name, value, hint)
    if kind is Literal:
        if value in inner:
            return value
        raise unknown_name(name, str(value), inner)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    if kind is tuple and isinstance(value, (list, tuple)):
        return tuple(_typed(name, part, inner[0]) for part in value)
    if hint is int and is_number and float(value).is_integer():
        return int(value)
    if hint is float and is_number:
        return float(value)
    if hint is bool and isinstance(value, (bool, np.bool_)):
        return bool(value)
    if hint is str and isinstance(value, str):
        return value
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
    expected = words.get(hint) or f"a sequence, each of it {words[inner[0]]}"
    raise UserError(f"{name} should be {expected}, got {value!r}")


def from_dict(saved: Mapping[str, Any]) -> TrainConfig:
    """Returns the config that `to_dict` gave, after a trip through JSON."""
    try:
        presets = get_algorithm(saved["algo"]).presets
        agent_class = type(next(iter(presets.values())).config)
        return TrainConfig(**_with_tuples({**saved, "agent": agent_class(**_with_tuples(saved["agent"]))}))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"the saved configuration is not one of this version of qdac: {error}") from error


def check_resumable(saved: TrainConfig, new: TrainConfig) -> None:
    """Raises a UserError that names the fields in which `new` may not differ from a run's config."""
    kept = {name: getattr(saved, name) for name in CHANGEABLE}
    difference = config_difference(saved.to_dict(), dataclasses.replace(new, **kept).to_dict())
    if difference:
        raise UserError(
            f"a resumed run keeps its configuration, but this differs: {'; '.join(difference)}. "
            f"Leave that out (only {', '.join(CHANGEABLE)} may change) or start another run"
        )


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values with lists, which JSON and users write, as the tuples that configs hold."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
