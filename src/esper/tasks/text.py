"""The task ``text``: which character comes next."""

from __future__ import annotations

from pathlib import Path

from esper.config.checks import require_int
from esper.config.hosts import GPTHostConfig
from esper.errors import BadDataError
from esper.growth.hosts import HostMaker
from esper.tasks.metric import bits_per_character
from esper.tasks.options import budget, training
from esper.tasks.task import Task
from esper.tasks.task_data import Samples, TaskData
from esper.tasks.text_data import Vocabulary, cut_windows, load_book, read_text

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
