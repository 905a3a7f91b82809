"""The built-in hosts: small networks with slots where they can grow.

The same configuration and seed always give the same weights.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from esper.config.growth import (
    CNNHostConfig,
    GPTHostConfig,
    GrowthConfig,
    HostConfig,
    MLPHostConfig,
)
from esper.config.memory import BYTES_PER_WEIGHT, require_memory
from esper.growth.blueprints.seeds import CausalAttention
from esper.growth.modules import seeded
from esper.growth.placement import SurgerySites, attach_slots, module_site, overlap
from esper.growth.sites import ACTIVATIONS, SlotSite


def make_host(
    config: HostConfig,
    *,
    seed: int = 0,
    growth_config: GrowthConfig | None = None,
    seed_limit: int | None = None,
    has_modules: bool = True,
) -> nn.Module:
    """Return a host with slots where it can grow: in its own layers, and beside its blocks.

    Args:
        config: Sizes of the host.
        seed: Determines the weights of the host and of its seeds.
        growth_config: How seeds start, and the minimum number of epochs in each stage.
        seed_limit: Maximum number of live seeds; None for no limit.
        has_modules: Whether there are slots beside blocks, too.

    Raises:
        ConfigError: If the weights do not fit into memory.

    Examples:
        >>> host = esper.make_host(esper.MLPHostConfig(n_blocks=2), seed=3)
        >>> list(esper.slots(host))
        ['blocks.*.first>second', 'blocks.*', 'blocks.0', 'blocks.1']
    """
    sites = list(host_sites(config, has_modules=has_modules))
    host = build_host(config, seed=seed)
    attach_slots(host, sites, growth_config=growth_config, seed_limit=seed_limit, seed=seed)
    return host


class HostMaker:
    """Makes hosts of one size from seeds. Takes the arguments of :func:`make_host`."""

    def __init__(self, config: HostConfig, **options: Any) -> None:
        self.config = config
        self.options = options

    def __call__(self, seed: int) -> nn.Module:
        """Return the host of a seed."""
        return make_host(self.config, seed=seed, **self.options)


def build_host(config: HostConfig, *, seed: int = 0) -> nn.Module:
    """Return a host without slots."""
    with seeded(seed):
        match config:
            case MLPHostConfig():
                return MLPHost(config)
            case CNNHostConfig():
                return CNNHost(config)
            case GPTHostConfig():
                return GPTHost(config)


def _count_matrix_weights(config: HostConfig) -> int:
    """Return the number of weights in a host's matrices, which is nearly all."""
    width, blocks = config.width, config.n_blocks
    match config:
        case MLPHostConfig():
            ends = config.n_features + config.n_classes
            return width * (ends + 2 * blocks * config.hidden)
        case CNNHostConfig():
            ends = 9 * config.n_channels + config.n_classes
            return width * (ends + 18 * blocks * config.hidden)
        case GPTHostConfig():
            ends = 2 * config.vocabulary + config.context
            return width * (ends + blocks * (4 * width + 2 * config.hidden))


@lru_cache(maxsize=512)
def host_sites(config: HostConfig, *, has_modules: bool = True) -> tuple[SlotSite, ...]:
    """Return the sites of a host's slots, found by a dry run once per configuration.

    Raises:
        ConfigError: If the weights of the host do not fit into memory.
    """
    require_memory(BYTES_PER_WEIGHT * _count_matrix_weights(config), **asdict(config))
    host, sample = build_host(config), sample_input(config)
    sites = SurgerySites(host, sample).find_all()
    blocks = [f"blocks.{index}" for index in range(config.n_blocks)]
    beside = [module_site(host, name, sample) for name in blocks]
    # Units between blocks would change the size of what modules beside a block read.
    own = [site for site in sites if not any(overlap(site, other) for other in beside)]
    return (*own, *beside) if has_modules else tuple(own)


def sample_input(config: HostConfig, n_samples: int = 2) -> Tensor:
    """Return a random input batch for a host."""
    generator = torch.Generator().manual_seed(0)
    match config:
        case MLPHostConfig():
            return torch.randn(n_samples, config.n_features, generator=generator)
        case CNNHostConfig():
            shape = (n_samples, config.n_channels, config.image_size, config.image_size)
            return torch.randn(shape, generator=generator)
        case GPTHostConfig():
            shape = (n_samples, config.context)
            return torch.randint(config.vocabulary, shape, generator=generator)


class PlainBlock(nn.Module):
    """``second(activation(norm(first(x))))``; extra leading axes are allowed."""

    def __init__(
        self, first: nn.Module, norm: nn.Module, second: nn.Module, *, activation: str = "relu"
    ) -> None:
        super().__init__()
        self.first = first
        self.norm = norm
        self.activation = ACTIVATIONS[activation]()
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, in the shape of ``x``."""
        return self.second(self.activation(self.norm(self.first(x))))


class ResidualBlock(PlainBlock):
    """``x + second(activation(norm(first(x))))``; extra leading axes are allowed."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, in the shape of ``x``."""
        return x + super().forward(x)


class MLPHost(nn.Module):
    """Maps vectors ``[B, features]`` to logits ``[B, classes]``."""

    def __init__(self, config: MLPHostConfig) -> None:
        super().__init__()
        self.stem = nn.Linear(config.n_features, config.width)
        self.blocks = nn.Sequential(*(_mlp_block(config) for _ in range(config.n_blocks)))
        self.head = nn.Linear(config.width, config.n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.blocks(self.stem(x)))


def _mlp_block(config: MLPHostConfig) -> nn.Module:
    """Return a block; a norm is outside the body, whose hidden units then stay independent."""
    width, hidden = config.width, config.hidden
    block = ResidualBlock if config.has_skips else PlainBlock
    body = block(
        nn.Linear(width, hidden),
        nn.Identity(),
        nn.Linear(hidden, width),
        activation=config.activation,
    )
    if not config.has_norm:
        return body
    return nn.Sequential(OrderedDict(norm=nn.LayerNorm(width), body=body))


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


class GPTBlock(nn.Module):
    """A transformer block: attention and a two-layer MLP, each added to the residual stream."""

    def __init__(self, config: GPTHostConfig) -> None:
        super().__init__()
        width = config.width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, config.n_heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, config.hidden), nn.GELU(), nn.Linear(config.hidden, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after the block."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPTHost(nn.Module):
    """Maps tokens ``[B, T]`` to the logits of each next token ``[B, T, vocabulary]``."""

    def __init__(self, config: GPTHostConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        for embedding in (self.token, self.position):  # a tenth of torch's standard deviation
            nn.init.normal_(embedding.weight, std=0.1)
        self.blocks = nn.Sequential(*(GPTBlock(config) for _ in range(config.n_blocks)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        # Expanded to every sample, so that leading axes before [B, T] are allowed.
        steps = torch.arange(tokens.shape[-1], device=tokens.device).expand(tokens.shape)
        x = self.token(tokens) + self.position(steps)
        return self.head(self.norm(self.blocks(x)))
