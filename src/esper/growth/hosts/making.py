"""Making hosts from their sizes: the same seed gives the same weights."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from esper.config.growth import GrowthConfig
from esper.config.hosts import CNNHostConfig, GPTHostConfig, HostConfig, MLPHostConfig
from esper.growth.attach import add_slots, attach_slots
from esper.growth.host_slots import slots
from esper.growth.hosts.cnn import CNNHost
from esper.growth.hosts.gpt import GPTHost
from esper.growth.hosts.mlp import MLPHost
from esper.growth.randomness import seeded
from esper.growth.sites import SlotSite


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


def make_host(
    config: HostConfig,
    *,
    seed: int = 0,
    growth_config: GrowthConfig | None = None,
    seed_limit: int | None = None,
) -> nn.Module:
    """Return a host with slots around its blocks; ``seed`` decides its weights and its seeds'."""
    host = build_host(config, seed=seed)
    sites = list(host_sites(config))
    attach_slots(host, sites, growth_config=growth_config, seed_limit=seed_limit, seed=seed)
    return host


def slot_names(config: HostConfig) -> list[str]:
    """Return where a host's slots are."""
    blocks = [f"blocks.{index}" for index in range(config.n_blocks)]
    if isinstance(config, GPTHostConfig):
        return [name for block in blocks for name in (f"{block}.mlp", block)]
    return blocks


def sample_input(config: HostConfig, n_samples: int = 2) -> Tensor:
    """Return a batch in the form that a host takes."""
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


@lru_cache(maxsize=64)
def host_sites(config: HostConfig) -> tuple[SlotSite, ...]:
    """Return the places of a host's slots, found once for each size by a dry run."""
    host = add_slots(build_host(config), slot_names(config), sample_input(config))
    return tuple(slots(host).sites)
