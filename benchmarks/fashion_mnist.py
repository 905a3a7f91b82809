"""Fashion-MNIST from its four IDX files. Shapes: n images of 1 channel and H x W pixels."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from esper.errors import BadDataError, MissingDataError
from esper.tasks.data import Samples, TaskData, stratified_split

VARIABLE = "FASHION_MNIST"
"""The environment variable that names the folder with the files."""
INSTALLED = "/usr/share/datasets/fashion-mnist"
"""Where the Debian package puts them."""


def load_fashion_mnist(*, n_train: int = 6000, n_validation: int = 2000) -> TaskData:
    """Return images at 14 x 14 pixels, standardized by the training samples, and their classes.

    Train and validation samples are a fixed, stratified choice of the 60,000 for training.

    Raises:
        MissingDataError: If a file is not there.
        BadDataError: If a file is not an IDX file of such images or labels.
    """
    folder = Path(os.environ.get(VARIABLE, INSTALLED)).expanduser()
    images, labels = (_read(folder, f"train-{name}") for name in NAMES)
    tests, test_labels = (_read(folder, f"t10k-{name}") for name in NAMES)
    rows = stratified_split(labels, (n_train, n_validation), seed=0)
    train, validation = (_shrink(images[row]) for row in rows)
    mean = train.mean(dim=(0, 2, 3), keepdim=True)
    deviation = train.std(dim=(0, 2, 3), keepdim=True)
    classes = (torch.from_numpy(labels[row].astype(np.int64)) for row in rows)
    return TaskData(
        train=Samples((train - mean) / deviation, next(classes)),
        validation=Samples((validation - mean) / deviation, next(classes)),
        test=Samples(
            (_shrink(tests) - mean) / deviation, torch.from_numpy(test_labels.astype(np.int64))
        ),
    )


NAMES = {"images-idx3-ubyte": (28, 28), "labels-idx1-ubyte": ()}
"""The end of a file's name, and the shape of one of its items."""


def _read(folder: Path, name: str) -> np.ndarray:
    """Return the bytes of an IDX file, gzipped or not: 00 00 08, number of axes, sizes, data."""
    found = [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
    if not found:
        raise MissingDataError(
            f"{folder / name} is missing; on Debian run `apt install dataset-fashion-mnist`, or "
            f"set {VARIABLE} to the folder with the four IDX files."
        )
    content = found[0].read_bytes()
    if found[0].suffix == ".gz":
        content = gzip.decompress(content)
    item = NAMES[name.split("-", 1)[1]]
    start = 4 + 4 * (1 + len(item))
    sizes = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    is_complete = len(content) - start == int(np.prod(sizes))
    if content[:3] != b"\0\0\x08" or sizes[1:] != item or not is_complete:
        raise BadDataError(f"{found[0]} is not an IDX file of bytes {item}; get it again.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def _shrink(images: np.ndarray) -> Tensor:
    """Return pixels ``[n, 1, 14, 14]`` in [0, 1], averaged over squares of 2 x 2."""
    pixels = torch.from_numpy(images.astype(np.float32)) / 255
    return pixels.view(-1, 1, 14, 2, 14, 2).mean(dim=(3, 5))
