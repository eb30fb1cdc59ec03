"""QDAC-MB: lambda-returns against a plain loop, every loss by hand, who learns from what, and acting."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import psutil
import pytest
from probes import always, assert_trees_close, clock_task, close, dial_task, needs_two_devices, taught
from tiny_tasks import line

from qdac.agents import get_preset
from qdac.agents.qdac_mb import QDACMB, Config, lambda_returns, spread
from qdac.errors import UserError
from qdac.replay import Sequences, sample_sequences
from qdac.trunk import Trunk
from qdac.twohot import symlog

KEY = jax.random.PRNGKey(0)
GAMMA, MIX, HORIZON = 0.9, 0.8, 3


def make_agent(**fields: Any) -> QDACMB:
    """Returns an agent for the clock, whose skills are in [0, 4] with a threshold of 0.25."""
    small = {
        "memory_size": 6, "latents": 2, "classes": 3, "model_width": 6, "encoder_sizes": (6,), "head_sizes": (6,),
        "num_bins": 11, "bin_limit": 3.0, "batch_size": 2, "sequence_length": 4, "horizon": HORIZON,
        "discount": GAMMA, "return_mix": MIX, "num_envs": 4, "warmup_steps": 16, "entropy_scale": 0.1,
    }  # fmt: skip
    return QDACMB(Config(**small | fields), clock_task())


def make_steps(agent: QDACMB) -> Sequences:
    shape = agent.config.batch_size, agent.config.sequence_length
    keys = jax.random.split(KEY, 2)
    return Sequences(
        obs=jax.random.normal(keys[0], (*shape, 2)), action=jax.random.uniform(keys[1], (*shape, 1), minval=-1.0),
        reward=jnp.ones(shape), feature=jnp.zeros((*shape, 1)), terminated=jnp.zeros(shape),
        is_first=jnp.zeros(shape).at[:, 0].set(1.0),
    )  # fmt: skip


def plain_returns(now, next_average, goes_on, after_end, gamma=GAMMA):
    """Returns the paper's recursion, written as it stands there."""
    later, averages = next_average[-1], []
    for t in reversed(range(len(now))):
        future = (1 - MIX) * next_average[t] + MIX * later
        later = (1 - gamma) * now[t] + gamma * (goes_on[t] * future + (1 - goes_on[t]) * after_end)
        averages.insert(0, later)
    return np.array(averages)


@pytest.mark.parametrize("size", [1, 3])
def test_lambda_returns_are_those_of_a_plain_loop(size):
    rng = np.random.default_rng(0)
    now, following = rng.normal(size=(2, 15, 4, size))
    goes_on, after_end = rng.uniform(size=(15, 4)), rng.normal(size=(4, size))
    expected = np.stack([plain_returns(now[:, i], following[:, i], goes_on[:, i], after_end[i]) for i in range(4)], 1)
    close(lambda_returns(now, following, goes_on, after_end, GAMMA, MIX), expected, rtol=1e-4, atol=1e-5)


def test_lambda_returns_at_their_ends():
    """Without mixing a one-step target; with nothing else, what was imagined and the critic at its end."""
    ones = jnp.ones((3, 1, 1))
    critic = jnp.array([10.0, 20.0, 30.0])[:, None, None]
    goes_on, nothing = jnp.ones((3, 1)), jnp.zeros((1, 1))
    one_step = lambda_returns(ones, critic, goes_on, nothing, 0.5, mix=0.0)[:, 0, 0]
    close(one_step, [0.5 + 5.0, 0.5 + 10.0, 0.5 + 15.0])
    whole = lambda_returns(ones, critic, goes_on, nothing, 0.5, mix=1.0)[:, 0, 0]
    close(whole, [0.5 + 0.25 + 0.125 + 30 / 8, 0.5 + 0.25 + 30 / 4, 0.5 + 30 / 2])


REWARD, FEATURE, GOES_ON, VALUE, PSI, LOGIT = 2.0, 0.5, 0.75, 1.5, -0.25, 1.0
STD = 0.1 + 0.9 / (1 + np.exp(-2.0))


def certain(agent: QDACMB, *numbers: float) -> np.ndarray:
    """Returns logits of distributions that stand for these numbers and no others, one after the other."""
    return np.log(np.asarray(agent.bins.two_hot(jnp.array(numbers))) + 1e-20).reshape(-1)


