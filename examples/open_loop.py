"""What a world model foretells, beside what happens: python -m examples.open_loop RUN [PICTURE]

Executes uniform skills of a trained `qdac_mb` run, lets the model watch some steps, then tells it the actions only.
A step is an action, however many env steps that lasts.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import qdac
from qdac import rollout
from qdac.agents.qdac_mb import QDACMB
from qdac.agents.world_model import Latent
from qdac.evaluation import TrainedPolicy
from qdac.replay import Sequences

WATCHED, FORETOLD = 10, 15
BEGIN = 20
"""Steps of the episode before the first that the model sees."""
EPISODES = 64


def live(policy: TrainedPolicy, key: jax.Array) -> Sequences:
    """Returns steps of episodes with uniform skills, [num, WATCHED + FORETOLD, ...]: of those that lived so long."""
    task, agent = policy.task, policy.policy
    key_reset, key_skill = jax.random.split(key)
    skill = task.skill_space.sample(key_skill, EPISODES)

    def step(episode: tuple, _: None) -> tuple[tuple, tuple]:
        env, memory, num_steps = episode
        memory, action = agent.explore(policy.params, memory, env.obs, skill, jnp.zeros((EPISODES, task.action_size)))
        following, feature, reward, lived = rollout.act(task, env, action, num_steps, agent.config.action_repeat)
        seen = env.obs, action, reward, feature / lived[:, None], following.done
        return (following, memory, num_steps + lived), seen

    @jax.jit
    def episodes(key: jax.Array) -> tuple:
        start = jax.vmap(task.reset)(jax.random.split(key, EPISODES))
        episode = start, agent.initial_carry(EPISODES), jnp.zeros(EPISODES, jnp.int32)
        return jax.lax.scan(step, episode, length=BEGIN + WATCHED + FORETOLD)[1]

    steps = episodes(key_reset)
    obs, action, reward, feature, done = (jnp.moveaxis(x[BEGIN:], 0, 1) for x in steps)
    alive = steps[-1].sum(axis=0) == 0
    is_first = jnp.zeros(reward.shape).at[:, 0].set(1.0)
    return jax.tree.map(lambda x: x[alive], Sequences(obs, action, reward, feature, done, is_first))


def foretell(agent: QDACMB, model: dict, steps: Sequences) -> tuple[jax.Array, jax.Array]:
    """Returns observations as the model has them, and features, for the steps after those watched."""
    watched = jax.tree.map(lambda x: x[:, :WATCHED], steps)
    latents, _ = agent.model.follow(model, watched, jax.random.PRNGKey(0))
    latent = Latent(latents.memory[:, -1], latents.sample[:, -1])

    def step(latent: Latent, actions: tuple[jax.Array, jax.Array]) -> tuple[Latent, tuple[jax.Array, jax.Array]]:
        before, action = actions
        memory = agent.model.remember(model, latent, before)
        latent = agent.model.latent(memory, agent.model.prior(model, memory))
        feature = agent.bins.mean(agent.model.feature(model, latent.vector, action))
        return latent, (agent.model.decode(model, latent.vector), feature)

    actions = jnp.moveaxis(steps.action, 1, 0)
    told = jax.lax.scan(step, latent, (actions[WATCHED - 1 : -1], actions[WATCHED:]))[1]
    return tuple(jnp.moveaxis(x, 0, 1) for x in told)


def main(run: str, picture: str = "open_loop.png") -> None:
    try:
        policy = qdac.load(run)
    except qdac.UserError as error:
        sys.exit(str(error))
    agent = policy.policy
    if not isinstance(agent, QDACMB):
        sys.exit(f"expected a run of qdac_mb, which has a world model, got one of {policy.origin['algo']}")
    steps = live(policy, jax.random.PRNGKey(0))
    if not len(steps.obs):
        sys.exit(f"expected episodes of {BEGIN + WATCHED + FORETOLD} steps, got none that long; train for longer")
    steps = steps._replace(
        obs=agent.scale_obs(policy.params.get("moments"), steps.obs), feature=agent.normalize(steps.feature)
    )
    obs, feature = jax.jit(lambda model, steps: foretell(agent, model, steps))(policy.params["model"], steps)
    truth, true_feature = steps.obs[:, WATCHED:], steps.feature[:, WATCHED:]
    spread = steps.obs.std(axis=(0, 1)) + 1e-3
    error = np.asarray((jnp.abs(obs - truth) / spread).mean(axis=(0, 2)))
    held = np.asarray((jnp.abs(steps.obs[:, WATCHED - 1 : WATCHED] - truth) / spread).mean(axis=(0, 2)))
    unexplained = jnp.square(feature - true_feature).mean() / (true_feature.var(axis=(0, 1)).mean() + 1e-6)
    bias = (feature - true_feature).mean(axis=(0, 1))
    print(f"{len(truth)} episodes; error in deviations of each observation, {FORETOLD} steps on average: "
          f"{error.mean():.2f} (that nothing changes: {held.mean():.2f}); of features, {1.0 - unexplained:.2f} of the "
          f"variance is foretold, with a bias of {np.round(np.asarray(bias), 2)}")

    shown = np.argsort(-np.asarray(steps.obs.std(axis=1).mean(axis=0)))[:5]
    time = np.arange(1 - WATCHED, FORETOLD + 1)
    figure, axes = plt.subplots(2, 3, figsize=(10, 5), sharex=True, constrained_layout=True)
    for axis, i in zip(axes.flat, shown, strict=False):
        axis.plot(time, steps.obs[0, :, i], color="black", label="truth")
        axis.plot(time[WATCHED:], obs[0, :, i], color="#d55e00", linestyle="--", label="foretold")
        axis.axvline(0, color="grey", linewidth=0.5)
        axis.set_title(f"observation {i}", fontsize=9)
    axes.flat[0].legend(fontsize=8)
    axes.flat[5].plot(time[WATCHED:], error, color="#d55e00", label="foretold")
    axes.flat[5].plot(time[WATCHED:], held, color="grey", linestyle=":", label="nothing changes")
    axes.flat[5].set_title("mean error, in deviations", fontsize=9)
    axes.flat[5].legend(fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("steps since the last one watched")
    Path(picture).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)
    print(picture)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("expected a run and, if you like, a picture: python -m examples.open_loop RUN open_loop.png")
    main(*sys.argv[1:])
