"""Sizes of the hosts that come with Esper."""

from __future__ import annotations

from dataclasses import dataclass

from esper.config.checks import require_bool, require_int
from esper.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class MLPHostConfig:
    """A network of linear layers for vectors, residual as a rule."""

    n_features: int = 64
    """Numbers in a sample."""
    n_classes: int = 10
    """Outputs."""
    width: int = 16
    """Width of the residual stream."""
    hidden: int = 16
    """Hidden units of each block."""
    n_blocks: int = 2
    """Blocks, each with a slot."""
    has_skips: bool = True
    """Whether blocks are residual; without, everything goes through their hidden units."""

    def __post_init__(self) -> None:
        _require_sizes(self, "n_features", "n_classes", "width", "hidden", "n_blocks")
        require_bool("has_skips", self.has_skips)


@dataclass(frozen=True, kw_only=True)
class CNNHostConfig:
    """A residual network of 3x3 convolutions for images."""

    image_size: int = 8
    """Rows and columns of an image."""
    n_channels: int = 1
    """Channels of an image."""
    n_classes: int = 10
    """Outputs."""
    width: int = 8
    """Channels of the residual stream."""
    hidden: int = 8
    """Channels between the two convolutions of each block."""
    n_blocks: int = 2
    """Residual blocks, each with a slot."""

    def __post_init__(self) -> None:
        _require_sizes(self, "image_size", "n_channels", "n_classes", "width", "hidden", "n_blocks")


@dataclass(frozen=True, kw_only=True)
class GPTHostConfig:
    """A causal pre-norm transformer over tokens."""

    vocabulary: int = 64
    """Different tokens."""
    context: int = 32
    """Tokens that a prediction may look at."""
    width: int = 16
    """Width of the residual stream."""
    hidden: int = 32
    """Hidden units of each block's two-layer network."""
    n_heads: int = 2
    """Attention heads; the width is divided among them."""
    n_blocks: int = 2
    """Transformer blocks, each with a slot around it and one around its two-layer network."""

    def __post_init__(self) -> None:
        _require_sizes(self, "vocabulary", "context", "width", "hidden", "n_heads", "n_blocks")
        if self.width % self.n_heads:
            raise ConfigError(
                f"width is {self.width} and n_heads is {self.n_heads}; the width must be a "
                "multiple of n_heads."
            )


HostConfig = MLPHostConfig | CNNHostConfig | GPTHostConfig


def _require_sizes(config: HostConfig, *names: str) -> None:
    for name in names:
        require_int(name, getattr(config, name), least=1)