def known(agent: QDACMB) -> dict[str, Any]:
    """Returns parameters with which model, critics, policy and multiplier say the same of every state and skill."""
    params = agent.init(KEY).params
    model = params["model"]
    model["feature"] = always(model["feature"], certain(agent, FEATURE))
    model["outcome"] = always(model["outcome"], [*certain(agent, REWARD), np.log(GOES_ON / (1 - GOES_ON))])
    psi = (PSI,) * agent.skill_outputs
    outputs = [(VALUE, *psi)] if agent.config.shared_critics else [(VALUE,), psi]
    for name, numbers in zip(agent.critic_names, outputs, strict=True):
        params[name] = always(params[name], certain(agent, *numbers))
    params["actor"] = always(params["actor"], 0.0)
    if "multiplier" in params:
        params["multiplier"] = always(params["multiplier"], LOGIT)
    return params


def by_hand(
    asked: np.ndarray, *, is_sum: bool, death: str, feature_gamma: float, is_expected: bool
) -> dict[str, np.ndarray]:
    """Returns what the losses should see for skills in the task's units, [HORIZON, num]."""
    z = asked / 2 - 1
    psi_now = np.abs(FEATURE - z) if is_sum else np.full_like(z, FEATURE)
    farthest = np.where(z > 0, -1.0, 1.0) if death == "opposite" else np.zeros_like(z)
    psi_end = np.abs(farthest - z) if is_sum else farthest
    if death in ("apart", "lived"):
        psi_end = np.full_like(z, 2.0) if is_sum else z

    def averages(now: float, then: float, end: float, gamma: float = GAMMA) -> np.ndarray:
        return plain_returns([now] * HORIZON, [then] * HORIZON, [GOES_ON] * HORIZON, end, gamma)

    value = np.stack([averages(REWARD, VALUE, 0.0) for _ in z], 1) / (1 - GAMMA)
    gamma = GAMMA if is_sum else feature_gamma
    psi = np.stack([averages(now, PSI, end, gamma) for now, end in zip(psi_now, psi_end, strict=True)], 1)
    gone = averages(0.0, PSI, 2.0)[:, None] if death in ("apart", "lived") else 0.0
    share = averages(0.0, PSI, 1.0, gamma)[:, None] if death == "lived" else 0.0
    average = psi if is_sum else np.abs(psi - z) * (1 + share / np.maximum(1 - share, 0.1)) + gone
    distance = psi / (1 - GAMMA) if is_sum else average
    if is_expected:  # What the critic says, and the way to or from the skill, and to or from death, along its slope.
        expected_gone = PSI if death == "apart" else 0.0
        average = np.broadcast_to(np.abs(PSI - z) + expected_gone, psi.shape)
        distance = average + np.sign(PSI - z) * (psi - PSI) + gone - expected_gone
    skill_distance = 2 * average  # the space is 4 long, its normalised form 2
    return {"value": value, "distance": distance, "skill_distance": skill_distance}


