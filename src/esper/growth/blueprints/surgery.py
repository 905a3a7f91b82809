"""Blueprints of what is added to a model's own layers: hidden units, and copies of blocks."""

from __future__ import annotations

from torch import nn

from esper.growth.blueprints.registry import built_in
from esper.growth.sites import SlotSite


def _build(site: SlotSite) -> nn.Module:
    raise AssertionError(f"the slot {site.name!r} grows by surgery, so there is nothing to build")


BLUEPRINTS = (
    built_in("widen_small", _build, grows="units", share=0.25),
    built_in("widen_medium", _build, grows="units", share=0.5),
    built_in("widen_large", _build, grows="units", share=1.0),
    built_in("widen_huge", _build, grows="units", share=3.0),
    built_in("deepen", _build, grows="blocks"),
)
