"""Where the choices of all heads stand, side by side and padded, and which of them are legal.

Shapes: ``N`` steps, ``H`` heads, ``K`` choices of the widest head, ``O`` ops, ``P`` choices of all
heads side by side (``P = sum(sizes)``). What the update works on has the steps last, ``[P, N]``, so
that everything runs along whole vectors of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from esper.lifecycle.action_spec import ActionSpec, relevance_table

# The logit of an illegal choice: below any other, and its products with gradients stay finite.
LOWEST = -1.0e9


class HeadLayout:
    """Where the logits of each head stand when all heads are side by side, and when padded."""

    def __init__(self, spec: ActionSpec, device: torch.device, dtype: torch.dtype) -> None:
        starts = [sum(spec.sizes[:head]) for head in range(spec.n_heads)]
        head_of = [head for head, size in enumerate(spec.sizes) for _ in range(size)]
        heads = list(zip(starts, spec.sizes, strict=True))
        padded = [
            start + (k if k < size else 0) for start, size in heads for k in range(spec.n_choices)
        ]
        self.padded_shape = (spec.n_heads, spec.n_choices)
        self.padded = torch.tensor(padded, device=device)
        """``[H * K]``: the logit that each padded choice shows; padding shows its head's first."""
        place = [
            head * spec.n_choices + k for head, (_, size) in enumerate(heads) for k in range(size)
        ]
        self.place = torch.tensor(place, device=device)
        """``[P]``: the padded choice that shows each logit."""
        self.starts = torch.tensor(starts, device=device).unsqueeze(1)
        """``[H, 1]``: the first logit of each head."""
        self.sizes = torch.tensor(spec.sizes, device=device)
        """``[H]``: how many choices each head has."""
        self.head_of = torch.tensor(head_of, device=device)
        """``[P]``: the head of each logit."""
        self.membership = torch.zeros(spec.n_heads, len(head_of), dtype=dtype, device=device)
        """``[H, P]``: 1 where a logit belongs to a head; a product with it sums over choices."""
        self.membership[self.head_of, torch.arange(len(head_of), device=device)] = 1.0
        self._relevance = relevance_table(spec, device)
        shape = [spec.n_heads, spec.n_choices, len(spec.relevance), spec.op_index]
        tables = [self.sizes, self.starts, self._relevance]
        self._draw_plan = torch.tensor([*shape, *(table.data_ptr() for table in tables)])
        self.draw_plan_address = self._draw_plan.data_ptr()
        """Where the C kernel finds what drawing needs."""

    def best(self, values: Tensor) -> Tensor:
        """Return the largest of each head's values: ``[P, N]`` to ``[H, N]``."""
        padded = values.index_select(0, self.padded)
        return padded.view(*self.padded_shape, -1).amax(dim=1)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of each head's values: ``[P, N]`` to ``[H, N]``."""
        return self.membership @ values

    def spread(self, by_head: Tensor) -> Tensor:
        """Return each head's number for all of its choices: ``[H, N]`` to ``[P, N]``."""
        return by_head.index_select(0, self.head_of)


@lru_cache(maxsize=64)
def layout_of(spec: ActionSpec, device: torch.device, dtype: torch.dtype) -> HeadLayout:
    """Return the layout of a specification on a device; made once."""
    return HeadLayout(spec, device, dtype)


@dataclass(frozen=True)
class LegalChoices:
    """The legal choices of stored steps, as the softmax reads them."""

    layout: HeadLayout

    weight: Tensor
    """``[P, N]``: 1 where legal and else 0."""

    @cached_property
    def ceiling(self) -> Tensor:
        """``[P, N]``: what a logit may at most be: anything where legal, else very low."""
        return torch.full_like(self.weight, LOWEST).masked_fill_(self.weight > 0, torch.inf)

    @classmethod
    def of(cls, spec: ActionSpec, legal: Tensor, dtype: torch.dtype) -> LegalChoices:
        """Lay out masks ``[N, H, K]``; the dtype is what log-probabilities are computed in."""
        layout = layout_of(spec, legal.device, dtype)
        rows = legal.flatten(1).t().index_select(0, layout.place)
        return cls(layout, rows.to(dtype))
