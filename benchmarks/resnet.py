"""ResNet-18 as in torchvision, to measure slots in a network of realistic size."""

from __future__ import annotations

from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512)
BLOCKS = tuple(f"layer{stage}.{block}" for stage in range(1, 5) for block in range(2))
"""The names of its blocks."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norms, added to the input."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = nn.Sequential()
        if stride != 1 or width_in != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """Maps images ``[B, 3, H, W]`` to logits ``[B, 1000]``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        width_in = WIDTHS[0]
        for number, width in enumerate(WIDTHS, start=1):
            first = BasicBlock(width_in, width, 1 if number == 1 else 2)
            self.add_module(f"layer{number}", nn.Sequential(first, BasicBlock(width, width, 1)))
            width_in = width
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(WIDTHS[-1], 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, len(WIDTHS) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(self.avgpool(x).flatten(1))
