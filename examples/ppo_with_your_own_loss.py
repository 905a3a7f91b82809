"""Change what PPO minimises: a penalty on the divergence, and weight decay by another optimizer.

Run:  python examples/ppo_with_your_own_loss.py
"""

import argparse

import torch

from esper.simic import PPO, evaluate


def loss(agent, batch):
    """Add a penalty on the divergence from the policy that collected the steps."""
    loss, terms = agent.loss(batch)  # clipped surrogate, value loss, entropy
    divergence = (batch.log_ratio.exp() - 1.0 - batch.log_ratio).sum() / batch.n_free
    return loss + 0.5 * divergence, {**terms, "divergence": divergence}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps")
    options = parser.parse_args()

    model = PPO(
        "CartPole-v1",
        n_envs=8,
        seed=0,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, weight_decay=1e-3),
        learning_rate=1e-3,
    )
    model.learn(options.steps)
    print(f"divergence of the last update: {model.metrics['train/divergence']:.4f}")
    print(evaluate(model, n_episodes=100))
