"""What a controller that was trained against a schedule expects growth to gain.

The values of its policy are relative to that schedule, which a user does not have. After training,
they are replaced by gains over the same host with no growth.

Shapes: T = steps, N = hosts, M = LSTM size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from esper.arrays import Flags, Floats, Integers
from esper.config.run import RunConfig
from esper.environment import GrowthVectorEnv, run_episodes
from esper.environment.episodes import StepResult
from esper.tamiyo import LearnedController
from esper.tasks import Task
from esper.training.setup import make_policy, stream_seed

N_HOSTS = 128
RIDGE = 1e-3
"""Weight of the penalty on squared weights, per step."""


def learn_gains(config: RunConfig, task: Task, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a policy that acts the same and whose values are gains, in score.

    The value is a linear function of the policy's memory, so it is fitted by least squares to what
    hosts of training gain from each step on.
    """
    rewards = replace(config.rewards, reward="paired")
    envs = GrowthVectorEnv(task, N_HOSTS, reward=rewards, purpose="training", autoreset=False)
    policy = make_policy(config, envs.slot_config)
    policy.load_state_dict(weights)
    controller = LearnedController(policy)
    memories: list[Floats] = []
    terms: list[Floats] = []
    running: list[Flags] = []

    def note(_: Integers, result: StepResult) -> None:
        memories.append(controller.state[:, : policy.lstm_size].numpy().astype(np.float64))
        terms.append(np.where(result.was_running, result.terms.total, 0.0))
        running.append(result.was_running)

    run_episodes(envs, controller, seed=stream_seed(config.seed, "expectations"), on_step=note)
    was_running = np.array(running)
    gains = np.array(terms)[::-1].cumsum(0)[::-1]
    slopes, intercept = fit_line(np.array(memories)[was_running], gains[was_running])
    with torch.no_grad():
        policy.outputs.weight[-1] = torch.from_numpy(slopes)
        policy.outputs.bias[-1] = intercept
    return policy.state_dict()


def fit_line(inputs: Floats, targets: Floats) -> tuple[Floats, float]:
    """Return slopes ``[M]`` and intercept of the ridge regression on inputs ``[N, M]``."""
    mean, centred = inputs.mean(0), inputs - inputs.mean(0)
    matrix = centred.T @ centred + RIDGE * len(inputs) * np.eye(inputs.shape[1])
    slopes = cast(Floats, np.linalg.solve(matrix, centred.T @ (targets - targets.mean())))
    return slopes, float(targets.mean() - mean @ slopes)
