"""The task ``fashion-mnist``: which of ten kinds of clothing a grey image shows."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esper.config.checks import require_choice
from esper.config.growth import CNNHostConfig, HostConfig, MLPHostConfig
from esper.errors import BadDataError, MissingDataError
from esper.growth.hosts import HostMaker
from esper.tasks.digits import budget, training
from esper.tasks.images import (
    N_CLASSES,
    VARIABLE,
    LabelledImages,
    data_places,
    find_files,
    flat,
    split_images,
)
from esper.tasks.task import Task

GZIP_START = b"\x1f\x8b"
UNSIGNED_BYTES = 8


def read_idx(path: Path, *, n_axes: int) -> NDArray[np.uint8]:
    """Return the array of bytes in an IDX file, compressed by gzip or not.

    Args:
        path: The file.
        n_axes: Axes that it must have: 1 for labels, 3 for images.

    Raises:
        MissingDataError: If the file cannot be read.
        BadDataError: If it is not such a file, or has other sizes than it says.
    """
    content = _read(path)
    expected = bytes([0, 0, UNSIGNED_BYTES, n_axes])
    if content[:4] != expected:
        raise BadDataError(
            f"{path} begins with {content[:4].hex(' ') or 'nothing'}; an IDX file of bytes with "
            f"{n_axes} axes begins with {expected.hex(' ')}. Get the file again."
        )
    start = 4 + 4 * n_axes
    if len(content) < start:
        raise BadDataError(
            f"{path} ends within its first {start} bytes, after {len(content)}; get it again."
        )
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", n_axes, offset=4))
    expected_bytes = math.prod(shape)
    if len(content) - start != expected_bytes:
        sizes = " x ".join(str(size) for size in shape)
        raise BadDataError(
            f"{path} holds {len(content) - start} bytes of numbers; for {sizes} it must hold "
            f"{expected_bytes}. Get the file again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MissingDataError(f"{path} cannot be read ({error.strerror}).") from error
    if not content.startswith(GZIP_START):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise BadDataError(f"{path} is no whole gzip file ({error}); get it again.") from error


SUMMARY = "grey images of clothing, 28x28 or 14x14; needs the IDX files"
INSTALLED = "/usr/share/datasets/fashion-mnist"
"""Where Debian's package puts the files."""
ADVICE = (
    "Install Debian's package with `apt install dataset-fashion-mnist`, or give data_dir "
    "(--data-dir) a folder with the four IDX files, or put it as fashion-mnist into the folder "
    f"that {VARIABLE} names."
)
SIDE = 28
LEARNING_RATE = 3e-3
"""Of both hosts; at 1e-2 the scores of a CNN on 28x28 pixels jump by tenths between epochs."""
FILES = {
    "train images": "train-images-idx3-ubyte",
    "train labels": "train-labels-idx1-ubyte",
    "test images": "t10k-images-idx3-ubyte",
    "test labels": "t10k-labels-idx1-ubyte",
}


def make_fashion_mnist(
    *,
    data_dir: str | Path | None = None,
    image_size: int = SIDE,
    host: str = "cnn",
    n_train: int = 6000,
    n_validation: int = 2000,
    n_epochs: int | None = None,
    batches_per_epoch: int | None = None,
) -> Task:
    """Return the task ``fashion-mnist``.

    Args:
        data_dir: The folder with the IDX files; None looks in the usual places.
        image_size: 28, or 14 for the means of 2x2 pixels.
        host: ``"cnn"`` or ``"mlp"``.
        n_train: Samples to learn from, of 60,000.
        n_validation: Samples to validate on, from the same 60,000.
        n_epochs: Epochs of an episode.
        batches_per_epoch: Batches of an epoch; None for one pass.
    """
    image_size = require_choice("image_size", image_size, (SIDE, SIDE // 2))
    require_choice("host", host, ("cnn", "mlp"))
    learning, testing = read_fashion_mnist(data_dir)
    data = split_images(
        learning,
        testing,
        n_train=n_train,
        n_validation=n_validation,
        shrink=SIDE // image_size,
    )
    return Task(
        name="fashion-mnist",
        make_host=HostMaker(_host_config(host, image_size)),
        data=data if host == "cnn" else flat(data),
        n_classes=N_CLASSES,
        budget=budget(n_epochs, default=16),
        training=training(
            batch_size=64, learning_rate=LEARNING_RATE, batches_per_epoch=batches_per_epoch
        ),
        summary=SUMMARY,
    )


def read_fashion_mnist(data_dir: str | Path | None) -> tuple[LabelledImages, LabelledImages]:
    """Return the images to learn from and those of the test.

    Raises:
        MissingDataError: If a file is not where it was looked for.
        BadDataError: If a file is not what it must be.
    """
    layout = {role: (name, f"{name}.gz") for role, name in FILES.items()}
    places = data_places("fashion-mnist", data_dir, INSTALLED)
    _, paths = find_files("fashion-mnist", places, [layout], advice=ADVICE)
    train, test = (
        _read_split(paths[f"{part} images"], paths[f"{part} labels"]) for part in ("train", "test")
    )
    return train, test


def _read_split(images_path: Path, labels_path: Path) -> LabelledImages:
    images = read_idx(images_path, n_axes=3)
    if images.shape[1:] != (SIDE, SIDE):
        raise BadDataError(
            f"{images_path} has images of {images.shape[1]} x {images.shape[2]} pixels; they must "
            f"be {SIDE} x {SIDE}."
        )
    return LabelledImages(images[:, None], read_idx(labels_path, n_axes=1), images_path)


def _host_config(host: str, image_size: int) -> HostConfig:
    if host == "mlp":
        return MLPHostConfig(n_features=image_size**2, width=16, hidden=16, n_blocks=2)
    return CNNHostConfig(image_size=image_size, n_channels=1, width=8, hidden=8, n_blocks=2)
