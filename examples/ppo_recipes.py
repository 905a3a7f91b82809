"""Train PPO with settings that suit a kind of environment.

Run:  python examples/ppo_recipes.py Pendulum-v1
      pip install "gymnasium[box2d]" && python examples/ppo_recipes.py LunarLander-v3
      pip install "gymnasium[mujoco]" && python examples/ppo_recipes.py HalfCheetah-v5
      pip install "gymnasium[atari]" && python examples/ppo_recipes.py ALE/Pong-v5
"""

import argparse
import importlib

import gymnasium
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from esper.simic import PPO, NetworkConfig, evaluate, linear

CONTROL = {
    "network": NetworkConfig(normalize_observations=True),
    "normalize_rewards": True,
    "n_envs": 8,
}
ATARI = {
    "n_envs": 8,
    "n_steps": 128,
    "batch_size": 256,
    "n_epochs": 4,
    "learning_rate": linear(2.5e-4),
    "clip_range": linear(0.1),
    "ent_coef": 0.01,
}
RECIPES = {
    "CartPole-v1": (25_000, {"n_envs": 8}),
    "Pendulum-v1": (
        100_000,
        {"n_envs": 4, "n_steps": 1024, "gamma": 0.9, "learning_rate": 1e-3},
    ),
    "LunarLander-v3": (
        1_000_000,
        {
            "n_envs": 16,
            "n_steps": 1024,
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "n_epochs": 4,
            "ent_coef": 0.01,
        },
    ),
    "HalfCheetah-v5": (1_000_000, CONTROL),
    "ALE/Pong-v5": (10_000_000, ATARI),
}
"""Environment steps and settings."""


def make_atari(env_id):
    """Return a game as agents see it: grey, 84x84, every fourth frame, the last four of them."""
    importlib.import_module("ale_py")  # registers the games
    env = gymnasium.make(env_id, frameskip=1)
    env = AtariPreprocessing(env, terminal_on_life_loss=True)
    return FrameStackObservation(env, 4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env", nargs="?", default="Pendulum-v1", choices=RECIPES)
    parser.add_argument("--steps", type=int, help="environment steps; by default the recipe's")
    parser.add_argument("--episodes", type=int, default=50, help="episodes of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    steps, settings = RECIPES[options.env]
    env = options.env
    if env.startswith("ALE/"):
        env = lambda: make_atari(options.env)  # noqa: E731
    model = PPO(env, seed=options.seed, **settings)
    model.learn(options.steps or steps)
    print(evaluate(model, n_episodes=options.episodes))
