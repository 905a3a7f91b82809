"""Slots of many hosts at once: seeds are grouped by blueprint, each with its own stage and alpha.

Shapes: N = hosts that are computed, S = seeds of all groups of a layer.

A slot has a layer for each seed in turn: the first seeds of all hosts are one layer, those that
grow on one fossil the next. A host without a seed in a layer passes through it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from esper.errors import SlotError, blame_user_code
from esper.growth.blending import effective_change
from esper.growth.blueprints import SeedForm
from esper.growth.slot_states import Fossil, SlotLife
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from esper.populations.rows import ActiveRows


class Layer(NamedTuple):
    """The seeds of a slot that grow on the same number of fossils."""

    slot: str
    n_below: int
    """Number of fossils below."""


class GroupKey(NamedTuple):
    """The layer and blueprint of a group of seeds."""

    layer: Layer
    blueprint: str
    units: int
    """Hidden units of the fossils below; 0 if the seed's size does not depend on them."""


class StackedSeed:
    """The seeds of one group as one module."""

    def __init__(
        self,
        form: SeedForm,
        template: nn.Module,
        stack: Callable[[nn.Module, ActiveRows], nn.Module],
    ) -> None:
        """Describe a group by a seed of it and what it reads.

        ``stack`` returns the module that computes the seeds of some rows; it is called on first
        use, because the compiled kernel needs none.
        """
        self.form = form
        self.template = template
        self.rows = ActiveRows()
        self._stack = stack

    @cached_property
    def module(self) -> nn.Module:
        """Computes all seeds of :attr:`rows`."""
        return self._stack(self.template, self.rows)

    def copied(self) -> StackedSeed:
        """Return another group of the same seeds, with rows of its own."""
        return StackedSeed(self.form, self.template, self._stack)

    def run(self, x: Tensor) -> Tensor:
        """Return what each seed adds to its block's output."""
        try:
            return self.module(x)
        except Exception as error:
            blame_user_code(
                SlotError,
                error,
                f"a seed of type {type(self.template).__name__}",
                f"on inputs of shape {list(x.shape)}; fix its blueprint.",
            )


@dataclass
class Member:
    """One host's seed in a slot."""

    position: int
    """Position of its host among those computed."""
    life: SlotLife | Fossil

    @property
    def is_isolated(self) -> bool:
        """Whether the seed trains in isolation."""
        return isinstance(self.life, SlotLife) and self.life.stage == Stage.TRAINING


class LayerGroups:
    """The groups of one layer: the hosts of their seeds, and how each seed is blended."""

    def __init__(
        self,
        groups: Sequence[tuple[StackedSeed, Sequence[Member]]],
        n_hosts: int,
        gate: nn.Module | None,
    ) -> None:
        """Collect the seeds of groups, none of which may be empty, and their learned gates."""
        self.gate = gate
        self.seeds = [seed for seed, _ in groups]
        self.sizes = [len(members) for _, members in groups]
        members = list(chain.from_iterable(members for _, members in groups))
        positions = [member.position for member in members]
        lives = [member.life for member in members]
        self.positions = None if positions == list(range(n_hosts)) else torch.tensor(positions)
        """``[S]`` position of each seed's host; None if they are all hosts in order."""
        isolated = [member.is_isolated for member in members]
        self.is_isolated = torch.tensor(isolated) if any(isolated) else None
        """``[S]`` which seeds train in isolation; None if none does."""
        self.is_all_isolated = all(isolated)
        blended = [index for index, flag in enumerate(isolated) if not flag]
        self.blended = torch.tensor(blended) if any(isolated) else None
        """Indices of the blended seeds; None if all are."""
        self.blended_positions = torch.tensor([positions[index] for index in blended])
        """Positions of their hosts."""
        self.alphas = torch.tensor([lives[index].alpha for index in blended], dtype=torch.float64)
        """Their alphas."""
        weights = [1.0 if flag else x.alpha for flag, x in zip(isolated, lives, strict=True)]
        self.weights = torch.tensor(weights, dtype=torch.float64)
        """``[S]`` weight of each seed in the backward pass."""
        multiplies = [life.style == BlendStyle.MULTIPLY_LINEAR for life in lives]
        self.multiplies = torch.tensor(multiplies) if any(multiplies) else None
        """``[S]`` which seeds scale the output; None if none does."""
        gated = [i for i, life in enumerate(lives) if life.style == BlendStyle.LEARNED_GATE]
        gated.sort(key=lambda index: positions[index])
        self.gated = torch.tensor(gated) if gated else None
        """Indices of the seeds with a learned gate, in host order; None if there are none."""
        reads_output = any(seed.form == SeedForm.SERIAL for seed in self.seeds)
        self.reads_output = reads_output or any(multiplies) or bool(gated)
        self.reads_input = any(seed.form == SeedForm.PARALLEL for seed in self.seeds)

    def pick(self, tensor: Tensor) -> Tensor:
        """Return the entries ``[S, ...]`` of a tensor ``[N, ...]`` that belong to the seeds' hosts.

        No gradient flows from it into hosts whose seed is isolated.
        """
        own = tensor if self.positions is None else tensor.index_select(0, self.positions)
        if self.is_isolated is None or not own.requires_grad:
            return own
        if self.is_all_isolated:
            return own.detach()
        return torch.where(_broadcast(self.is_isolated, own), own.detach(), own)


