"""The task ``digits``: classify 8x8 images of handwritten digits."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from esper.config.catalogue import TASKS
from esper.config.checks import require_choice
from esper.config.growth import Budget, CNNHostConfig, HostConfig, MLPHostConfig, PopulationConfig
from esper.growth.hosts import HostMaker
from esper.tasks.data import Samples, TaskData, stratified_split
from esper.tasks.task import Task

LEVELS = 16
"""The value of a black pixel; 0 is white."""


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


N_TRAIN, N_VALIDATION, N_TEST = 1000, 500, 297
HOSTS: dict[str, HostConfig] = {
    "mlp": MLPHostConfig(n_features=64, n_classes=10, width=16, hidden=8, n_blocks=2),
    "cnn": CNNHostConfig(image_size=8, n_channels=1, n_classes=10, width=8, hidden=8, n_blocks=2),
}
LEARNING_RATES = {"mlp": 3e-3, "cnn": 1e-2}


@lru_cache(maxsize=1)
def digit_splits() -> tuple[Tensor, Tensor, Tensor]:
    """Return the indices of the train, validation and test samples, shared by all digit tasks."""
    _, labels = load_digits()
    sizes = (N_TRAIN, N_VALIDATION, N_TEST)
    train, validation, test = stratified_split(labels.numpy(), sizes, seed=0)
    return torch.from_numpy(train), torch.from_numpy(validation), torch.from_numpy(test)


def split_digits() -> tuple[tuple[Tensor, Tensor], ...]:
    """Return the training, validation and test digits, each as images and labels.

    They are 1,000, 500 and 297 images ``[N, 1, 8, 8]`` with labels ``[N]``, in a fixed order, and
    every set has the ten digits in the same proportion.

    .. code-block:: python

        train, val, test = split_digits()
        grown = esper.grow(model, train, val)
    """
    images, labels = load_digits()
    return tuple((images[rows], labels[rows]) for rows in digit_splits())


@lru_cache(maxsize=1)
def standard_digits() -> tuple[Tensor, Tensor, float]:
    """Return standardized images ``[1797, 64]``, labels ``[1797]``, and the images' deviation.

    All pixels share one mean and one standard deviation, those of the training samples.
    """
    images, labels = load_digits()
    pixels = images.flatten(1)
    train = pixels[digit_splits()[0]]
    deviation = float(train.std())
    return (pixels - train.mean()) / deviation, labels, deviation


def make_digits(
    *, host: str = "mlp", n_epochs: int = 16, batches_per_epoch: int | None = None
) -> Task:
    """Return the task ``digits``; ``host`` is ``"mlp"`` or ``"cnn"``."""
    require_choice("host", host, HOSTS)
    pixels, labels, _ = standard_digits()
    images = pixels if host == "mlp" else pixels.view(-1, 1, 8, 8)
    return Task(
        name="digits",
        make_host=HostMaker(HOSTS[host]),
        data=TaskData.of(Samples(images[rows], labels[rows]) for rows in digit_splits()),
        n_classes=10,
        budget=Budget(n_epochs=n_epochs),
        training=PopulationConfig(
            batch_size=32, learning_rate=LEARNING_RATES[host], batches_per_epoch=batches_per_epoch
        ),
        summary=TASKS["digits"],
    )
