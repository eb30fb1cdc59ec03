"""The algorithms by name: their configuration, their presets, and how one is made for a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from qdac.agents import qdac
from qdac.errors import unknown_name
from qdac.trunk import Trunk
from qdac.types import Task


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named configuration and the budget it is meant for."""

    config: Any
    steps: int
    summary: str
    max_minutes: float = 0.0


@dataclasses.dataclass(frozen=True)
class Algorithm:
    summary: str
    make_agent: Callable[[Any, Task], Any]
    """(config, task) -> an agent, which is also a `Policy`."""
    make_trainer: Callable[[Any, Task], Any]
    """(agent, task) -> a trainer with `init(key)` and `iterate(state)`."""
    presets: Mapping[str, Preset]


ALGORITHMS = {
    "qdac": Algorithm(
        summary="Quality-Diversity Actor-Critic (model-free): value and successor-features critics, "
        "balanced by a learned multiplier",
        make_agent=qdac.QDAC,
        make_trainer=Trunk,
        presets={
            "laptop": Preset(
                qdac.LAPTOP, 100_000_000, "the best policy that an hour on 2 cores can give", max_minutes=60.0
            ),
            "paper": Preset(qdac.Config(), 10_000_000, "the paper's hyper-parameters and budget, for a GPU"),
            "debug": Preset(qdac.DEBUG, 4_096, "everything tiny: the whole pipeline in a minute"),
        },
    ),
}


def get_algorithm(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def get_preset(algo: str, preset: str) -> Preset:
    presets = get_algorithm(algo).presets
    if preset not in presets:
        raise unknown_name(f"preset of {algo}", preset, presets)
    return presets[preset]
