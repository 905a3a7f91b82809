"""Reading IDX files, the form in which MNIST and its relatives are distributed.

An IDX file is two zero bytes, the type of its numbers (8 for bytes), the number of axes, the size
of each axis as a big-endian 32-bit number, and the numbers.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esper.errors import BadDataError, MissingDataError

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
