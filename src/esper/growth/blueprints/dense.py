"""Seeds of linear layers for sequences ``[B, T, D]`` and vectors ``[B, D]``."""

from __future__ import annotations

from torch import nn

from esper.growth.blueprints.blueprint import Blueprint, SeedForm
from esper.growth.blueprints.mirroring import draw_mirrored
from esper.growth.sites import SlotSite
from esper.growth.tensor_kinds import TensorKind

LORA_SMALL_RANK = 4
LORA_LARGE_RANK = 16


class LowRankSeed(nn.Sequential):
    """A linear map of small rank beside the block, without biases, so that it can be merged into a
    linear block. Starts at zero: the layer that leads out is zero.
    """

    def __init__(self, width_in: int, width_out: int, rank: int) -> None:
        rank = max(1, min(rank, width_in, width_out))
        up = nn.Linear(rank, width_out, bias=False)
        nn.init.zeros_(up.weight)
        super().__init__(nn.Linear(width_in, rank, bias=False), up)


class MLPSeed(nn.Sequential):
    """Two linear layers on the block's output. Starts at zero, with units in mirrored pairs."""

    def __init__(self, width: int, hidden: int) -> None:
        first, last = nn.Linear(width, hidden), nn.Linear(hidden, width)
        draw_mirrored(first, last)
        super().__init__(first, nn.GELU(), last)


def _lora(name: str, rank: int) -> Blueprint:
    def build(site: SlotSite) -> nn.Module:
        return LowRankSeed(site.input_width, site.width, rank)

    kinds = frozenset({TensorKind.SEQUENCE})
    summary = f"linear map of rank {rank} beside the block"
    return Blueprint(
        name=name,
        kinds=kinds,
        form=SeedForm.PARALLEL,
        build=build,
        summary=summary,
        family="lora_large",
    )


def _build_low_rank(site: SlotSite) -> nn.Module:
    return LowRankSeed(site.input_width, site.width, rank=site.width // 8)


def _build_small_mlp(site: SlotSite) -> nn.Module:
    return MLPSeed(site.width, max(1, site.width // 2))


def _build_large_mlp(site: SlotSite) -> nn.Module:
    return MLPSeed(site.width, 2 * site.width)


_DENSE_KINDS = frozenset({TensorKind.SEQUENCE, TensorKind.VECTOR})

BLUEPRINTS = (
    _lora("lora_small", LORA_SMALL_RANK),
    _lora("lora_large", LORA_LARGE_RANK),
    Blueprint(
        name="mlp_small",
        kinds=_DENSE_KINDS,
        form=SeedForm.SERIAL,
        build=_build_small_mlp,
        summary="two linear layers, half as wide between",
        family="mlp_large",
    ),
    Blueprint(
        name="mlp_large",
        kinds=_DENSE_KINDS,
        form=SeedForm.SERIAL,
        build=_build_large_mlp,
        summary="two linear layers, twice as wide between",
    ),
    Blueprint(
        name="low_rank",
        kinds=frozenset({TensorKind.VECTOR}),
        form=SeedForm.PARALLEL,
        build=_build_low_rank,
        summary="linear map of an eighth of the rank beside the block",
    ),
)
