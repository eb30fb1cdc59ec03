"""The algorithms by name: their configuration, their presets, and how one is made for a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from qdac.agents import domino, qdac, qdac_mb, qdac_ppo, sac, smerl
from qdac.errors import UserError, unknown_name
from qdac.trunk import Trunk
from qdac.types import Task


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named configuration and the budget it is meant for."""

    config: Any
    steps: int
    summary: str
    max_minutes: float = 0.0
    keep: Literal["last", "best"] = "last"
    eval_interval: int = 0


@dataclasses.dataclass(frozen=True)
class Algorithm:
    summary: str
    make_agent: Callable[[Any, Task], Any]
    """(config, task) -> an agent, which is also a `Policy`."""
    make_trainer: Callable[[Any, Task], Any]
    """(agent, task) -> a trainer with `init(key)` and `iterate(state)`."""
    presets: Mapping[str, Preset]
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values of its config that make it this algorithm and no other."""

    def check(self, config: Any) -> None:
        """Raises a UserError if a config is another algorithm's."""
        for name, value in self.fields.items():
            found = getattr(config, name, None)
            if found != value:
                raise UserError(f"the algorithm has {name} {value}, got {found}; choose another --algo")


def _presets(laptop: Any, paper: Any, debug: Any) -> dict[str, Preset]:
    """Returns the three presets that every algorithm has, with the budgets of QDAC's."""
    return {
        "laptop": Preset(laptop, 1_000_000_000, "what an hour on 2 cores can give", max_minutes=60.0, keep="best"),
        "paper": Preset(paper, 10_000_000, "the paper's hyper-parameters and budget, for a GPU"),
        "debug": Preset(debug, 4_096, "everything tiny: the whole pipeline in a minute"),
    }


def _on_trunk(
    summary: str, make_agent: Callable[[Any, Task], Any], module: Any, laptop: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Algorithm:
    """Returns the algorithm of a module, run by the trunk, with some fields of its `Config` changed in all presets.

    `laptop` is what its laptop preset has that others' do not.
    """
    configs = (module.LAPTOP, module.Config(), module.DEBUG)
    presets = _presets(*(dataclasses.replace(config, **fields) for config in configs))
    presets["laptop"] = dataclasses.replace(presets["laptop"], **laptop or {})
    return Algorithm(summary, make_agent, Trunk, presets, fields)


FEW_STEPS = {"eval_interval": 25_000, "keep": "last"}
"""For those that make many updates of few env steps, whose returns go on growing while the share comes and goes."""
MANY_STEPS = {"eval_interval": 2_000_000}
LAST_POLICY = {"keep": "last"}
"""For those whose policies the share of skills achieved, a few in a hundred, does not tell apart."""


ALGORITHMS = {
    "qdac": _on_trunk(
        "Quality-Diversity Actor-Critic (model-free): value and successor-features critics, balanced by a learned "
        "multiplier", qdac.QDAC, qdac, skill_critic="successor",
    ),
    "qdac_ppo": _on_trunk(
        "QDAC's objective on-policy: the gradient of PPO in place of SAC's", qdac_ppo.QDACPPO, qdac_ppo, MANY_STEPS,
        skill_critic="successor",
    ),
    "no_sf": _on_trunk(
        "QDAC's ablation No-SF: the sum of distances to the skill in place of successor features",
        qdac.QDAC, qdac, skill_critic="distance",
    ),
    "fixed_lambda": _on_trunk(
        "QDAC's ablation Fixed-lambda: a multiplier of 0.5 for every state and skill",
        qdac.QDAC, qdac, multiplier=0.5,
    ),
    "uvfa": _on_trunk(
        "QDAC's ablation UVFA: the sum of distances to the skill, with a multiplier of 0.66",
        qdac.QDAC, qdac, skill_critic="distance", multiplier=0.66,
    ),
    "qdac_mb": _on_trunk(
        "QDAC-MB (model-based): QDAC's objective by gradients through imagined rollouts of a world model",
        qdac_mb.QDACMB, qdac_mb, FEW_STEPS, skill_critic="successor",
    ),
    "no_sf_mb": _on_trunk(
        "No-SF on the model-based trunk", qdac_mb.QDACMB, qdac_mb, FEW_STEPS, skill_critic="distance"
    ),
    "fixed_lambda_mb": _on_trunk(
        "Fixed-lambda on the model-based trunk", qdac_mb.QDACMB, qdac_mb, FEW_STEPS, multiplier=0.5
    ),
    "uvfa_mb": _on_trunk(
        "UVFA on the model-based trunk", qdac_mb.QDACMB, qdac_mb, FEW_STEPS, skill_critic="distance", multiplier=0.66
    ),
    "sac": _on_trunk(
        "Soft Actor-Critic: the task's reward alone, one behaviour for all skills", sac.SAC, sac, LAST_POLICY
    ),
    "smerl": _on_trunk(
        "SMERL: behaviours that a discriminator can tell apart, once the return is near SAC's", smerl.SMERL, smerl,
        LAST_POLICY, reverse=False,
    ),
    "reverse_smerl": _on_trunk(
        "Reverse SMERL: behaviours that a discriminator can tell apart, and the task until the return is near SAC's",
        smerl.SMERL, smerl, LAST_POLICY, reverse=True,
    ),
    "domino": _on_trunk(
        "DOMiNO: ten near-optimal policies whose average features keep apart", domino.DOMiNO, domino,
        {"eval_interval": 200_000},
    ),
}  # fmt: skip


def get_algorithm(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def get_preset(algo: str, preset: str) -> Preset:
    presets = get_algorithm(algo).presets
    if preset not in presets:
        raise unknown_name(f"preset of {algo}", preset, presets)
    return presets[preset]