@pytest.mark.parametrize(
    "fields, death, spread",
    [
        ({}, "centre", 0.5), ({}, "opposite", 4.0), ({"multiplier": 0.5, "feature_scale": 5.0}, "centre", 4.0),
        ({"feature_discount": 0.5}, "apart", 1.0), ({"skill_critic": "distance"}, "opposite", 4.0),
        ({"skill_critic": "distance"}, "apart", 1.0), ({"compare": "expected"}, "centre", 4.0),
        ({"compare": "expected", "feature_discount": 0.5, "shared_critics": True}, "apart", 4.0),
        ({"skill_critic": "distance", "multiplier": 0.66, "shared_critics": True}, "centre", 0.5),
        ({"feature_discount": 0.5}, "lived", 1.0),
    ],
)  # fmt: skip
def test_losses_by_hand(fields, death, spread):
    """QDAC-MB and its three ablations, where all that is imagined is known."""
    agent = make_agent(death=death, huber_scale=1e-6, **fields)
    params = known(agent)
    asked = np.asarray(agent.task.skill_space.sample(jax.random.split(KEY, 4)[2], 8))[:, 0]
    target = {name: params[name] for name in agent.critic_names} | {"spread": spread}
    total, metrics = agent.losses(params, target, jnp.zeros((), jnp.int32), make_steps(agent), KEY)
    gamma = fields.get("feature_discount", GAMMA)
    numbers = by_hand(
        asked, is_sum="skill_critic" in fields, death=death, feature_gamma=gamma, is_expected="compare" in fields
    )

    weight = ((GAMMA * GOES_ON) ** np.arange(HORIZON))[:, None]
    multiplier = fields.get("multiplier", 1 / (1 + np.exp(-LOGIT)))
    entropy = np.log(STD) + 0.5 * np.log(2 * np.pi * np.e)
    scale = 1.0 if "skill_critic" in fields else max(1.0, spread)  # A sum of distances is as large as V itself.
    objective = (1 - multiplier) * numbers["value"] / scale - multiplier * numbers["distance"] + 0.1 * entropy
    close(metrics["loss/actor"], -(weight * objective).mean(), rtol=1e-4)
    close(metrics["train/value"], numbers["value"].mean(), rtol=1e-4)
    if "skill_critic" not in fields:
        close(metrics["train/spread"], np.diff(np.percentile(numbers["value"], [5, 95]))[0], rtol=1e-4)
    close(metrics["train/expected_distance"], numbers["skill_distance"].mean(), rtol=1e-4)
    is_violated = numbers["skill_distance"] > 0.25
    if "multiplier" in fields:
        assert metrics["loss/multiplier"] == 0
    else:
        label_loss = np.where(is_violated, np.log1p(np.exp(-LOGIT)), np.log1p(np.exp(LOGIT)))
        close(metrics["loss/multiplier"], (weight * label_loss).mean(), rtol=1e-4)
    close(metrics["train/satisfied"], 1 - is_violated.mean())
    parts = {name.removeprefix("model/"): value for name, value in metrics.items() if name.startswith("model/")}
    scales = {"dynamics": 0.5, "representation": 0.1, "feature": fields.get("feature_scale", 1.0)}
    model = sum(scales.get(name, 1.0) * value for name, value in parts.items())
    others = sum(metrics[f"loss/{name}"] for name in ("critic", "successor", "actor", "multiplier"))
    close(total, model + others, rtol=1e-4)


@pytest.mark.parametrize("shared", [False, True])
def test_critics_learn_the_lambda_returns_and_stay_near_the_slow_ones(shared):
    """Critics that lean to one side: their cross-entropies towards the returns, and towards what the slow ones say."""
    agent = make_agent(shared_critics=shared)
    params = known(agent)
    lean, slow_lean = np.linspace(-1, 1, 11), np.linspace(1, -2, 11)

    def leaning(logits):
        sizes = {name: params[name][-1]["bias"].size for name in agent.critic_names}
        return {name: always(params[name], np.resize(logits, size)) for name, size in sizes.items()}

    target = leaning(slow_lean) | {"spread": 1.0}
    _, metrics = agent.losses(params | leaning(lean), target, jnp.zeros((), jnp.int32), make_steps(agent), KEY)
    says = float(agent.bins.mean(jnp.array(lean)))
    returns = plain_returns([REWARD] * HORIZON, [says] * HORIZON, [GOES_ON] * HORIZON, 0.0)
    features = plain_returns([FEATURE] * HORIZON, [says] * HORIZON, [GOES_ON] * HORIZON, 0.0)
    weight = (GAMMA * GOES_ON) ** np.arange(HORIZON)
    log_odds = np.asarray(jax.nn.log_softmax(jnp.array(lean)))

    def cross_entropy(numbers):
        return -(np.asarray(agent.bins.two_hot(jnp.array(numbers))) * log_odds).sum(axis=-1)

    near_slow = cross_entropy(float(agent.bins.mean(jnp.array(slow_lean))))
    close(metrics["loss/critic"], (weight * (cross_entropy(returns) + near_slow)).mean(), rtol=1e-4)
    close(metrics["loss/successor"], (weight * (cross_entropy(features) + near_slow)).mean(), rtol=1e-4)


def test_the_spread_leaves_out_a_twentieth_at_either_end():
    close(spread(jnp.arange(101.0).at[100].set(1e6)), 90.0)


