"""Which choices of a factored action are legal, alone and given other choices.

Shapes: ``B`` environments, ``H`` heads, ``K`` choices of the widest head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from esper.simic.policy.action_spec import ActionSpec, all_choices
from esper.simic.tensors import to_device


@dataclass(frozen=True)
class Condition:
    """The choices of one head that are legal given the choice of another.

    Given the op, it always binds (an op that does not read the child should allow all of it).
    Given any other head, it binds only at steps whose op reads the child.
    """

    child: int
    """Column of the head that is restricted."""

    parent: int
    """Column of the head whose choice restricts it; drawn before the child."""

    table: Tensor
    """``[B, parent choices, child choices]`` or ``[parent choices, child choices]`` bool."""

    def allowed(self, parent_choice: Tensor) -> Tensor:
        """Return the child's legal choices ``[B, child choices]`` for parent choices ``[B]``."""
        if self.table.ndim == 2:
            return self.table[parent_choice]
        index = parent_choice.view(-1, 1, 1).expand(-1, 1, self.table.shape[-1])
        return self.table.gather(1, index).squeeze(1)


@dataclass(frozen=True)
class ChoiceMasks:
    """The legal choices of a batch of environments."""

    legal: Tensor
    """``[B, H, K]`` bool: choices that some legal action contains. Padding is False."""

    conditions: tuple[Condition, ...] = ()
    """What the choice of one head rules out in another. Those given the op come first, and one
    whose parent is itself restricted comes after the one that restricts it."""

    is_padded: bool = False
    """Whether padding is known to be False."""

    def to(self, device: torch.device) -> ChoiceMasks:
        """Return masks that are on the host on a device."""
        if device.type == "cpu" or not self.legal.is_cpu:
            return self
        conditions = [replace(one, table=to_device(one.table, device)) for one in self.conditions]
        return replace(self, legal=to_device(self.legal, device), conditions=tuple(conditions))


def join_masks(parts: Sequence[ChoiceMasks]) -> ChoiceMasks:
    """Return masks of several batches, whose conditions are on the same heads, as those of one."""
    tables = [
        [c.table.expand(len(part.legal), *c.table.shape[-2:]) for c in part.conditions]
        for part in parts
    ]
    conditions = [
        Condition(first.child, first.parent, torch.cat(same))
        for first, *same in zip(parts[0].conditions, *tables, strict=True)
    ]
    return ChoiceMasks(torch.cat([part.legal for part in parts]), tuple(conditions))


@lru_cache(maxsize=64)
def every_choice(spec: ActionSpec, device: torch.device, batch: int) -> ChoiceMasks:
    """Return masks of a batch of environments in which everything is legal."""
    legal = all_choices(spec, device).expand(batch, -1, -1).contiguous()
    return ChoiceMasks(legal, is_padded=True)


# The logit of an illegal choice: below any other, and its products with gradients stay finite.
LOWEST = -1.0e9


class HeadLayout:
    """Where the logits of each head stand when all heads are side by side, and when padded."""

    def __init__(self, spec: ActionSpec, device: torch.device) -> None:
        self.spec = spec
        starts = [sum(spec.sizes[:head]) for head in range(spec.n_discrete)]
        heads = list(zip(starts, spec.sizes, strict=True))
        padded = [
            start + (k if k < size else 0) for start, size in heads for k in range(spec.n_choices)
        ]
        self.has_padding = len(set(spec.sizes)) > 1
        self.padded = torch.tensor(padded, dtype=torch.int64, device=device)
        """``[D * K]``: the logit that each padded choice shows; padding shows its head's first."""
        self.sizes = torch.tensor(spec.sizes, dtype=torch.int64)
        """``[D]``: choices of each head, on the CPU."""
        self.relevance = None if spec.is_independent else torch.tensor(spec.relevance)
        """``[ops, all heads]`` bool on the CPU; None if every head always matters."""
        self.starts = torch.tensor(starts, dtype=torch.int64, device=device)
        """``[D]``: the first logit of each head."""

    def pad(self, logits: Tensor) -> Tensor:
        """Return logits ``[N, P]`` as ``[N, D, K]``; padding shows its head's first."""
        padded = logits.index_select(1, self.padded) if self.has_padding else logits
        return padded.view(-1, self.spec.n_discrete, self.spec.n_choices)


@lru_cache(maxsize=64)
def layout_of(spec: ActionSpec, device: torch.device) -> HeadLayout:
    """Return the layout of a specification on a device; made once."""
    return HeadLayout(spec, device)
