"""The cost of empty slots in a forward pass and of seeds in a training step."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn

from esper.config.growth import GrowthConfig, HostConfig
from esper.growth.footprint import training_step_flops
from esper.growth.host_slots import slots
from esper.growth.hosts import build_host, make_host, sample_input
from esper.growth.placement import add_slots
from host_designs import HOSTS
from populations import BLUEPRINTS, STAGES, grow_to
from resnet import BLOCKS, ResNet
from rows import Ratio, Row, compare
from timing import Call, Effort, time_side_by_side

GROUP = "slots"
BATCH_SIZE = 32
SEED_SIZE = "10k"
"""Size of the hosts whose seeds are measured."""

WITHOUT = "without slots"


def run(effort: Effort) -> list[Row]:
    """Measure empty slots, then seeds."""
    rows: list[Row] = []
    for design, sizes in HOSTS.items():
        config = sizes["1k"]
        x = sample_input(config, BATCH_SIZE)
        blocks = [f"blocks.{number}" for number in range(config.n_blocks)]
        rows.append(_run_empty(f"{design} 1k", build_host(config), blocks, x, effort))
    x = torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    rows.append(_run_empty("ResNet-18, 64x64", ResNet(), list(BLOCKS), x, effort))
    for design, sizes in HOSTS.items():
        rows += _run_seeds(design, sizes[SEED_SIZE], effort)
    return rows


def _run_empty(name: str, plain: nn.Module, at: list[str], x: Tensor, effort: Effort) -> Row:
    """Compare the forward pass of a model with and without empty slots around its blocks."""
    slotted = add_slots(copy.deepcopy(plain), at, x)
    plain.eval()
    slotted.eval()
    ours = f"{name}, {len(at)} empty slots, forward"
    with torch.no_grad():
        assert torch.equal(plain(x), slotted(x)), f"slots change the output of {name}"
        timings = time_side_by_side({ours: partial(slotted, x), WITHOUT: partial(plain, x)}, effort)
    return compare(timings, ours, WITHOUT, group=GROUP, kind=Ratio.COST, limit=1.02)


def _run_seeds(design: str, config: HostConfig, effort: Effort) -> list[Row]:
    """Compare training steps with and without one seed, with the seed's share of the FLOPs."""
    x = sample_input(config, BATCH_SIZE)
    growth = GrowthConfig(min_training_epochs=0, min_holding_epochs=0)
    empty = make_host(config, growth_config=growth)
    plain = training_step_flops(empty, x)
    calls: dict[str, Call] = {WITHOUT: partial(_train, empty, x)}
    shares: dict[str, float] = {}
    for blueprint in BLUEPRINTS[design]:
        for stage in STAGES:
            host = make_host(config, growth_config=growth)
            grow_to(stage, blueprint, slots(host).lives, slots(host).apply)
            name = f"{design} {SEED_SIZE}, {blueprint} {stage.name.lower()}, training step"
            calls[name] = partial(_train, host, x)
            shares[name] = training_step_flops(host, x) / plain
    timings = time_side_by_side(calls, effort)
    cost = partial(compare, timings, other=WITHOUT, group=GROUP, kind=Ratio.COST)
    return [
        cost(
            name, label=f"no seed; FLOPs {share:.2f}x", is_detail=BLUEPRINTS[design][0] not in name
        )
        for name, share in shares.items()
    ]


def _train(model: nn.Module, x: Tensor) -> None:
    model.zero_grad()
    model(x).sum().backward()
