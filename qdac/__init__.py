"""Quality-Diversity Actor-Critic: one policy, many skills.

    run = qdac.train(task="walker2d_feet_contact", preset="debug", out="RUN")
    policy = qdac.load(run)
    action = policy(obs, skill)
    rollout = qdac.roll_out(policy, skill, seed=0)
    scores = qdac.evaluate(policy, rollouts=10).summary

The names below are imported when first used, so that `qdac --help` does not wait for a simulator.
"""

from __future__ import annotations

import importlib
from typing import Any

from qdac.device import configure

configure()

_HOMES = {
    "train": "training",
    "resume": "training",
    "load": "evaluation",
    "evaluate": "evaluation",
    "roll_out": "evaluation",
    "make_task": "tasks",
    "Task": "types",
    "Box": "types",
    "Circle": "types",
    "UserError": "errors",
}
"""The module that each public name lives in."""
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
