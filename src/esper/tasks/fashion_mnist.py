"""The task ``fashion-mnist``: classify greyscale images of clothing."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esper.config.catalogue import TASKS
from esper.config.checks import require_choice
from esper.config.growth import (
    Budget,
    CNNHostConfig,
    HostConfig,
    MLPHostConfig,
    PopulationConfig,
)
from esper.errors import BadDataError, MissingDataError
from esper.growth.hosts import HostMaker
from esper.tasks.images import (
    N_CLASSES,
    VARIABLE,
    LabelledImages,
    data_folders,
    find_files,
    flatten_images,
    split_images,
)
from esper.tasks.task import Task

GZIP_START = b"\x1f\x8b"
UNSIGNED_BYTES = 8


def read_idx(path: Path, *, n_axes: int) -> NDArray[np.uint8]:
    """Return the byte array in an IDX file, gzipped or not.

    Args:
        path: The file.
        n_axes: The required number of axes: 1 for labels, 3 for images.

    Raises:
        MissingDataError: If the file cannot be read.
        BadDataError: If it is not an IDX file, or its size contradicts its header.
    """
    content = _read(path)
    expected = bytes([0, 0, UNSIGNED_BYTES, n_axes])
    if content[:4] != expected:
        raise BadDataError(
            f"{path} begins with {content[:4].hex(' ') or 'nothing'}; an IDX file of bytes with "
            f"{n_axes} axes begins with {expected.hex(' ')}. Download it again."
        )
    start = 4 + 4 * n_axes
    if len(content) < start:
        raise BadDataError(
            f"{path} has {len(content)} bytes, less than its {start}-byte header; download it "
            "again."
        )
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", n_axes, offset=4))
    expected_bytes = math.prod(shape)
    if len(content) - start != expected_bytes:
        sizes = " x ".join(str(size) for size in shape)
        raise BadDataError(
            f"{path} holds {len(content) - start} bytes of data; {sizes} needs {expected_bytes}. "
            "Download it again."
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
        raise BadDataError(f"{path} is a damaged gzip file ({error}); get it again.") from error


INSTALLED = "/usr/share/datasets/fashion-mnist"
"""Where the Debian package puts the files."""
ADVICE = (
    "On Debian, run `apt install dataset-fashion-mnist`; or pass a folder with the four IDX files "
    f"as data_dir (--data-dir), or place it as fashion-mnist in the folder named by {VARIABLE}."
)
SIDE = 28
LEARNING_RATE = 3e-3
"""At 1e-2 the score of a CNN on 28x28 images jumps by tenths between epochs."""
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
    n_epochs: int = 16,
    batches_per_epoch: int | None = None,
) -> Task:
    """Return the task ``fashion-mnist``.

    Args:
        data_dir: The folder with the IDX files; None for the default folders.
        image_size: 28, or 14 after 2x2 average pooling.
        host: ``"cnn"`` or ``"mlp"``.
        n_train: Training samples, out of 60,000.
        n_validation: Validation samples, from the same 60,000.
        n_epochs: Epochs per episode.
        batches_per_epoch: Batches per epoch; None for one pass over the data.
    """
    image_size = require_choice("image_size", image_size, (SIDE, SIDE // 2))
    require_choice("host", host, ("cnn", "mlp"))
    training, test = read_fashion_mnist(data_dir)
    data = split_images(
        training,
        test,
        n_train=n_train,
        n_validation=n_validation,
        shrink=SIDE // image_size,
    )
    return Task(
        name="fashion-mnist",
        make_host=HostMaker(_host_config(host, image_size)),
        data=data if host == "cnn" else flatten_images(data),
        n_classes=N_CLASSES,
        budget=Budget(n_epochs=n_epochs),
        training=PopulationConfig(
            batch_size=64, learning_rate=LEARNING_RATE, batches_per_epoch=batches_per_epoch
        ),
        summary=TASKS["fashion-mnist"],
    )


def read_fashion_mnist(data_dir: str | Path | None) -> tuple[LabelledImages, LabelledImages]:
    """Return the images for training and those for testing.

    Raises:
        MissingDataError: If a file was not found.
        BadDataError: If a file is invalid.
    """
    layout = {role: (name, f"{name}.gz") for role, name in FILES.items()}
    folders = data_folders("fashion-mnist", data_dir, INSTALLED)
    _, paths = find_files("fashion-mnist", folders, [layout], advice=ADVICE)
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
