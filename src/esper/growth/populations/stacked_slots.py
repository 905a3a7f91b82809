"""Slots of many hosts at once: hosts are grouped by blueprint, each at its own stage and alpha.

Shapes: N = hosts that are computed, G = hosts of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from esper.growth.blending import effective_change
from esper.growth.blueprints import SeedForm
from esper.growth.populations.rows import ActiveRows
from esper.growth.slot_lives import SlotLife
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage

GROUP_STYLE: dict[BlendStyle, BlendStyle] = {
    BlendStyle.ADD_LINEAR: BlendStyle.ADD_LINEAR,
    BlendStyle.ADD_SIGMOID: BlendStyle.ADD_LINEAR,
    BlendStyle.MULTIPLY_LINEAR: BlendStyle.MULTIPLY_LINEAR,
    BlendStyle.LEARNED_GATE: BlendStyle.LEARNED_GATE,
}
"""The style that stands for all styles which compute the same."""


@dataclass(frozen=True)
class GroupKey:
    """What the seeds of a group have in common."""

    slot: str
    blueprint: str
    style: BlendStyle


class StackedSeed:
    """The seeds of one group as one module, with its gate if the style has one."""

    def __init__(
        self, key: GroupKey, form: SeedForm, seed: nn.Module, gate: nn.Module | None
    ) -> None:
        self.key = key
        self.form = form
        self.seed = seed
        self.gate = gate
        self.seed_rows = ActiveRows()
        self.gate_rows = ActiveRows()


class Membership:
    """Which of the hosts that are computed belong to a group, and how strongly each seed counts."""

    def __init__(self, seed: StackedSeed, rows: list[int], n_hosts: int, lives: list[SlotLife]):
        self.seed = seed
        self.rows = None if len(rows) == n_hosts else torch.tensor(rows, dtype=torch.int64)
        """Places of the group's hosts among those computed; None if it is all of them."""
        isolated = np.array([life.stage == Stage.TRAINING for life in lives])
        self.is_isolated = torch.from_numpy(isolated)
        self.alphas = torch.tensor([life.alpha for life in lives], dtype=torch.float64)
        """``[G]`` how strongly each seed counts in the output; 0 while it learns in isolation."""
        self.weights = torch.where(self.is_isolated, 1.0, self.alphas)
        """``[G]`` how strongly each seed counts in the gradient."""
        self.n_isolated = int(isolated.sum())

    @property
    def is_all_isolated(self) -> bool:
        """Whether no seed of the group changes an output."""
        return self.n_isolated == len(self.alphas)

    def pick(self, tensor: Tensor) -> Tensor:
        """Return the group's part of a tensor whose first axis is the hosts'."""
        return tensor if self.rows is None else tensor.index_select(0, self.rows)

    def cut(self, tensor: Tensor) -> Tensor:
        """Return the group's tensor with no gradient flowing into hosts whose seed is isolated."""
        if self.n_isolated == 0 or not tensor.requires_grad:
            return tensor
        if self.is_all_isolated:
            return tensor.detach()
        return torch.where(_spread(self.is_isolated, tensor), tensor.detach(), tensor)


class StackedSlot(nn.Module):
    """A stacked block and the groups of seeds that grow there."""

    def __init__(self) -> None:
        super().__init__()
        self.block: nn.Module
        self.members: list[Membership] = []
        """The groups that take part in the present computation."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, changed by each host's seed as its stage says."""
        y = self.block(x)
        for member in self.members:
            if torch.is_grad_enabled() or not member.is_all_isolated:
                y = _grow(member, x, y)
        return y


def _grow(member: Membership, x: Tensor, y: Tensor) -> Tensor:
    stacked = member.seed
    own_y = member.cut(member.pick(y))
    source = own_y if stacked.form == SeedForm.SERIAL else member.cut(member.pick(x))
    gate = None if stacked.gate is None else stacked.gate(own_y)
    change = effective_change(stacked.key.style, own_y, stacked.seed(source), gate)
    return cast(Tensor, _StackedBlend.apply(y, change, member))


class _StackedBlend(torch.autograd.Function):
    """Adds each host's share of its seed's change; isolated seeds get the gradient of alpha 1."""

    @staticmethod
    def forward(y: Tensor, change: Tensor, member: Membership) -> Tensor:
        alphas = _spread(member.alphas.to(y.dtype), change)
        # A seed that does not count must not reach the output, whatever numbers it gives.
        share = change * alphas
        if member.n_isolated:
            share = torch.where(alphas > 0, share, 0.0)
        return y + share if member.rows is None else y.index_add(0, member.rows, share)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Membership], output: Tensor) -> None:
        ctx.member = inputs[2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        member: Membership = ctx.member
        own = member.pick(grads[0])
        return grads[0], own * _spread(member.weights.to(own.dtype), own), None


def _spread(numbers: Tensor, like: Tensor) -> Tensor:
    """Return one number for each host, to be spread over the other axes."""
    return numbers.view(-1, *(1,) * (like.ndim - 1))
