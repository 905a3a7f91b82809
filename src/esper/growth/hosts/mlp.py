"""A network of linear layers in blocks."""

from __future__ import annotations

from torch import Tensor, nn

from esper.config.hosts import MLPHostConfig
from esper.growth.hosts.residual import PlainBlock, ResidualBlock


class MLPHost(nn.Module):
    """Maps vectors ``[B, features]`` to logits ``[B, classes]``."""

    def __init__(self, config: MLPHostConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.hidden
        block = ResidualBlock if config.has_skips else PlainBlock
        self.stem = nn.Linear(config.n_features, width)
        self.blocks = nn.Sequential(
            *(
                block(nn.Linear(width, hidden), nn.Identity(), nn.Linear(hidden, width))
                for _ in range(config.n_blocks)
            )
        )
        self.head = nn.Linear(width, config.n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.blocks(self.stem(x)))
