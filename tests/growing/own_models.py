"""User models and a small data set for tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.tasks.digits import load_digits

Pair = tuple[Tensor, Tensor]


def digits(n_train: int = 200, n_val: int = 100) -> tuple[Pair, Pair]:
    """Return pairs of images ``[n, 1, 8, 8]`` and classes for training and validation."""
    images, labels = load_digits()
    end = n_train + n_val
    return (images[:n_train], labels[:n_train]), (images[n_train:end], labels[n_train:end])


class Block(nn.Module):
    """A residual block of two linear layers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x)))


class MLP(nn.Module):
    """A residual MLP of any depth."""

    def __init__(self, n_blocks: int, width: int = 12, hidden: int = 4) -> None:
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.blocks = nn.Sequential(*(Block(width, hidden) for _ in range(n_blocks)))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.blocks(torch.relu(self.stem(x.flatten(1))))))


class CNN(nn.Module):
    """A stem, two blocks with batch norm, global average pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.early, self.late = self._block(6, 8, 1), self._block(8, 8, 2)
        self.head = nn.Linear(8, 10)

    def _block(self, width: int, width_out: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(width, 4, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, width_out, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.early(torch.relu(self.stem(x))))
        return self.head(torch.relu(self.late(x)).mean((2, 3)))


class Transformer(nn.Module):
    """A transformer encoder on the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x.squeeze(1))).mean(1))