class StackedSlot(nn.Module):
    """A stacked block and the layers of seeds that grow on it."""

    def __init__(self) -> None:
        super().__init__()
        self.block: nn.Module
        self.layers: list[LayerGroups] = []
        """The groups of each layer in the current computation, from the block outwards."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, changed by each host's seeds according to their stages."""
        y = self.block(x)
        for groups in self.layers:
            if groups.is_all_isolated and not torch.is_grad_enabled():
                continue
            change = self._compute_changes(groups, x, y)
            if groups.is_isolated is not None:
                y = cast(Tensor, _StackedBlend.apply(y, change, groups))
            else:
                y = _add_changes(y, change, groups)
        return y

    def _compute_changes(self, groups: LayerGroups, x: Tensor, y: Tensor) -> Tensor:
        """Return what each seed adds to its block's output at alpha 1, ``[S, ...]``."""
        own_y = groups.pick(y) if groups.reads_output else y
        own_x = groups.pick(x) if groups.reads_input else x
        unused = (y,) * len(groups.sizes)
        from_y = torch.split(own_y, groups.sizes) if groups.reads_output else unused
        from_x = torch.split(own_x, groups.sizes) if groups.reads_input else unused
        delta = _join(
            seed.run(by_y if seed.form == SeedForm.SERIAL else by_x)
            for seed, by_y, by_x in zip(groups.seeds, from_y, from_x, strict=True)
        )
        change = delta
        if groups.multiplies is not None:
            scaled = effective_change(BlendStyle.MULTIPLY_LINEAR, own_y, delta, None)
            change = torch.where(_broadcast(groups.multiplies, delta), scaled, delta)
        if groups.gated is not None:
            assert groups.gate is not None
            gated_y = own_y.index_select(0, groups.gated)
            gated = delta.index_select(0, groups.gated)
            gate = groups.gate(gated_y)
            gated = effective_change(BlendStyle.LEARNED_GATE, gated_y, gated, gate)
            change = change.index_copy(0, groups.gated, gated)
        return change


class _StackedBlend(torch.autograd.Function):
    """Adds the changes of blended seeds; isolated seeds get the gradient of alpha 1."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, change: Tensor, groups: LayerGroups) -> Tensor:
        ctx.groups = groups
        # Isolated seeds must not affect the output, even if theirs is not finite.
        if groups.is_all_isolated:
            return y.clone()
        return _add_changes(y, change.index_select(0, cast(Tensor, groups.blended)), groups)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        groups: LayerGroups = ctx.groups
        grad = grads[0]
        own = grad if groups.positions is None else grad.index_select(0, groups.positions)
        return grad, own * _broadcast(groups.weights.to(own.dtype), own), None


def _add_changes(y: Tensor, change: Tensor, groups: LayerGroups) -> Tensor:
    """Add the changes of blended seeds times their alphas to ``y``."""
    scaled = change * _broadcast(groups.alphas.to(y.dtype), change)
    return y.index_add(0, groups.blended_positions, scaled)


def _join(tensors: Iterable[Tensor]) -> Tensor:
    parts = list(tensors)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _broadcast(numbers: Tensor, like: Tensor) -> Tensor:
    """Return one number per seed in a shape that broadcasts over the other axes of ``like``."""
    return numbers.view(-1, *(1,) * (like.ndim - 1))
