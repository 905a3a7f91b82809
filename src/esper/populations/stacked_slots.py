"""Slots of many hosts at once: hosts are grouped by blueprint, each at its own stage and alpha.

Shapes: N = hosts that are computed, G = hosts of a group, S = hosts of all groups of a slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.growth.blending import effective_change
from esper.growth.blueprints import SeedForm
from esper.growth.slot_lives import SlotLife
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from esper.populations.rows import ActiveRows


@dataclass(frozen=True)
class GroupKey:
    """What the seeds of a group have in common."""

    slot: str
    blueprint: str
    """The largest blueprint of the group's family."""


class StackedSeed:
    """The seeds of one group as one module."""

    def __init__(self, form: SeedForm, template: nn.Module) -> None:
        self.form = form
        self.template = template
        """The seed whose tensors all seeds of the group are corners of."""
        self.rows = ActiveRows()
        self.module: nn.Module = template
        """Computes all seeds, from :attr:`rows`."""


@dataclass
class Member:
    """One host's seed in a slot."""

    place: int
    """Of its host among those computed."""
    life: SlotLife


class SlotGroups:
    """The groups of one slot: whose hosts they are, and how strongly each seed counts."""

    def __init__(
        self, groups: Sequence[tuple[StackedSeed, Sequence[Member]]], n_hosts: int
    ) -> None:
        """Note who grows; ``groups`` are not empty."""
        self.seeds = [seed for seed, _ in groups]
        self.sizes = [len(members) for _, members in groups]
        members = list(chain.from_iterable(members for _, members in groups))
        places = [member.place for member in members]
        lives = [member.life for member in members]
        self.places = None if places == list(range(n_hosts)) else torch.tensor(places)
        """``[S]`` of the hosts among those computed, group after group; None if all in order."""
        isolated = [life.stage == Stage.TRAINING for life in lives]
        self.is_isolated = torch.tensor(isolated) if any(isolated) else None
        """``[S]`` which seeds learn in isolation; None if none does."""
        self.is_all_isolated = all(isolated)
        counting = [index for index, flag in enumerate(isolated) if not flag]
        self.counting = torch.tensor(counting) if any(isolated) else None
        """Which of the S seeds count in the output, in their order; None if all do."""
        self.counting_places = torch.tensor([places[index] for index in counting])
        """Of their hosts among those computed."""
        self.alphas = torch.tensor([lives[index].alpha for index in counting], dtype=torch.float64)
        """How strongly each of them counts."""
        weights = [1.0 if flag else x.alpha for flag, x in zip(isolated, lives, strict=True)]
        self.weights = torch.tensor(weights, dtype=torch.float64)
        """``[S]`` how strongly each seed counts in the gradient."""
        multiplies = [life.style == BlendStyle.MULTIPLY_LINEAR for life in lives]
        self.multiplies = torch.tensor(multiplies) if any(multiplies) else None
        """``[S]`` which seeds scale the output; None if none does."""
        gated = [i for i, life in enumerate(lives) if life.style == BlendStyle.LEARNED_GATE]
        gated.sort(key=lambda index: places[index])
        self.gated = torch.tensor(gated) if gated else None
        """Which of the S seeds have a learned gate, in the order of hosts; None if none has."""
        reads_output = any(seed.form == SeedForm.SERIAL for seed in self.seeds)
        self.reads_output = reads_output or any(multiplies) or bool(gated)
        self.reads_input = any(seed.form == SeedForm.PARALLEL for seed in self.seeds)

    def pick(self, tensor: Tensor) -> Tensor:
        """Return the part of the S hosts of a tensor whose first axis is that of all.

        No gradient flows from it into hosts whose seed is isolated.
        """
        own = tensor if self.places is None else tensor.index_select(0, self.places)
        if self.is_isolated is None or not own.requires_grad:
            return own
        if self.is_all_isolated:
            return own.detach()
        return torch.where(_spread(self.is_isolated, own), own.detach(), own)


class StackedSlot(nn.Module):
    """A stacked block and the groups of seeds that grow there."""

    def __init__(self) -> None:
        super().__init__()
        self.block: nn.Module
        self.gate: nn.Module | None = None
        """Computes the learned gates of the hosts that have one, once there is one."""
        self.groups: SlotGroups | None = None
        """The groups that take part in the present computation; None if there are none."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, changed by each host's seed as its stage says."""
        y = self.block(x)
        groups = self.groups
        if groups is None or (groups.is_all_isolated and not torch.is_grad_enabled()):
            return y
        change = self._propose(groups, x, y)
        if groups.is_isolated is not None:
            return cast(Tensor, _StackedBlend.apply(y, change, groups))
        return _add_share(y, change, groups)

    def _propose(self, groups: SlotGroups, x: Tensor, y: Tensor) -> Tensor:
        """Return what each seed at alpha 1 adds to its block's output, ``[S, ...]``."""
        own_y = groups.pick(y) if groups.reads_output else y
        own_x = groups.pick(x) if groups.reads_input else x
        nothing = (y,) * len(groups.sizes)
        from_y = torch.split(own_y, groups.sizes) if groups.reads_output else nothing
        from_x = torch.split(own_x, groups.sizes) if groups.reads_input else nothing
        delta = _join(
            seed.module(by_y if seed.form == SeedForm.SERIAL else by_x)
            for seed, by_y, by_x in zip(groups.seeds, from_y, from_x, strict=True)
        )
        change = delta
        if groups.multiplies is not None:
            scaled = effective_change(BlendStyle.MULTIPLY_LINEAR, own_y, delta, None)
            change = torch.where(_spread(groups.multiplies, delta), scaled, delta)
        if groups.gated is not None:
            assert self.gate is not None
            gated_y = own_y.index_select(0, groups.gated)
            gated = delta.index_select(0, groups.gated)
            gated = effective_change(BlendStyle.LEARNED_GATE, gated_y, gated, self.gate(gated_y))
            change = change.index_copy(0, groups.gated, gated)
        return change


class _StackedBlend(torch.autograd.Function):
    """Adds each host's share of its seed's change; isolated seeds get the gradient of alpha 1."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, change: Tensor, groups: SlotGroups) -> Tensor:
        ctx.groups = groups
        # A seed that does not count must not reach the output, whatever numbers it gives.
        if groups.is_all_isolated:
            return y.clone()
        return _add_share(y, change.index_select(0, cast(Tensor, groups.counting)), groups)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        groups: SlotGroups = ctx.groups
        grad = grads[0]
        own = grad if groups.places is None else grad.index_select(0, groups.places)
        return grad, own * _spread(groups.weights.to(own.dtype), own), None


def _add_share(y: Tensor, change: Tensor, groups: SlotGroups) -> Tensor:
    """Add to ``y`` what the seeds that count propose, each as strongly as its alpha says."""
    share = change * _spread(groups.alphas.to(y.dtype), change)
    return y.index_add(0, groups.counting_places, share)


def _join(tensors: Iterable[Tensor]) -> Tensor:
    parts = list(tensors)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _spread(numbers: Tensor, like: Tensor) -> Tensor:
    """Return one number for each host, to be spread over the other axes."""
    return numbers.view(-1, *(1,) * (like.ndim - 1))
