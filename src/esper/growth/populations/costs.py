"""What training and evaluating a host costs, with the seeds that are in it.

The host and each seed are counted once by torch's counter; a host's cost is then a sum. Both forms
of a population count by this table, so their costs are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from esper.growth.blueprints import SeedForm
from esper.growth.footprint import count_flops, forward_flops, training_step_flops
from esper.growth.host_slots import slots
from esper.growth.modules import count_parameters
from esper.growth.seed_slot import SeedSlot, size_of
from esper.growth.sites import SlotSize
from esper.growth.slot_lives import SlotLife, SlotLives
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage


@dataclass(frozen=True)
class SeedWork:
    """FLOPs of a seed for one sample."""

    forward: float
    isolated: float
    """Of a training step in which no gradient flows on into the host."""
    blended: float
    """Of a training step in which it does."""


class CostTable:
    """FLOPs of hosts of one design, for one sample."""

    def __init__(self, host: nn.Module, sample: Tensor, *, like: CostTable | None = None) -> None:
        """Count a host's work.

        Args:
            host: A host with empty slots.
            sample: A few samples of its input.
            like: The table of a host with the same slots, whose seeds are counted already.
        """
        self.host_forward = forward_flops(host, sample) / len(sample)
        self.host_training = training_step_flops(host, sample) / len(sample)
        self.host_parameters = count_parameters(host)
        """Parameters of the host without seeds."""
        self.slot_sizes: tuple[SlotSize, ...] = tuple(map(size_of, slots(host).values()))
        """What passes through each slot of the host, and how large its blocks are."""
        self._sites = {site.name: site for site in slots(host).sites}
        self._lives = slots(host).lives
        self._count = cache(self._count_seed)
        if like is not None and like._sites == self._sites:
            self._count = like._count

    def seed_work(self, slot: str, blueprint: str, is_gated: bool) -> SeedWork:
        """Return the FLOPs of a seed, gate included."""
        return self._count(slot, blueprint, is_gated)[0]

    def seed_parameters(self, slot: str, blueprint: str, is_gated: bool) -> int:
        """Return the parameters of a seed, gate included."""
        return self._count(slot, blueprint, is_gated)[1]

    def training_flops(self, lives: SlotLives) -> float:
        """Return what learning from one sample costs a host in this state."""
        total = self.host_training
        for name, life in lives.items():
            if life.stage == Stage.TRAINING:
                total += self._work(name, life).isolated
            elif life.counts:
                total += self._work(name, life).blended
        return total

    def evaluation_flops(
        self, lives: SlotLives, without_slot: str | None = None, *, committed_only: bool = False
    ) -> float:
        """Return what judging one sample costs a host in this state."""
        total = self.host_forward
        for name, life in lives.items():
            is_left_out = committed_only and life.is_growing
            if life.counts and name != without_slot and not is_left_out:
                total += self._work(name, life).forward
        return total

    def _work(self, slot: str, life: SlotLife) -> SeedWork:
        is_gated = life.style == BlendStyle.LEARNED_GATE
        return self.seed_work(slot, life.blueprint, is_gated)

    def _count_seed(self, slot: str, blueprint: str, is_gated: bool) -> tuple[SeedWork, int]:
        """Count the FLOPs and parameters of a seed of a blueprint by building one."""
        site = self._sites[slot]
        place = SeedSlot(site, nn.Identity(), self._lives)
        style = BlendStyle.LEARNED_GATE if is_gated else BlendStyle.ADD_LINEAR
        with torch.random.fork_rng(devices=[]):
            place.plant(blueprint, style)
        shape = site.output_shape if place.form == SeedForm.SERIAL else site.input_shape
        assert shape is not None

        def work(needs_grad: bool | None) -> float:
            modules = [(place.seed, shape), (place.gate, site.output_shape)]
            pairs = [(module, size) for module, size in modules if module is not None]
            return sum(_count(module, size, needs_grad) for module, size in pairs) / shape[0]

        n_parameters = sum(parameter.numel() for parameter in place.seed_parameters())
        return SeedWork(work(None), work(False), work(True)), n_parameters


def _count(module: nn.Module, shape: tuple[int, ...], needs_grad: bool | None) -> int:
    """Count a module's forward pass (None), or with its backward pass, into the input or not."""
    x = torch.zeros(shape, requires_grad=bool(needs_grad))
    if needs_grad is None:
        with torch.no_grad():
            return count_flops(lambda: module(x))
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    wanted = [*learning, *([x] if needs_grad else [])]

    def step() -> None:
        # The counter cannot follow a gradient to a module's input that nothing was done to.
        output = module(x * 1.0)
        if output.requires_grad:
            torch.autograd.grad(output.sum(), wanted, allow_unused=True)

    return count_flops(step)
