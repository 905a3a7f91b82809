"""What `growth_pays.py` trains on: problems, their data and the sizes of their networks.

Shapes: B samples of a batch, T characters of a window.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from esper.config.growth import CNNHostConfig, GPTHostConfig, HostConfig, MLPHostConfig
from esper.errors import MissingDataError
from esper.tasks.data import TaskData
from esper.tasks.digits import make_digits
from esper.tasks.text import Vocabulary, load_book
from fashion_mnist import load_fashion_mnist

ASCII = Vocabulary("\n\t" + "".join(map(chr, range(32, 127))))
"""Newline, tab and what ASCII can print; all else is one token."""
CONTEXT = 32
N_HELD_OUT = 4096
"""Windows of text in a validation or test score."""
TEXT_SUFFIXES = (".py", ".txt", ".rst")
NOT_TEXT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
"""Folders that are left out: other packages, and the standard library's own tests."""
SHARE = 20
"""One file in so many is for validation, one for testing."""


class Data(Protocol):
    """Batches to train on, and two held-out splits."""

    description: str
    digest: str
    """A checksum of all samples. Results on other data are not comparable."""

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of a random batch."""
        ...

    def held_out(self, split: str) -> tuple[Tensor, Tensor]:
        """Return all inputs and targets of ``"validation"`` or ``"test"``."""
        ...


class TextData:
    """Windows ``[B, T]`` of a text, by default of that on this machine, and the next characters."""

    def __init__(self, texts: dict[str, dict[str, str]] | None = None) -> None:
        texts = texts or read_texts()
        splits = {name: "".join(files.values()) for name, files in texts.items()}
        self._tokens = {name: torch.from_numpy(ASCII.encode(t)) for name, t in splits.items()}
        sizes = {name: len(text.encode()) for name, text in splits.items()}
        n_files = sum(map(len, texts.values()))
        parts = ", ".join(f"{size:,} for {name}" for name, size in sizes.items())
        self.description = f"{sum(sizes.values()):,} bytes in {n_files} files: {parts}"
        self.digest = _digest(*(tokens.numpy() for tokens in self._tokens.values()))

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return windows that start anywhere in the training text."""
        last = len(self._tokens["training"]) - CONTEXT
        return self._windows("training", torch.randint(last, (n, 1), generator=generator))

    def held_out(self, split: str) -> tuple[Tensor, Tensor]:
        """Return windows at equal distances."""
        last = len(self._tokens[split]) - CONTEXT - 1
        return self._windows(split, torch.linspace(0, last, N_HELD_OUT).long()[:, None])

    def _windows(self, split: str, starts: Tensor) -> tuple[Tensor, Tensor]:
        places = starts + torch.arange(CONTEXT + 1)
        windows = self._tokens[split][places]
        return windows[:, :-1], windows[:, 1:]


def read_texts() -> dict[str, dict[str, str]]:
    """Return Python's library and its documents, and the book, by split and by file.

    A file's split depends on its name alone.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found = {"book": load_book()}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.suffix in TEXT_SUFFIXES and not NOT_TEXT.intersection(name.parts):
            found[name.as_posix()] = path.read_text("utf-8", errors="replace")
    texts: dict[str, dict[str, str]] = {"training": {}, "validation": {}, "test": {}}
    for name, text in found.items():
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % SHARE
        texts[{0: "validation", 1: "test"}.get(number, "training")][name] = text
    return texts


class ImageData:
    """Images or vectors of a task, and their classes."""

    def __init__(self, data: TaskData) -> None:
        self._data = data
        sizes = ", ".join(f"{len(part.targets):,} for {name}" for name, part in data.splits())
        self.description = sizes
        self.digest = _digest(*(part.inputs.numpy() for _, part in data.splits()))

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random training samples."""
        train = self._data.train
        rows = torch.randint(len(train.targets), (n,), generator=generator)
        return train.inputs[rows], train.targets[rows]

    def held_out(self, split: str) -> tuple[Tensor, Tensor]:
        """Return all samples of a split."""
        samples = dict(self._data.splits())[split]
        return samples.inputs, samples.targets


