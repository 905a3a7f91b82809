"""A normalised copy of the block's output, mixed in by channel."""

from __future__ import annotations

from torch import nn

from esper.growth.blueprints.blueprint import Blueprint, SeedForm
from esper.growth.sites import SlotSite
from esper.growth.tensor_kinds import TensorKind


class LayerNormSeed(nn.Sequential):
    """``weight * normalised(y) + bias`` over features. Starts at zero: weight and bias are zero."""

    def __init__(self, width: int) -> None:
        norm = nn.LayerNorm(width)
        nn.init.zeros_(norm.weight)
        super().__init__(norm)


class GroupNormSeed(nn.Sequential):
    """``weight * normalised(y) + bias`` over an image. Starts at zero: weight and bias are."""

    def __init__(self, width: int) -> None:
        norm = nn.GroupNorm(1, width)
        nn.init.zeros_(norm.weight)
        super().__init__(norm)


def _build(site: SlotSite) -> nn.Module:
    is_map = site.kind == TensorKind.FEATURE_MAP
    return GroupNormSeed(site.width) if is_map else LayerNormSeed(site.width)


BLUEPRINTS = (
    Blueprint(
        name="norm",
        kinds=frozenset(TensorKind),
        form=SeedForm.SERIAL,
        build=_build,
        summary="normalised copy, scaled by channel",
    ),
)
