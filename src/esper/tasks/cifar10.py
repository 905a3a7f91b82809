"""The task ``cifar10``: classify small colour photographs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.config.catalogue import TASKS
from esper.config.growth import Budget, CNNHostConfig, PopulationConfig
from esper.errors import BadDataError, MissingDataError
from esper.growth.hosts import HostMaker
from esper.tasks.images import (
    N_CLASSES,
    VARIABLE,
    LabelledImages,
    data_folders,
    find_files,
    split_images,
)
from esper.tasks.plain_pickle import UnsafePickleError, read_plain_pickle
from esper.tasks.task import Task

SHAPE = (3, 32, 32)
N_PIXELS = 3 * 32 * 32


def read_cifar_binary(path: Path) -> LabelledImages:
    """Return the images of a binary file: records of one label byte and 3,072 pixel bytes.

    Raises:
        MissingDataError: If the file cannot be read.
        BadDataError: If the last record is incomplete.
    """
    content = np.frombuffer(_read(path), np.uint8)
    if len(content) == 0 or len(content) % (1 + N_PIXELS):
        raise BadDataError(
            f"{path} has {len(content)} bytes, which is not a multiple of {1 + N_PIXELS}; download "
            "it again."
        )
    records = content.reshape(-1, 1 + N_PIXELS)
    return LabelledImages(records[:, 1:].reshape(-1, *SHAPE), records[:, 0], path)


def read_cifar_pickled(path: Path) -> LabelledImages:
    """Return the images of a pickled file, without unpickling it.

    Raises:
        MissingDataError: If the file cannot be read.
        BadDataError: If it is anything but a dict with an array ``data`` and ``labels``.
    """
    try:
        values = read_plain_pickle(_read(path))
    except UnsafePickleError as error:
        raise BadDataError(
            f"{path} is not a CIFAR-10 file: {error}. No code in it was run; download it again."
        ) from error
    data, labels = (_bytes_of(name, values, path) for name in ("data", "labels"))
    if data.shape[1:] != (N_PIXELS,) or labels.ndim != 1:
        raise BadDataError(
            f"{path} has data of shape {list(data.shape)} and labels of shape "
            f"{list(labels.shape)}; they must be [n, {N_PIXELS}] and [n]."
        )
    return LabelledImages(data.reshape(-1, *SHAPE), labels, path)


def _bytes_of(name: str, values: dict[str, Any], path: Path) -> NDArray[np.uint8]:
    if name not in values:
        raise BadDataError(f"{path} has no {name!r}; a CIFAR-10 file has 'data' and 'labels'.")
    try:
        return np.asarray(values[name], dtype=np.uint8)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadDataError(
            f"{path}: {name!r} are not bytes ({error}); download it again."
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingDataError(f"{path} cannot be read ({error.strerror}).") from error


FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
ADVICE = (
    "Unpack cifar-10-python.tar.gz or cifar-10-binary.tar.gz and pass its folder, or the parent "
    f"folder, as data_dir (--data-dir); or place it as cifar10 in the folder named by {VARIABLE}."
)
ROLES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
HOST = CNNHostConfig(image_size=32, n_channels=3, width=16, hidden=16, n_blocks=2)


def make_cifar10(
    *,
    data_dir: str | Path | None = None,
    n_train: int = 10_000,
    n_validation: int = 2000,
    n_epochs: int = 16,
    batches_per_epoch: int | None = None,
) -> Task:
    """Return the task ``cifar10``.

    Args:
        data_dir: The folder of the unpacked Python or binary archive, or its parent; None for the
            default folders.
        n_train: Training samples, out of 50,000.
        n_validation: Validation samples, from the same 50,000.
        n_epochs: Epochs per episode.
        batches_per_epoch: Batches per epoch; None for one pass over the data.
    """
    training, test = read_cifar10(data_dir)
    return Task(
        name="cifar10",
        make_host=HostMaker(HOST),
        data=split_images(training, test, n_train=n_train, n_validation=n_validation),
        n_classes=N_CLASSES,
        budget=Budget(n_epochs=n_epochs),
        training=PopulationConfig(
            batch_size=64, learning_rate=1e-2, batches_per_epoch=batches_per_epoch
        ),
        summary=TASKS["cifar10"],
    )


def read_cifar10(data_dir: str | Path | None) -> tuple[LabelledImages, LabelledImages]:
    """Return the images for training and those for testing.

    Raises:
        MissingDataError: If a file was not found.
        BadDataError: If a file is invalid.
    """
    bases = data_folders("cifar10", data_dir)
    folders = [folder for base in bases for folder in (base, *(base / name for name in FOLDERS))]
    layouts = [{role: (role,) for role in ROLES}, {role: (f"{role}.bin",) for role in ROLES}]
    layout, paths = find_files("cifar10", folders, layouts, advice=ADVICE)
    read = (read_cifar_pickled, read_cifar_binary)[layout]
    batches = [read(paths[role]) for role in ROLES]
    training = LabelledImages(
        np.concatenate([batch.images for batch in batches[:-1]]),
        np.concatenate([batch.labels for batch in batches[:-1]]),
        paths[ROLES[0]].parent,
    )
    return training, batches[-1]
