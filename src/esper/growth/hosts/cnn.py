"""A residual network of convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from esper.config.hosts import CNNHostConfig
from esper.growth.hosts.residual import ResidualBlock


class CNNHost(nn.Module):
    """Maps images ``[B, channels, H, W]`` to logits ``[B, classes]``."""

    def __init__(self, config: CNNHostConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.hidden
        self.stem = nn.Sequential(
            nn.Conv2d(config.n_channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        self.blocks = nn.Sequential(
            *(
                ResidualBlock(
                    nn.Conv2d(width, hidden, 3, padding=1, bias=False),
                    nn.BatchNorm2d(hidden),
                    nn.Conv2d(hidden, width, 3, padding=1),
                )
                for _ in range(config.n_blocks)
            )
        )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(width, config.n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.pool(self.blocks(self.stem(x))))
