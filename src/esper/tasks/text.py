"""The task ``text``: which character comes next."""

from __future__ import annotations

import lzma
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from esper.config.checks import require_int
from esper.config.growth import GPTHostConfig
from esper.errors import BadDataError, MissingDataError
from esper.growth.hosts import HostMaker
from esper.tasks.data import Samples, TaskData
from esper.tasks.digits import budget, training
from esper.tasks.task import Task, bits_per_character

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


SUMMARY = "the next character of a book that ships with the package, or of any text file"
SHARES = (80, 10, 10)
"""Percent of a text, from its beginning, that are train, validation and test."""
LEAST_WINDOWS = 2


def make_text(
    *,
    path: str | Path | None = None,
    context: int = 32,
    width: int = 16,
    hidden: int = 32,
    n_heads: int = 2,
    n_blocks: int = 2,
    n_epochs: int | None = None,
    batches_per_epoch: int | None = 16,
) -> Task:
    """Return the task ``text``.

    Args:
        path: A UTF-8 text file; None for the book that comes with the package.
        context: Characters that a prediction may look at.
        width: Width of the host's residual stream.
        hidden: Hidden units of each block's two-layer network.
        n_heads: Attention heads of each block.
        n_blocks: Transformer blocks.
        n_epochs: Epochs of an episode.
        batches_per_epoch: Batches of an epoch; None for one pass.
    """
    require_int("context", context, least=1)
    text = load_book() if path is None else read_text(path)
    data, vocabulary = split_text(text, context, source="the book" if path is None else str(path))
    config = GPTHostConfig(
        vocabulary=len(vocabulary),
        context=context,
        width=width,
        hidden=hidden,
        n_heads=n_heads,
        n_blocks=n_blocks,
    )
    return Task(
        name="text",
        make_host=HostMaker(config),
        data=data,
        n_classes=len(vocabulary),
        metric=bits_per_character(len(vocabulary)),
        budget=budget(n_epochs, default=16),
        training=training(batch_size=16, learning_rate=1e-2, batches_per_epoch=batches_per_epoch),
        summary=SUMMARY,
    )


def split_text(text: str, context: int, *, source: str) -> tuple[TaskData, Vocabulary]:
    """Return contiguous splits of a text, and the characters of the one that is learned from.

    Raises:
        BadDataError: If the text is too short.
    """
    ends = [len(text) * share // 100 for share in (SHARES[0], SHARES[0] + SHARES[1], 100)]
    parts = [text[start:end] for start, end in zip((0, *ends), ends, strict=False)]
    needed = LEAST_WINDOWS * context + 1
    if min(len(part) for part in parts) < needed:
        sizes = ", ".join(str(len(part)) for part in parts)
        raise BadDataError(
            f"{source} has {len(text)} characters, which split into {sizes}; with a context of "
            f"{context} each part needs {needed}, so a text must have about "
            f"{needed * 100 // min(SHARES)}."
        )
    vocabulary = Vocabulary(parts[0])
    train, validation, test = (_windows(part, vocabulary, context) for part in parts)
    return TaskData(train=train, validation=validation, test=test), vocabulary


def _windows(part: str, vocabulary: Vocabulary, context: int) -> Samples:
    return cut_windows(vocabulary.encode(part), context)
