"""Texts as numbers: the book that comes with the package, vocabularies, windows.

Shapes: n windows, T characters of each.
"""

from __future__ import annotations

import lzma
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from esper.errors import BadDataError, MissingDataError
from esper.tasks.task_data import Samples

UNKNOWN = "\ufffd"
"""What a character that the vocabulary lacks is decoded to."""


@lru_cache(maxsize=1)
def load_book() -> str:
    """Return *Alice's Adventures in Wonderland*; see ``data/README.md`` for its source."""
    packed = files("esper.tasks").joinpath("data", "alice.txt.xz").read_bytes()
    return lzma.decompress(packed).decode("ascii")


def read_text(path: str | Path) -> str:
    """Return the text of a UTF-8 file, its lines ended by one newline each.

    Raises:
        MissingDataError: If the file cannot be read.
        BadDataError: If it is empty or not UTF-8.
    """
    path = Path(path).expanduser()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MissingDataError(
            f"the text {path} cannot be read ({error.strerror}); give path a UTF-8 text file."
        ) from error
    if not content:
        raise BadDataError(f"the text {path} is empty; give path a UTF-8 text file.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadDataError(
            f"the text {path} is not UTF-8: byte {error.start} of {len(content)} is "
            f"0x{content[error.start]:02x}; convert it, or give another file."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


class Vocabulary:
    """The characters of a text, numbered in order, and one more number for all others."""

    def __init__(self, text: str) -> None:
        self._codes = np.unique(_code_points(text))

    def __len__(self) -> int:
        return len(self._codes) + 1

    def encode(self, text: str) -> NDArray[np.int64]:
        """Return the number of each character."""
        points = _code_points(text)
        places = np.searchsorted(self._codes, points)
        is_known = self._codes[np.minimum(places, len(self._codes) - 1)] == points
        return np.where(is_known, places, len(self._codes))

    def decode(self, tokens: NDArray[np.int64]) -> str:
        """Return the characters of these numbers."""
        codes = np.append(self._codes, ord(UNKNOWN))
        return "".join(chr(code) for code in codes[tokens])


def cut_windows(tokens: NDArray[np.int64], context: int) -> Samples:
    """Return windows that follow each other and the character after each, both ``[n, T]``.

    What is too short for a last window is left out.
    """
    n_windows = (len(tokens) - 1) // context
    used = n_windows * context
    return Samples(
        torch.from_numpy(tokens[:used].reshape(n_windows, context)),
        torch.from_numpy(tokens[1 : used + 1].reshape(n_windows, context)),
    )


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