def test_the_spread_is_a_decayed_mean_over_updates():
    """Of a first update with returns 10 apart, and a second with 20."""
    agent = make_agent()
    agent.losses = lambda params, target, num_updates, steps, key: (
        optax.tree.norm(params), {"train/spread": 10.0 * (1 + num_updates)}
    )  # fmt: skip
    state = agent.init(KEY)
    for _ in range(2):
        state, _ = agent.update(state, make_steps(agent), KEY)
    close(state.target["spread"], 0.99 * (0.01 * 10) + 0.01 * 20)


def test_distances_have_a_gradient_where_they_are_0():
    agent = make_agent(skill_critic="distance")
    gradient = jax.grad(lambda feature: agent.summed(feature, jnp.array([0.5])).sum())(jnp.array([0.5]))
    assert np.isfinite(gradient).all()


def test_each_loss_teaches_its_own_network():
    """With networks of which no output is 0, so that no gradient is 0 by chance; the world model has six losses."""
    agent = make_agent(free_nats=0.0)
    state, steps = agent.init(KEY), make_steps(agent)
    leaves, structure = jax.tree.flatten(state.params)
    keys = jax.random.split(KEY, len(leaves))
    params = structure.unflatten([x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)])
    metrics = jax.jit(jax.jacobian(lambda params: agent.losses(params, state.target, 0, steps, KEY)[1]))(params)
    learners = {name: taught(gradients) for name, gradients in metrics.items()}
    for name in ("actor", "critic", "successor", "multiplier"):
        assert learners.pop(f"loss/{name}") == {name}
    assert [learners.pop(name) for name in sorted(learners) if name.startswith("model/")] == [{"model"}] * 6


def test_an_actor_answers_for_what_its_actions_do_and_not_for_where_it_acts():
    agent = make_agent()
    params, num = agent.init(KEY).params, 5
    actor = jax.tree.map(lambda x: x + 0.3, params["actor"])
    skill = jnp.linspace(-1.0, 1.0, num)[:, None]

    def imagined(memory):
        start = agent.model.initial(num)._replace(memory=memory)
        return agent.imagine(params["model"], actor, start, skill, KEY)

    memory = jax.random.normal(KEY, (num, agent.config.memory_size))
    assert not np.allclose(imagined(memory).action[0], imagined(-memory).action[0], atol=1e-3)
    assert not np.any(jax.jacobian(lambda memory: imagined(memory).action.sum())(memory))
    assert np.any(jax.jacobian(lambda memory: imagined(memory).vector[-1].sum())(memory))


def test_actions_have_a_gradient_through_the_model():
    """The feature that is foretold depends on the state alone: only through the dynamics can an actor change it.

    Where rollouts and what the critic expects of them are on one side of all skills, both have the same gradient.
    """
    gradients = []
    for compare in ("imagined", "expected"):
        agent = make_agent(multiplier=1.0, entropy_scale=0.0, compare=compare)
        params = known(agent)
        head = params["model"]["feature"]
        head[-1]["kernel"] = 0.1 * jax.random.normal(KEY, head[-1]["kernel"].shape)
        params["successor"] = always(params["successor"], certain(agent, -9.0))
        target = {name: params[name] for name in agent.critic_names} | {"spread": 1.0}

        def loss(params, agent=agent, target=target):
            return agent.losses(params, target, 0, make_steps(agent), KEY)[1]["loss/actor"]

        gradients.append(jax.grad(loss)(params))
        assert taught(gradients[-1]) == {"actor"}
    assert_trees_close(*gradients, rtol=1e-3, atol=1e-7)


def test_observations_are_scaled_by_the_moments_of_what_was_seen():
    """Twice the observations, with moments of twice the observations, are the same: to the actor and to the model."""
    agent = make_agent(normalize_observations=True)
    start, steps, skill = agent.init(KEY), make_steps(agent), jnp.array([[1.0], [3.0]])
    seen = jax.random.normal(KEY, (500, 2)) * jnp.array([3.0, 5.0]) + 2.0
    found = []
    for factor in (1.0, 2.0):
        state = agent.observe(start, factor * seen)
        params = agent.policy_params(state)
        _, action = agent.step(params, agent.initial_carry(2), factor * steps.obs[:, 0], skill)
        _, metrics = jax.jit(agent.update)(state, steps._replace(obs=factor * steps.obs), KEY)
        found.append((action, metrics["model/observation"]))
    for one, other in zip(*found, strict=True):
        close(one, other, rtol=1e-3)
    assert "moments" not in make_agent().policy_params(start)


