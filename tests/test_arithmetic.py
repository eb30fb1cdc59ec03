"""No update multiplies more than its equations need: counted in the program, beside passes counted by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest
from probes import clock_task

from qdac.agents import get_algorithm, get_preset
from qdac.bench import matrix_operations
from qdac.trunk import Trunk

KEY = jax.random.PRNGKey(0)
TASK = dataclasses.replace(clock_task(), reference_return=0.0)


def counted(agent: Any) -> tuple[float, dict[str, float]]:
    """Returns the operations of one update, and those of one row through each network, all its heads or policies."""
    template = Trunk(agent, TASK).template()
    batch = jax.eval_shape(agent.draw, template.agent, template.replay, KEY)
    found = jax.tree_util.tree_flatten_with_path(template.agent.params)[0]
    forward: dict[str, float] = {}
    for path, leaf in found:
        if path[-1] == jax.tree_util.DictKey("kernel"):
            names = [part.key for part in path if isinstance(part, jax.tree_util.DictKey)][:-1]
            for name in {names[0], ".".join(names)}:
                forward[name] = forward.get(name, 0.0) + 2.0 * math.prod(leaf.shape)
    return matrix_operations(agent.update, template.agent, batch, KEY), forward


def make_agent(algo: str) -> Any:
    return get_algorithm(algo).make_agent(get_preset(algo, "laptop").config, TASK)


@pytest.mark.parametrize(
    "algo", ["qdac", "no_sf", "fixed_lambda", "uvfa", "sac", "smerl", "reverse_smerl", "domino"]
)
def test_a_soft_actor_critic_evaluates_each_network_as_often_as_its_losses_say(algo):
    """What is learned passes once forward and twice back.

    Actor: learned, and forward in the next state. Critics: learned, forward in the next state (targets), and at the
    policy's action forward and back to it. Multiplier: learned. Discriminator: learned from the first feature of a
    window, forward for the reward of each.
    """
    agent = make_agent(algo)
    operations, forward = counted(agent)
    rows = agent.num_rows / getattr(agent.config, "num_policies", 1)
    critics = sum(forward[name] for name in agent.critic_names)
    of_multiplier = 3 * forward.get("multiplier", 0.0)
    of_discriminator = (3 + agent.config.n_step) * forward.get("discriminator", 0.0)
    needed = rows * (4 * forward["actor"] + 6 * critics + of_multiplier + of_discriminator)
    assert np.isclose(operations, needed, rtol=0.01)


def test_imagination_is_lived_once():
    """The model is learned from each step of the sequences. In imagination its networks, and the critics as judges,
    pass forward, and back to the action; actor and critics are learned, and the slow critics are asked once.

    Critics see the last state too. What is learned of encoder, actor and critics passes nothing back to their inputs.
    """
    agent = make_agent("qdac_mb")
    config = agent.config
    operations, forward = counted(agent)
    critics = sum(forward[name] for name in agent.critic_names)
    dreamed = sum(forward[f"model.{name}"] for name in ("mix", "memory", "prior", "feature", "outcome"))
    params = jax.eval_shape(agent.init, KEY).params
    first = {
        name: 2.0 * math.prod(layers[0]["kernel"].shape)
        for name, layers in (params | {"encoder": params["model"]["encoder"]}).items() if name != "model"
    }  # fmt: skip
    of_model = config.batch_size * config.sequence_length * (3 * forward["model"] - first["encoder"])
    of_actor = agent.num_rows * (2 * dreamed + 3 * forward["actor"] - first["actor"])
    of_critics = (2 + 3) * critics - sum(first[name] for name in agent.critic_names)
    of_critics = agent.num_rows * critics + (agent.num_rows + config.num_starts) * of_critics
    of_multiplier = config.num_starts * 3 * forward["multiplier"]
    needed = of_model + of_actor + of_critics + of_multiplier
    assert np.isclose(operations, needed, rtol=0.01), operations / needed
