"""The task ``cifar10``: which of ten kinds of thing a small colour photograph shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.config.growth import CNNHostConfig
from esper.errors import BadDataError, MissingDataError
from esper.growth.hosts import HostMaker
from esper.tasks.digits import budget, training
from esper.tasks.images import (
    N_CLASSES,
    VARIABLE,
    LabelledImages,
    data_places,
    find_files,
    split_images,
)
from esper.tasks.plain_pickle import RefusedPickleError, read_plain_pickle
from esper.tasks.task import Task

SHAPE = (3, 32, 32)
N_PIXELS = 3 * 32 * 32


def read_cifar_binary(path: Path) -> LabelledImages:
    """Return the images of a file of records, each a byte for the class and 3,072 for the pixels.

    Raises:
        MissingDataError: If the file cannot be read.
        BadDataError: If it does not consist of whole records.
    """
    content = np.frombuffer(_read(path), np.uint8)
    if len(content) == 0 or len(content) % (1 + N_PIXELS):
        raise BadDataError(
            f"{path} has {len(content)} bytes; it must be whole records of {1 + N_PIXELS}. Get it "
            "again."
        )
    records = content.reshape(-1, 1 + N_PIXELS)
    return LabelledImages(records[:, 1:].reshape(-1, *SHAPE), records[:, 0], path)


def read_cifar_pickled(path: Path) -> LabelledImages:
    """Return the images of a file in the form for Python, without unpickling it.

    Raises:
        MissingDataError: If the file cannot be read.
        BadDataError: If it is anything but a dictionary with an array ``data`` and ``labels``.
    """
    try:
        values = read_plain_pickle(_read(path))
    except RefusedPickleError as error:
        raise BadDataError(
            f"{path} is no file of CIFAR-10: {error}. Nothing of it was run; get it again."
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
        raise BadDataError(f"{path} has no {name!r}; a file of CIFAR-10 has 'data' and 'labels'.")
    try:
        return np.asarray(values[name], dtype=np.uint8)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadDataError(f"{path}: its {name!r} are no bytes ({error}); get it again.") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingDataError(f"{path} cannot be read ({error.strerror}).") from error


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