def test_rollouts_begin_in_some_of_the_states():
    agent, every = make_agent(num_starts=3), make_agent()
    assert (agent.num_rows, every.num_rows) == (3 * HORIZON, 8 * HORIZON)
    imagined = []
    agent.imagine = lambda model, actor, start, *rest: imagined.append(start) or type(agent).imagine(
        agent, model, actor, start, *rest
    )
    params = known(agent)
    target = {name: params[name] for name in agent.critic_names} | {"spread": 1.0}
    agent.losses(params, target, jnp.zeros((), jnp.int32), make_steps(agent), KEY)
    latent, _ = agent.model.follow(params["model"], make_steps(agent), jax.random.split(KEY, 4)[0])
    states = np.asarray(latent.vector).reshape(8, -1)
    places = [np.flatnonzero((np.abs(states - row) < 1e-5).all(axis=1)) for row in np.asarray(imagined[0].vector)]
    assert len(places) == 3 and len({tuple(place) for place in places}) == 3 and all(len(place) for place in places)
    with pytest.raises(UserError, match="num_starts should be from 0 to the 8 states of a batch, got 9"):
        make_agent(num_starts=9)


def test_an_average_of_the_actor_may_act():
    agent = make_agent(actor_average_rate=0.25)
    start = agent.init(KEY)
    state, _ = jax.jit(agent.update)(start, make_steps(agent), KEY)
    acting, before, trained = (
        each["actor"][0]["kernel"] for each in (agent.policy_params(state), start.params, state.params)
    )
    close(acting, 0.75 * before + 0.25 * trained)
    assert not np.allclose(before, trained)


def test_acting_follows_the_episode_as_training_does():
    agent = make_agent()
    params = agent.policy_params(agent.init(KEY))
    agent.model.noise = lambda key, *shape: None
    steps, skill = make_steps(agent), jnp.array([[1.0], [3.0]])
    memory, actions = agent.initial_carry(2), []
    for t in range(4):
        memory, action = agent.step(params, memory, steps.obs[:, t], skill)
        actions.append(action)
    steps = steps._replace(action=jnp.stack(actions, axis=1))
    latent, _ = agent.model.follow(params["model"], steps._replace(obs=symlog(steps.obs)), KEY)
    close(memory.memory.vector, latent.vector[:, -1], atol=1e-5)
    mean, std = agent.action_distribution(params["actor"], latent.vector[:, -1], agent.normalize(skill))
    close(actions[-1], mean, atol=1e-5)
    _, explored = agent.explore(params, agent.initial_carry(2), steps.obs[:, 0], skill, jnp.array([[100.0], [0.0]]))
    close(explored, jnp.stack([jnp.ones(1), actions[0][1]]), atol=1e-5)
    assert ((0.1 < std) & (std < 1.0)).all()


def test_an_action_that_lasts_is_one_step_of_the_model():
    """What is seen while it goes on changes neither the action nor the latent state."""
    agent, lasting = make_agent(), make_agent(action_repeat=3, warmup_steps=24)
    params, obs = agent.policy_params(agent.init(KEY)), make_steps(agent).obs
    sizes = [one.init(KEY).params["model"]["feature"][0]["kernel"].shape[0] for one in (agent, lasting)]
    assert sizes[1] - sizes[0] == 1  # Its feature is one of the action too.
    skill = jnp.array([[1.0], [3.0]])
    memory, held = agent.initial_carry(2), lasting.initial_carry(2)
    for t in range(2):
        memory, action = agent.step(params, memory, obs[:, t], skill)
        for seen in (obs[:, t], jnp.full_like(obs[:, t], 7.0), jnp.zeros_like(obs[:, t])):
            held, holding = lasting.step(params, held, seen, skill)
            close(holding, action)
            close(held.memory.vector, memory.memory.vector)


