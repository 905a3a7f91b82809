"""Serial seeds for feature maps ``[B, C, H, W]``."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from esper.growth.blueprints.blueprint import Blueprint, SeedForm
from esper.growth.tensor_kinds import TensorKind


def zero_conv(width_in: int, width_out: int, kernel: int) -> nn.Conv2d:
    """Return a convolution that keeps the size of the map and gives zeros while it is new."""
    conv = nn.Conv2d(width_in, width_out, kernel, padding=kernel // 2)
    nn.init.zeros_(conv.weight)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv


class SqueezeExciteSeed(nn.Module):
    """Scales each channel by what the whole map holds. Starts at zero: its last layer is zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(1, width // 4)
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, hidden, 1),
            nn.ReLU(),
            zero_conv(hidden, width, 1),
            nn.Tanh(),
        )

    def forward(self, y: Tensor) -> Tensor:
        """Return ``y`` times a factor in (-1, 1) by channel."""
        return y * self.excite(y)


class DepthwiseSeed(nn.Sequential):
    """A 3x3 filter by channel, then a mix of channels. Starts at zero: its last layer is zero."""

    def __init__(self, width: int) -> None:
        depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        super().__init__(depthwise, nn.ReLU(), zero_conv(width, width, 1))


class BottleneckSeed(nn.Sequential):
    """1x1 down, 3x3, 1x1 up. Starts at zero: its last layer is zero."""

    def __init__(self, width: int) -> None:
        hidden = max(1, width // 4)
        super().__init__(
            nn.Conv2d(width, hidden, 1),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, padding=1),
            nn.ReLU(),
            zero_conv(hidden, width, 1),
        )


class ConvSeed(nn.Sequential):
    """Two 3x3 convolutions with ``hidden`` channels between. Starts at zero: its last is zero."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(
            nn.Conv2d(width, hidden, 3, padding=1), nn.ReLU(), zero_conv(hidden, width, 3)
        )


def _blueprint(
    name: str, summary: str, make: Callable[[int], nn.Module], family: str = ""
) -> Blueprint:
    return Blueprint(
        name=name,
        kinds=frozenset({TensorKind.FEATURE_MAP}),
        form=SeedForm.SERIAL,
        build=lambda site: make(site.width),
        summary=summary,
        family=family,
    )


def _conv(name: str, summary: str, share: float) -> Blueprint:
    def make(width: int) -> nn.Module:
        return ConvSeed(width, max(1, int(share * width)))

    return _blueprint(name, summary, make, family="conv_heavy")


BLUEPRINTS = (
    _blueprint("attention", "squeeze-and-excite: scales channels", SqueezeExciteSeed),
    _blueprint("depthwise", "3x3 by channel, then 1x1", DepthwiseSeed),
    _blueprint("bottleneck", "1x1 down, 3x3, 1x1 up", BottleneckSeed),
    _conv("conv_small", "two 3x3, a quarter wide", 0.25),
    _conv("conv_light", "two 3x3, half as wide", 0.5),
    _conv("conv_heavy", "two 3x3, as wide as the block", 1.0),
)
