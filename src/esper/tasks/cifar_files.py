"""Reading the files of CIFAR-10, in the form for Python and in the binary form.

Both hold images as 3,072 bytes: 32x32 of red, then of green, then of blue.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.errors import BadDataError, MissingDataError
from esper.tasks.image_sets import LabelledImages
from esper.tasks.plain_pickle import RefusedPickleError, read_plain_pickle

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
