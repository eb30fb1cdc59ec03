"""What a preset has otherwise for single tasks: the only place that names an algorithm and a task together.

Each entry was measured on its task (docs/recipe.md) and tried on no other; an ablation has that of its algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OF_TASKS: Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]] = {
    ("qdac_ppo", "laptop"): {
        "walker2d_feet_contact": {
            "action_repeat": None, "feature_discount": 0.95, "discount": 0.985, "average_discount": 0.99,
            "skill_steps": 125, "step_reward_weight": 10.0, "entropy_bonus": 0.0, "final_noise": 0.2,
            "noise_updates": 25_000, "keep": "last", "eval_interval": 4_000_000,
        },
        "ant_feet_contact": {"step_reward_weight": 10.0, "actor_average_rate": 0.002, "keep": "last"},
        "humanoid_feet_contact": {"learning_rate": 4e-4, "learning_rate_updates": 60_000, "skill_steps": 0},
        "humanoid_jump": {
            "action_repeat": None, "average_discount": None, "death": "lived", "death_distance": 0.5,
            "step_reward_weight": 5.0, "learning_rate": 5e-4, "entropy_bonus": 0.0, "final_noise": 0.4,
            "noise_updates": 1, "eval_interval": 1_000_000,
        },
    },
    **{
        (algo, "laptop"): {"humanoid_jump": {"steps_per_iteration": 16, "feature_scale": 20.0}}
        for algo in ("qdac_mb", "no_sf_mb", "fixed_lambda_mb", "uvfa_mb")
    },
}  # fmt: skip
"""(algorithm, preset) -> task -> fields of the run or of the algorithm."""
