"""The configuration of a run: task, budget, habits, and the algorithm's own hyper-parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

from qdac.agents import get_algorithm, get_preset
from qdac.errors import UserError
from qdac.tasks import make_task
from qdac.types import Task


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """All that decides a run. Saved, resolved, as config.json."""

    algo: str
    """Algorithm; `qdac algos` lists them."""
    task: str
    """Task; `qdac tasks` lists them, `my_module:my_task` is your own."""
    preset: str
    """The named configuration that the fields below start from."""
    agent: Any
    """The algorithm's hyper-parameters."""
    seed: int = 0
    """Decides every random number of the run."""
    steps: int = 0
    """Env steps in all."""
    max_minutes: float = 0.0
    """Stop, save and finish after this much wall time; 0 for no limit. `--resume` can go on."""
    backend: str | None = None
    """Physics backend of Brax: spring (the tasks' default), positional, generalized, mjx."""
    episode_length: int | None = None
    """Time limit of an episode in env steps; the task's own if not given."""
    num_evaluations: int = 20
    """Evaluations during training, and rows of metrics.csv, spread evenly over the steps."""
    eval_skills: int = 128
    """Skills of the grid executed in each of them, once each."""
    checkpoint_minutes: float = 10.0
    """Wall time between checkpoints."""
    loggers: tuple[str, ...] = ()
    """Optional extras besides metrics.csv: tensorboard, wandb."""

    def __post_init__(self) -> None:
        for name in ("steps", "num_evaluations", "eval_skills"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} should be at least 1, got {getattr(self, name)}")
        for name in ("max_minutes", "checkpoint_minutes", "seed"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} should not be negative, got {getattr(self, name)}")

    def make_task(self) -> Task:
        options = {"backend": self.backend, "episode_length": self.episode_length}
        return make_task(self.task, **{name: value for name, value in options.items() if value is not None})

    def make_agent(self, task: Task) -> Any:
        return get_algorithm(self.algo).make_agent(self.agent, task)

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)


def default_config(algo: str = "qdac", task: str = "walker2d_feet_contact", preset: str = "laptop") -> TrainConfig:
    """Returns a preset of an algorithm for a task."""
    found = get_preset(algo, preset)
    return TrainConfig(algo=algo, task=task, preset=preset, agent=found.config, steps=found.steps)


def with_overrides(config: TrainConfig, overrides: dict[str, Any]) -> TrainConfig:
    """Returns the config with fields of the run or of the algorithm, by their plain names, replaced."""
    agent_fields = {field.name for field in dataclasses.fields(config.agent)}
    run_fields = {field.name for field in dataclasses.fields(config)} - {"agent"}
    for name in overrides:
        if name not in agent_fields | run_fields:
            raise UserError(f"unknown config field {name!r}; known: {', '.join(sorted(agent_fields | run_fields))}")
    agent = dataclasses.replace(config.agent, **{k: v for k, v in overrides.items() if k in agent_fields})
    return dataclasses.replace(config, agent=agent, **{k: v for k, v in overrides.items() if k in run_fields})


def from_dict(saved: dict) -> TrainConfig:
    """Returns the config that `to_dict` gave, after a trip through JSON."""
    agent_class = type(get_preset(saved["algo"], "paper").config)
    agent = agent_class(**{**saved["agent"], "hidden_sizes": tuple(saved["agent"]["hidden_sizes"])})
    return TrainConfig(**{**saved, "agent": agent, "loggers": tuple(saved["loggers"])})
