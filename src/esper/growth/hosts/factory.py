"""Making hosts from their sizes: the same seed gives the same weights."""

from __future__ import annotations

from dataclasses import replace
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
from esper.errors import ConfigError
from esper.growth.attach import add_slots, attach_slots
from esper.growth.host_slots import slots
from esper.growth.hosts.models import CNNHost, GPTHost, MLPHost, draw_weights
from esper.growth.modules import seeded
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
    design: HostConfig | None = None,
) -> nn.Module:
    """Return a host with slots around its blocks.

    Args:
        config: Its sizes.
        seed: Decides its weights and its seeds'.
        growth_config: How long seeds stay in a stage.
        seed_limit: How many seeds may live at once; None for any number.
        design: Sizes whose slots' sites this host takes over: seeds are then as large as in hosts
            of that size. It may differ from ``config`` in its hidden units only.

    Raises:
        ConfigError: If other sizes than the hidden units differ.
    """
    sites = list(host_sites(config if design is None else design))
    if design is not None:
        _require_same_sites(config, design)
    host = build_host(config, seed=seed)
    attach_slots(host, sites, growth_config=growth_config, seed_limit=seed_limit, seed=seed)
    return host


class HostMaker:
    """Makes hosts of one size from seeds; takes what :func:`make_host` takes.

    A population that puts one new host after another in the same place uses :meth:`redraw`, which
    is faster than making hosts.
    """

    def __init__(self, config: HostConfig, **options: Any) -> None:
        self.config = config
        self.options = options

    def __call__(self, seed: int) -> nn.Module:
        """Return the host of a seed."""
        return make_host(self.config, seed=seed, **self.options)

    def redraw(self, host: nn.Module, seed: int) -> None:
        """Give a host in which nothing has grown the weights that the host of a seed has."""
        with seeded(seed):
            draw_weights(host)


def _require_same_sites(config: HostConfig, design: HostConfig) -> None:
    """Refuse a host through whose slots other tensors pass than through the design's."""
    if type(config) is type(design) and replace(config, hidden=design.hidden) == design:
        return
    raise ConfigError(
        f"a host of {config} cannot have the slots of {design}; only hidden may differ between "
        "a host and its design."
    )


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
