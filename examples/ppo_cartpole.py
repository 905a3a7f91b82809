"""Train PPO on CartPole: progress bar, TensorBoard, evaluation, the best model kept and reloaded.

Run:  python examples/ppo_cartpole.py
"""

import argparse

from esper.simic import PPO, Evaluate, Tracker, evaluate, linear

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps")
    parser.add_argument("--out", default="runs/cartpole", help="folder of the model and its curves")
    options = parser.parse_args()

    model = PPO("CartPole-v1", n_envs=8, seed=0, learning_rate=linear(1e-3))
    best = f"{options.out}/best"
    callbacks = [Evaluate(every=10_000, save_best=best), Tracker("tensorboard", options.out)]
    model.learn(options.steps, callbacks=callbacks, progress=True)
    print(evaluate(PPO.load(best), n_episodes=100))
