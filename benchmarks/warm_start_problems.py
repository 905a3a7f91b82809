"""What `warm_start.py` trains: models as users write them, and their data.

Shapes: B samples of a batch, T characters of a window, D width, H heads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, scaled_dot_product_attention

from esper.tasks.data import Samples, TaskData
from esper.tasks.text import SHARES, load_book
from fashion_mnist import VARIABLE, load_fashion_mnist
from growth_problems import ASCII, CONTEXT, Data, ImageData, TextData, read_texts

FOLDER = Path(__file__).parent / "evidence"
DATA = FOLDER / "data"
"""Where `evidence/real/download.py` unpacks the packages with letters and Fashion-MNIST."""
FASHION = DATA / "dataset-fashion-mnist" / "usr" / "share" / "datasets" / "fashion-mnist"
N_SCORED = 4096
"""Samples of a validation or test score."""


class Attention(nn.Module):
    """Causal attention with queries, keys and values in one layer."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.head_size = width // n_heads

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        heads = (part.unflatten(-1, (-1, self.head_size)) for part in self.qkv(x).chunk(3, -1))
        q, k, v = (part.transpose(1, 2) for part in heads)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class GPTBlock(nn.Module):
    """Attention and an MLP, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, hidden: int, n_heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, n_heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A character model."""

    def __init__(self, n_blocks: int, hidden: int, width: int = 48, n_heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(ASCII), width)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.ModuleList(GPTBlock(width, hidden, n_heads) for _ in range(n_blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(ASCII))
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens ``[B, T]`` to logits ``[B, T, characters]``."""
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ConvBlock(nn.Module):
    """Two convolutions with batch norms beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(width, width)
        self.conv2, self.norm2 = _conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, D, height, width]`` to the same shape."""
        return relu(x + self.norm2(self.conv2(relu(self.norm1(self.conv1(x))))))


def make_cnn(n_blocks: int, width: int) -> nn.Module:
    """Return a residual CNN whose second half has half of the resolution."""
    stem, halve = _conv(1, width), _conv(width, 2 * width, stride=2)
    first = [ConvBlock(width) for _ in range(n_blocks)]
    second = [ConvBlock(2 * width) for _ in range(n_blocks)]
    return nn.Sequential(
        *(*stem, nn.ReLU()),
        nn.Sequential(*first),
        *(*halve, nn.ReLU()),
        nn.Sequential(*second),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10)),
    )


def _conv(n_in: int, n_out: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    conv = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
    return conv, nn.BatchNorm2d(n_out)


class MLPBlock(nn.Module):
    """A hidden layer beside a shortcut."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, D]`` to ``[B, D]``."""
        return x + self.down(relu(self.up(x)))


def make_mlp(n_blocks: int, width: int) -> nn.Module:
    """Return a residual MLP."""
    blocks = [MLPBlock(width, 2 * width) for _ in range(n_blocks)]
    return nn.Sequential(
        nn.Linear(16, width), nn.Sequential(*blocks), nn.ReLU(), nn.Linear(width, 26)
    )


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model to train, and what more of it means."""

    name: str
    title: str
    build: Callable[[int, int], nn.Module]
    """Returns a model of so many blocks and so wide."""
    n_blocks: int
    width: int
    factor: float
    """How much wider it grows; it grows to twice its depth."""
    load: Callable[[], Data]
    unit: float
    """FLOPs that the given model was trained with, in billions."""
    batch_size: int
    rates: tuple[float, ...]
    """Learning rates of the given model to choose from."""
    widened: str | None = None
    """The places that are widened; all by default."""
    n_scored: int = N_SCORED
    is_accuracy: bool = True
    """Whether the score is accuracy in percent, else the loss in nats."""

    def model(self, size: str = "base") -> nn.Module:
        """Return an untrained model: ``base``, ``wide``, ``deep`` or ``both``."""
        n_blocks = self.n_blocks * (2 if size in ("deep", "both") else 1)
        width = self.width * (self.factor if size in ("wide", "both") else 1)
        return self.build(n_blocks, round(width))

    def small(self) -> Problem:
        """Return the same problem in seconds."""
        return replace(self, unit=self.unit / 40, rates=self.rates[:2])


@lru_cache(maxsize=1)
def _python() -> Data:
    return TextData()


@lru_cache(maxsize=1)
def _fashion() -> Data:
    os.environ.setdefault(VARIABLE, str(FASHION))
    data = load_fashion_mnist(n_train=50_000, n_validation=5_000)
    return ImageData(replace(data, validation=_first(data.validation), test=_first(data.test)))


@lru_cache(maxsize=1)
def _letters() -> Data:
    sys.path.append(str(FOLDER / "real"))  # its modules import each other by their names
    sets: Any = import_module("sets")
    parts = sets.split(sets.Library(DATA).load("letter"), 0, max_training=12_000)
    splits: list[tuple[Tensor, Tensor]] = [parts.train, parts.validation, parts.test]
    return ImageData(TaskData.of(Samples(*each) for each in splits))


def _first(samples: Samples) -> Samples:
    return Samples(samples.inputs[:N_SCORED], samples.targets[:N_SCORED])


@lru_cache(maxsize=2)
def load_topic(topic: str) -> Data:
    """Return the texts of which a model learns one after the other: ``prose`` and ``code``."""
    if topic == "prose":
        book = load_book()
        first, second = (len(book) * n // 100 for n in (SHARES[0], SHARES[0] + SHARES[1]))
        parts = {"training": book[:first], "validation": book[first:second], "test": book[second:]}
        return TextData({name: {"book": text} for name, text in parts.items()})
    texts = read_texts()
    return TextData(
        {
            split: {name: text for name, text in files.items() if name.endswith(".py")}
            for split, files in texts.items()
        }
    )


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(
            name="text",
            title="character GPT of width 48 on text",
            build=GPT,
            n_blocks=2,
            width=192,
            factor=2.0,
            load=_python,
            unit=250.0,
            batch_size=32,
            rates=(2.5e-3, 5e-3, 1e-2, 2e-2),
            widened="blocks.*.mlp",
            n_scored=2048,
            is_accuracy=False,
        ),
        Problem(
            name="fashion",
            title="residual CNN on Fashion-MNIST, 14 x 14",
            build=make_cnn,
            n_blocks=1,
            width=8,
            factor=1.5,
            load=_fashion,
            unit=120.0,
            batch_size=32,
            rates=(2.5e-3, 5e-3, 1e-2, 2e-2),
        ),
        Problem(
            name="letters",
            title="residual MLP on letter recognition",
            build=make_mlp,
            n_blocks=2,
            width=32,
            factor=1.5,
            load=_letters,
            unit=12.0,
            batch_size=64,
            rates=(2.5e-3, 5e-3, 1e-2, 2e-2),
        ),
    )
}

PROSE = replace(PROBLEMS["text"], name="prose", load=partial(load_topic, "prose"))
"""The model that learns code after prose."""
