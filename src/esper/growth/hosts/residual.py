"""The blocks that hosts for vectors and images are made of."""

from __future__ import annotations

from torch import Tensor, nn


class PlainBlock(nn.Module):
    """``second(relu(norm(first(x))))``, any axes in front of a sample's own allowed."""

    def __init__(self, first: nn.Module, norm: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.norm = norm
        self.activation = nn.ReLU()
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, in the shape of ``x``."""
        return self.second(self.activation(self.norm(self.first(x))))


class ResidualBlock(PlainBlock):
    """``x + second(relu(norm(first(x))))``, any axes in front of a sample's own allowed."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, in the shape of ``x``."""
        return x + super().forward(x)
