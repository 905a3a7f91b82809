"""Proposing places for slots, with what each blueprint would cost there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from esper.growth.attach import usable_sites
from esper.growth.blueprints import SeedForm, blueprint_names, find_blueprint, fitting_blueprints
from esper.growth.footprint import count_flops
from esper.growth.modules import count_parameters, named_modules
from esper.growth.sites import SlotSite
from esper.growth.tensor_kinds import TensorKind


@dataclass(frozen=True)
class SeedCost:
    """What a seed of one blueprint would cost at a place."""

    parameters: int
    flops: int
    """Floating-point operations of one forward pass of one sample."""


@dataclass(frozen=True)
class SlotProposal:
    """A place where a model can have a slot."""

    site: SlotSite
    costs: dict[str, SeedCost]
    """Cost of each blueprint that fits, by name."""

    @property
    def name(self) -> str:
        """What to pass to :func:`esper.add_slots`."""
        return self.site.name

    @property
    def kind(self) -> TensorKind:
        """The kind of the block's output."""
        return self.site.kind

    @property
    def width(self) -> int:
        """Channels or features of the block's output."""
        return self.site.width

    @property
    def can_widen(self) -> bool:
        """Whether widening the block can be merged into its own layers."""
        return self.site.path is not None

    def __str__(self) -> str:
        merged = "widening merges into the block" if self.can_widen else "widening stays beside it"
        lines = [f"{self.name}: {self.kind.value}, width {self.width}; {merged}"]
        lines += [
            f"  {name:<16}{cost.parameters:>12,} parameters {cost.flops:>14,} FLOPs a sample"
            for name, cost in self.costs.items()
        ]
        return "\n".join(lines)


class SlotProposals(tuple[SlotProposal, ...]):
    """Proposed places, in the model's order; printing them gives a table."""

    @property
    def names(self) -> list[str]:
        """The places' names."""
        return [proposal.name for proposal in self]

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no block of this model can have a slot"


def find_slots(model: nn.Module, sample_input: Any) -> SlotProposals:
    """Propose places for slots: the blocks of a model on whose output a seed can live.

    A block is a module with parts of its own and with parameters; in a model without such blocks, a
    layer with parameters. The model is run with hooks and stays as it is.
    """
    modules = named_modules(model)
    sites = [
        site
        for site in usable_sites(model, sample_input)
        if any(True for _ in modules[site.name].parameters())
    ]
    blocks = [site for site in sites if any(modules[site.name].children())]
    return SlotProposals(SlotProposal(site, seed_costs(site)) for site in blocks or sites)


def seed_costs(site: SlotSite) -> dict[str, SeedCost]:
    """Return what each blueprint that fits would cost at a place."""
    costs: dict[str, SeedCost] = {}
    for name in fitting_blueprints(site, blueprint_names()):
        recipe = find_blueprint(name)
        with torch.random.fork_rng(devices=[]):
            seed = recipe.build(site).eval()
        shape = site.output_shape if recipe.form == SeedForm.SERIAL else site.input_shape
        assert shape is not None
        x = torch.zeros((1, *shape[1:]))
        flops = count_flops(lambda seed=seed, x=x: seed(x))
        costs[name] = SeedCost(count_parameters(seed), flops)
    return costs
