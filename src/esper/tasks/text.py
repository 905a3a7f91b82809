"""The task ``text``: predict the next character."""

from __future__ import annotations

import lzma
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from esper.config.catalogue import TASKS
from esper.config.checks import PositiveInt, check
from esper.config.growth import Budget, GPTHostConfig, PopulationConfig
from esper.errors import BadDataError, MissingDataError
from esper.growth.hosts import HostMaker
from esper.storage.files import read_file
from esper.tasks.data import Samples, TaskData
from esper.tasks.metrics import bits_per_character
from esper.tasks.task import Task

UNKNOWN = "\ufffd"
"""The decoded form of characters outside the vocabulary."""


@lru_cache(maxsize=1)
def load_book() -> str:
    """Return *Alice's Adventures in Wonderland*; see ``data/README.md`` for its source."""
    packed = files("esper.tasks").joinpath("data", "alice.txt.xz").read_bytes()
    return lzma.decompress(packed).decode("ascii")


def read_text(path: str | Path) -> str:
    """Return the text of a UTF-8 file, with every line ending as ``\\n``.

    Raises:
        MissingDataError: If the file cannot be read.
        BadDataError: If it is empty or not UTF-8.
    """
    path = Path(path).expanduser()
    try:
        content = read_file(path, max_bytes=None)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MissingDataError(
            f"the text {path} cannot be read ({reason}); path must be a UTF-8 text file."
        ) from error
    if not content:
        raise BadDataError(f"the text {path} is empty; path must be a UTF-8 text file.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadDataError(
            f"the text {path} is not UTF-8: byte {error.start} of {len(content)} is "
            f"0x{content[error.start]:02x}; convert the file to UTF-8."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


class Vocabulary:
    """The characters of a text as consecutive tokens, plus one token for all others."""

    def __init__(self, text: str) -> None:
        self._codes = np.unique(_code_points(text))

    def __len__(self) -> int:
        return len(self._codes) + 1

    def encode(self, text: str) -> NDArray[np.int64]:
        """Return the token of each character."""
        points = _code_points(text)
        places = np.searchsorted(self._codes, points)
        is_known = self._codes[np.minimum(places, len(self._codes) - 1)] == points
        return np.where(is_known, places, len(self._codes))

    def decode(self, tokens: NDArray[np.int64]) -> str:
        """Return the text of tokens."""
        codes = np.append(self._codes, ord(UNKNOWN))
        return "".join(chr(code) for code in codes[tokens])


def cut_windows(tokens: NDArray[np.int64], context: int) -> Samples:
    """Return consecutive windows and the next token at each position, both ``[n, T]``.

    A last incomplete window is dropped.
    """
    n_windows = (len(tokens) - 1) // context
    used = n_windows * context
    return Samples(
        torch.from_numpy(tokens[:used].reshape(n_windows, context)),
        torch.from_numpy(tokens[1 : used + 1].reshape(n_windows, context)),
    )


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


SHARES = (80, 10, 10)
"""Percentages of a text that are train, validation and test, in this order."""
MIN_WINDOWS = 2


def make_text(
    *,
    path: str | Path | None = None,
    context: int = 32,
    width: int = 16,
    hidden: int = 32,
    n_heads: int = 2,
    n_blocks: int = 2,
    n_epochs: int = 16,
    batches_per_epoch: int | None = 16,
) -> Task:
    """Return the task ``text``.

    Args:
        path: A UTF-8 text file; None for the book that ships with Esper.
        context: Context length in characters.
        width: Width of the host's residual stream.
        hidden: Hidden units of each block's MLP.
        n_heads: Attention heads of each block.
        n_blocks: Transformer blocks.
        n_epochs: Epochs per episode.
        batches_per_epoch: Batches per epoch; None for one pass over the data.
    """
    check("context", context, PositiveInt)
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
        budget=Budget(n_epochs=n_epochs),
        training=PopulationConfig(
            batch_size=16, learning_rate=1e-2, batches_per_epoch=batches_per_epoch
        ),
        summary=TASKS["text"],
    )


def split_text(text: str, context: int, *, source: str) -> tuple[TaskData, Vocabulary]:
    """Return contiguous splits of a text, and the vocabulary of the train split.

    Raises:
        BadDataError: If the text is too short.
    """
    ends = [len(text) * share // 100 for share in (SHARES[0], SHARES[0] + SHARES[1], 100)]
    parts = [text[start:end] for start, end in zip((0, *ends), ends, strict=False)]
    needed = MIN_WINDOWS * context + 1
    if min(len(part) for part in parts) < needed:
        sizes = ", ".join(str(len(part)) for part in parts)
        raise BadDataError(
            f"{source} has {len(text)} characters, split into {sizes}; with context {context} each "
            f"split needs {needed}, so the text must have about {needed * 100 // min(SHARES)}."
        )
    vocabulary = Vocabulary(parts[0])
    return TaskData.of(cut_windows(vocabulary.encode(part), context) for part in parts), vocabulary