def test_collecting_remembers_what_was_done():
    """Over the end of an episode: the memory is that of the stored steps, noise in the actions and all."""
    config = make_agent(num_envs=4, batch_size=4, steps_per_iteration=8, warmup_steps=32, uniform_warmup=False).config
    agent = QDACMB(config, dial_task(episode_length=5))
    agent.model.noise = lambda key, *shape: None
    trunk = Trunk(agent, agent.task, jax.devices()[:1])
    state, _, _ = trunk.iterate(trunk.init(KEY))
    steps = sample_sequences(state.replay, KEY, num=4, length=8)
    np.testing.assert_array_equal(steps.is_first, [[1, 0, 0, 0, 0, 1, 0, 0]] * 4)
    params = state.agent.params["model"]
    latent, _ = agent.model.follow(params, steps._replace(obs=symlog(steps.obs)), KEY)
    held = state.episodes.memory
    close(held.memory.vector, latent.vector[:, -1], atol=1e-5)
    close(held.action, steps.action[:, -1])
    assert np.std(steps.action) > 0.1


@needs_two_devices
def test_two_devices_do_what_one_does():
    """Latent states, their sequences and what is learned from them are those of one device."""
    agent = make_agent(steps_per_iteration=4, updates_per_iteration=2)
    found = []
    for devices in (jax.devices()[:1], jax.devices()[:2]):
        trunk = Trunk(agent, agent.task, devices)
        state = trunk.init(KEY)
        for _ in range(3):
            state, _, _ = trunk.iterate(state)
        assert len(state.episodes.memory.memory.memory.sharding.device_set) == len(devices)
        found.append(jax.device_get((state.agent, state.replay.storage, state.episodes)))
    assert state.agent.num_updates == 4
    assert_trees_close(*found, rtol=1e-3, atol=2e-5)


@pytest.mark.slow
def test_a_hundred_thousand_updates_stay_finite_and_leak_nothing():
    """On a line where some episodes fall off an end and others reach the time limit."""
    config = dataclasses.replace(get_preset("qdac_mb", "debug").config, updates_per_iteration=200)
    task = line(episode_length=100)
    trunk = Trunk(QDACMB(config, task), task)
    state, process = trunk.init(KEY), psutil.Process()
    while (num_updates := int(state.agent.num_updates)) < 100_000:
        state, metrics, _ = trunk.iterate(state)
        assert all(np.isfinite(value) for value in metrics.values()), (num_updates, metrics)
        if num_updates <= 10_000:
            resident = process.memory_info().rss
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.agent))
    assert process.memory_info().rss < resident + 50e6


def test_the_paper_preset_is_the_papers_table_or_its_codes():
    config = get_preset("qdac_mb", "paper").config
    assert config.batch_size * config.sequence_length == 1024 and config.horizon == 15
    assert (config.num_envs, config.discount, config.return_mix) == (16, 0.997, 0.95)
    assert config.num_envs * config.steps_per_iteration / config.updates_per_iteration == 32
    assert (config.head_sizes, config.multiplier_sizes, config.replay_size) == ((512, 512), (8,), 1_000_000)
    assert (config.memory_size, config.latents, config.classes, config.model_width) == (512, 32, 32, 512)
    assert (config.encoder_sizes, config.num_bins, config.unimix, config.free_nats) == ((1024,) * 5, 255, 0.01, 1.0)
    assert (config.dynamics_scale, config.representation_scale, config.num_starts) == (0.5, 0.1, 0)
    assert (config.model_learning_rate, config.learning_rate, config.entropy_scale) == (1e-4, 3e-5, 3e-4)
    assert (config.multiplier_learning_rate, config.target_rate, config.max_gradient_norm) == (3e-5, 0.02, 100.0)


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"horizon": 0}, "horizon should be positive, got 0"),
        ({"return_mix": 1.5}, "return_mix should be in [0, 1], got 1.5"),
        ({"classes": 1}, "classes should be at least 2, got 1"),
        ({"skill_steps": 100}, "skill_steps should be 0, got 100"),
        ({"multiplier_sizes": (0,)}, "multiplier_sizes should be positive widths, got (0,)"),
        ({"encoder_sizes": ()}, "encoder_sizes should be positive widths, got ()"),
        ({"sequence_length": 1}, "sequence_length should be at least 2, for one step to follow, got 1"),
        ({"bin_limit": 100.0}, "bin_limit should be above 0 and at most 80, or bins overflow, got 100.0"),
        ({"multiplier": 2.0}, "multiplier should be in [0, 1]"),
        ({"sequence_length": 64, "warmup_steps": 0}, "warmup_steps should be at least 248, to fill a window of 64"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(fields, line):
    with pytest.raises(UserError) as refused:
        dataclasses.replace(make_agent().config, **fields)
    assert line in str(refused.value)