def _digest(*arrays: np.ndarray) -> str:
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A task whose right depth depends on the budget."""

    name: str
    title: str
    host: HostConfig
    """The network, whatever its depth."""
    load: Callable[[], Data]
    sizes: tuple[int, ...]
    """The depths that are trained from scratch."""
    growths: tuple[tuple[int, int], ...]
    """The first and the last depth of each grown network."""
    budgets: tuple[float, ...]
    """FLOPs of a whole training run, in billions."""
    timing_budgets: tuple[float, ...]
    """Budgets at which the time of growth is chosen."""
    rates: tuple[float, ...]
    """Learning rates to choose from."""
    batch_size: int = 16
    n_tuning_seeds: int = 1
    """Seeds on which settings are chosen; more where seeds differ more and runs are short."""
    n_scored: int | None = None
    """Held-out samples that are scored; None for all."""

    def host_of(self, n_blocks: int) -> HostConfig:
        """Return the network of a depth."""
        return replace(self.host, n_blocks=n_blocks)


@lru_cache(maxsize=1)
def _text() -> Data:
    return TextData()


@lru_cache(maxsize=2)
def _digits(host: str) -> Data:
    return ImageData(make_digits(host=host).data)


@lru_cache(maxsize=1)
def _fashion() -> Data:
    return ImageData(load_fashion_mnist())


RATES = (1.25e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2, 8e-2)
"""The same for every problem and every arm."""
PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(
            name="text",
            title="character GPT, width 16",
            host=GPTHostConfig(
                vocabulary=len(ASCII), context=CONTEXT, width=16, hidden=64, n_heads=2
            ),
            load=_text,
            sizes=(2, 3, 4, 6),
            growths=((2, 4), (2, 6)),
            budgets=(26.0, 66.0, 166.0, 415.0),
            timing_budgets=(166.0, 415.0),
            rates=RATES,
        ),
        Problem(
            name="digits-cnn",
            title="residual CNN on digits",
            host=CNNHostConfig(width=8, hidden=8),
            load=lambda: _digits("cnn"),
            sizes=(1, 2, 4),
            growths=((1, 4),),
            budgets=(2.0, 5.0, 12.5, 31.0),
            timing_budgets=(5.0, 12.5),
            rates=RATES,
            n_tuning_seeds=3,
        ),
        Problem(
            name="fashion-cnn",
            title="residual CNN on Fashion-MNIST, 14x14",
            host=CNNHostConfig(image_size=14, width=8, hidden=8),
            load=_fashion,
            sizes=(1, 2, 4),
            growths=((1, 4),),
            budgets=(4.0, 10.0, 25.0, 62.5),
            timing_budgets=(10.0, 25.0),
            rates=RATES,
        ),
        Problem(
            name="digits-mlp",
            title="residual MLP on digits",
            host=MLPHostConfig(width=16, hidden=32),
            load=lambda: _digits("mlp"),
            sizes=(1, 2, 4),
            growths=((1, 4),),
            budgets=(0.02, 0.05, 0.125, 0.31),
            timing_budgets=(0.05, 0.125),
            rates=RATES,
            n_tuning_seeds=3,
        ),
    )
}


def _shrink(problem: Problem, budget: float) -> Problem:
    """Return a problem that takes seconds."""
    start, final = problem.growths[-1]
    return replace(
        problem,
        name=f"{problem.name}-small",
        sizes=(start, final),
        growths=((start, final),),
        budgets=(budget, 2 * budget),
        timing_budgets=(budget, 2 * budget),
        rates=problem.rates[3:5],
        n_tuning_seeds=1,
        n_scored=64,
    )


SMALL_BUDGETS = {"text": 0.2, "digits-cnn": 0.02, "fashion-cnn": 0.06, "digits-mlp": 0.004}
SMALL_PROBLEMS = {
    small.name: small
    for small in (_shrink(PROBLEMS[name], budget) for name, budget in SMALL_BUDGETS.items())
}
"""What ``--small`` runs."""


def missing_data(problem: Problem) -> str | None:
    """Return what to do about data that are not on the machine, None if they are."""
    try:
        problem.load()
    except MissingDataError as error:
        return str(error)
    return None
