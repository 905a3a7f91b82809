"""The task ``digits``: which of ten handwritten digits an 8x8 image shows."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from esper.config.checks import require_choice
from esper.config.growth import Budget, CNNHostConfig, HostConfig, MLPHostConfig, PopulationConfig
from esper.growth.hosts import HostMaker
from esper.tasks.data import Samples, TaskData, stratified_split
from esper.tasks.task import Task

LEVELS = 16
"""The value of a pixel that is all ink; 0 is paper."""


def load_digits() -> tuple[Tensor, Tensor]:
    """Return the images ``[1797, 1, 8, 8]``, float32 in [0, 1], and the labels ``[1797]``, int64.

    The order is scikit-learn's, which is not random; shuffle before splitting.
    """
    with (
        files("esper.tasks").joinpath("data", "digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        images = torch.from_numpy(arrays["images"]).to(torch.float32).div_(LEVELS)
        labels = torch.from_numpy(arrays["labels"]).to(torch.int64)
    return images.unsqueeze(1), labels


def budget(n_epochs: int | None, default: int) -> Budget:
    """Return a budget of so many epochs, or of the task's own number."""
    return Budget(n_epochs=default if n_epochs is None else n_epochs)


def training(
    *, batch_size: int, learning_rate: float, batches_per_epoch: int | None
) -> PopulationConfig:
    """Return how the hosts of a built-in task are trained."""
    return PopulationConfig(
        batch_size=batch_size, learning_rate=learning_rate, batches_per_epoch=batches_per_epoch
    )


SUMMARY = "8x8 handwritten digits, 1,000 to learn from; ships with the package"
N_TRAIN, N_VALIDATION, N_TEST = 1000, 500, 297
HOSTS: dict[str, HostConfig] = {
    "mlp": MLPHostConfig(n_features=64, n_classes=10, width=16, hidden=8, n_blocks=2),
    "cnn": CNNHostConfig(image_size=8, n_channels=1, n_classes=10, width=8, hidden=8, n_blocks=2),
}
LEARNING_RATES = {"mlp": 3e-3, "cnn": 1e-2}


@lru_cache(maxsize=1)
def digit_splits() -> tuple[Tensor, Tensor, Tensor]:
    """Return which samples learn, validate and test: the same for every task on digits."""
    _, labels = load_digits()
    sizes = (N_TRAIN, N_VALIDATION, N_TEST)
    train, validation, test = stratified_split(labels.numpy(), sizes, seed=0)
    return torch.from_numpy(train), torch.from_numpy(validation), torch.from_numpy(test)


@lru_cache(maxsize=1)
def standard_digits() -> tuple[Tensor, Tensor, float]:
    """Return images ``[1797, 64]`` standardised, labels ``[1797]``, and the unit of the images.

    All pixels share one mean and deviation, those of the training samples. The unit is what a
    difference of 1 in the images is in shades of [0, 1].
    """
    images, labels = load_digits()
    pixels = images.flatten(1)
    learned = pixels[digit_splits()[0]]
    unit = float(learned.std())
    return (pixels - learned.mean()) / unit, labels, unit


def make_digits(
    *, host: str = "mlp", n_epochs: int | None = None, batches_per_epoch: int | None = None
) -> Task:
    """Return the task ``digits``; ``host`` is ``"mlp"`` or ``"cnn"``."""
    require_choice("host", host, HOSTS)
    pixels, labels, _ = standard_digits()
    images = pixels if host == "mlp" else pixels.view(-1, 1, 8, 8)
    train, validation, test = (Samples(images[rows], labels[rows]) for rows in digit_splits())
    return Task(
        name="digits",
        make_host=HostMaker(HOSTS[host]),
        data=TaskData(train=train, validation=validation, test=test),
        n_classes=10,
        budget=budget(n_epochs, default=16),
        training=training(
            batch_size=32, learning_rate=LEARNING_RATES[host], batches_per_epoch=batches_per_epoch
        ),
        summary=SUMMARY,
    )
