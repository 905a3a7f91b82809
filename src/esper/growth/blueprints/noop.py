"""The seed that does nothing: what a controller's choice is compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.growth.blueprints.blueprint import Blueprint, SeedForm
from esper.growth.tensor_kinds import TensorKind


class NoopSeed(nn.Module):
    """Proposes no change, ever. It has no parameters."""

    def forward(self, y: Tensor) -> Tensor:
        """Return zeros in the shape of ``y``."""
        return torch.zeros_like(y)


BLUEPRINTS = (
    Blueprint(
        name="noop",
        kinds=frozenset(TensorKind),
        form=SeedForm.SERIAL,
        build=lambda site: NoopSeed(),
        summary="changes nothing",
    ),
)
