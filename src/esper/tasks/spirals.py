"""The task ``spirals``: decide which of two or three spirals a point lies on."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from esper.config.catalogue import TASKS
from esper.config.growth import Budget, MLPHostConfig, PopulationConfig
from esper.growth.hosts import HostMaker
from esper.tasks.data import Samples, TaskData, TaskDraw
from esper.tasks.task import Task

N_TRAIN, N_VALIDATION, N_TEST = 120, 60, 60
HOST = MLPHostConfig(n_features=2, n_classes=3, width=8, hidden=8, n_blocks=2)
TURNS = (0.5, 1.25)
NOISE = (0.0, 0.1)


def make_spirals(*, n_epochs: int = 16, batches_per_epoch: int | None = 4) -> Task:
    """Return the task ``spirals``."""
    return Task(
        name="spirals",
        make_host=HostMaker(HOST),
        draw=draw_spirals,
        budget=Budget(n_epochs=n_epochs),
        training=PopulationConfig(
            batch_size=32, learning_rate=1e-2, batches_per_epoch=batches_per_epoch
        ),
        summary=TASKS["spirals"],
    )


def draw_spirals(seed: int) -> TaskDraw:
    """Draw the number of spirals, their turns, their noise and their points from a seed."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, 4]))
    n_spirals = int(rng.integers(2, 4))
    turns, noise = rng.uniform(*TURNS), rng.uniform(*NOISE)
    sizes = (N_TRAIN, N_VALIDATION, N_TEST)
    data = TaskData.of(
        _samples(rng, np.arange(size) % n_spirals, turns=turns, noise=noise) for size in sizes
    )
    return TaskDraw(
        data=data,
        n_classes=n_spirals,
        facts={"n_classes": n_spirals, "turns": turns, "noise": noise},
        title=f"{n_spirals} spirals of {turns:.2f} turns, noise {noise:.3f}",
    )


def _samples(
    rng: np.random.Generator, spirals: NDArray[np.int64], *, turns: float, noise: float
) -> Samples:
    """Draw one point on each of the given spirals, whose arms end at radius 2."""
    n_spirals = int(spirals.max()) + 1
    along = np.sqrt(rng.uniform(0.01, 1.0, size=len(spirals)))  # Uniform density over the disc.
    angles = 2 * np.pi * (turns * along + spirals / n_spirals)
    points = 2 * along[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points += noise * rng.standard_normal(points.shape)
    return Samples(torch.from_numpy(points.astype(np.float32)), torch.from_numpy(spirals))
