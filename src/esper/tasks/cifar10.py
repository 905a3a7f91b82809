"""The task ``cifar10``: which of ten kinds of thing a small colour photograph shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from esper.config.hosts import CNNHostConfig
from esper.growth.hosts import HostMaker
from esper.tasks.cifar_files import read_cifar_binary, read_cifar_pickled
from esper.tasks.data_places import VARIABLE, data_places, find_files
from esper.tasks.image_sets import N_CLASSES, LabelledImages, split_images
from esper.tasks.options import budget, training
from esper.tasks.task import Task

SUMMARY = "colour photographs, 32x32; needs the folder of the standard archive"
FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
ADVICE = (
    "Unpack the archive cifar-10-python.tar.gz or cifar-10-binary.tar.gz and give data_dir "
    "(--data-dir) its folder or the one above it, or put it as cifar10 into the folder that "
    f"{VARIABLE} names."
)
ROLES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
HOST = CNNHostConfig(image_size=32, n_channels=3, width=16, hidden=16, n_blocks=2)


def make_cifar10(
    *,
    data_dir: str | Path | None = None,
    n_train: int = 10_000,
    n_validation: int = 2000,
    n_epochs: int | None = None,
    batches_per_epoch: int | None = None,
) -> Task:
    """Return the task ``cifar10``.

    Args:
        data_dir: The folder of the archive for Python or of the binary one, or the one above it;
            None looks in the usual places.
        n_train: Samples to learn from, of 50,000.
        n_validation: Samples to validate on, from the same 50,000.
        n_epochs: Epochs of an episode.
        batches_per_epoch: Batches of an epoch; None for one pass.
    """
    learning, testing = read_cifar10(data_dir)
    return Task(
        name="cifar10",
        make_host=HostMaker(HOST),
        data=split_images(learning, testing, n_train=n_train, n_validation=n_validation),
        n_classes=N_CLASSES,
        budget=budget(n_epochs, default=16),
        training=training(batch_size=64, learning_rate=1e-2, batches_per_epoch=batches_per_epoch),
        summary=SUMMARY,
    )


def read_cifar10(data_dir: str | Path | None) -> tuple[LabelledImages, LabelledImages]:
    """Return the images to learn from and those of the test.

    Raises:
        MissingDataError: If a file is not where it was looked for.
        BadDataError: If a file is not what it must be.
    """
    bases = data_places("cifar10", data_dir)
    places = [place for base in bases for place in (base, *(base / name for name in FOLDERS))]
    layouts = [{role: (role,) for role in ROLES}, {role: (f"{role}.bin",) for role in ROLES}]
    layout, paths = find_files("cifar10", places, layouts, advice=ADVICE)
    read = (read_cifar_pickled, read_cifar_binary)[layout]
    batches = [read(paths[role]) for role in ROLES]
    learning = LabelledImages(
        np.concatenate([batch.images for batch in batches[:-1]]),
        np.concatenate([batch.labels for batch in batches[:-1]]),
        paths[ROLES[0]].parent,
    )
    return learning, batches[-1]
