"""The distribution of a factored action: one masked softmax over all heads at once.

Shapes: ``N`` steps or environments, ``H`` heads, ``K`` choices of the widest head, ``P`` logits of
all heads side by side (``P = sum(sizes)``). What the update works on has the steps last,
``[P, N]``, so that everything runs along whole vectors of steps; heads are padded to one width,
``[H, K, N]``, only where their largest logit is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.errors import NonFiniteError
from esper.lifecycle.action_spec import ActionSpec, relevance_table
from esper.tamiyo.policy.choice_masks import ChoiceMasks

# exp() leaves its fast path near its underflow. Anything this far below a head's best choice
# has a probability of nothing, and an illegal choice is set to exactly 0 after it.
_NEGLIGIBLE = -80.0

# The logit of an illegal choice: below any other, and its products with gradients stay finite.
_LOWEST = -1.0e9


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
        self.head_of = torch.tensor(head_of, device=device)
        """``[P]``: the head of each logit."""
        self.membership = torch.zeros(spec.n_heads, len(head_of), dtype=dtype, device=device)
        """``[H, P]``: 1 where a logit belongs to a head; a product with it sums over choices."""
        self.membership[self.head_of, torch.arange(len(head_of), device=device)] = 1.0

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
    """The legal choices of stored steps, in the two forms that the softmax reads."""

    layout: HeadLayout

    ceiling: Tensor
    """``[P, N]``: what a logit may at most be, the largest number where legal, else very low."""

    weight: Tensor
    """``[P, N]``: 1 where legal and else 0."""

    @classmethod
    def of(cls, spec: ActionSpec, legal: Tensor, dtype: torch.dtype) -> LegalChoices:
        """Lay out masks ``[N, H, K]``; the dtype is what log-probabilities are computed in."""
        layout = layout_of(spec, legal.device, dtype)
        rows = legal.flatten(1).t().index_select(0, layout.place)
        weight = rows.to(dtype)
        return cls(layout, weight * torch.finfo(dtype).max + _LOWEST, weight)


def masked_log_softmax(logits: Tensor, legal: LegalChoices) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (finite everywhere) and probabilities of each head, ``[P, N]``.

    Illegal logits meet the ceiling, so that what the network put there has no influence and
    nothing non-finite arises; their probability is exactly 0.
    """
    layout = legal.layout
    bounded = torch.minimum(logits, legal.ceiling)
    shifted = bounded.sub_(layout.spread(layout.best(bounded))).clamp_(min=_LOWEST)
    weights = shifted.clamp(min=_NEGLIGIBLE).exp_().mul_(legal.weight)
    total = layout.total(weights)
    return shifted.sub_(layout.spread(total.log())), weights.div_(layout.spread(total))


class _LogProbAndEntropy(torch.autograd.Function):
    """Log-probability of the taken choices and entropy of each head, with its own gradient.

    With ``p`` the probabilities, ``q = log p`` and ``h`` the entropy of a head,

        d log p[a] / d logit[k] = [k = a] - p[k]
        d h        / d logit[k] = -p[k] * (q[k] + h)

    so an illegal choice, whose ``p`` is exactly 0, gets a gradient of exactly 0.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, legal: LegalChoices, actions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take logits ``[P, N]`` and actions ``[H, N]``; return two ``[H, N]``."""
        layout = legal.layout
        log_p, p = masked_log_softmax(logits.to(legal.weight.dtype), legal)
        chosen = actions + layout.starts
        taken = log_p.gather(0, chosen)
        entropy = layout.total(p * log_p).neg_()
        ctx.save_for_backward(log_p, p, entropy, chosen)
        ctx.layout, ctx.logits_dtype = layout, logits.dtype
        return taken, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, None, None]:
        """Return the gradient of the logits, ``[P, N]``."""
        log_p, p, entropy, chosen = ctx.saved_tensors
        layout: HeadLayout = ctx.layout
        d_taken, d_entropy = gradients
        slope = log_p.mul(layout.spread(d_entropy))
        slope.add_(layout.spread(torch.addcmul(d_taken, entropy, d_entropy)))
        d_logits = slope.mul_(p).neg_().scatter_add_(0, chosen, d_taken)
        return d_logits.to(ctx.logits_dtype), None, None


def evaluate_actions(logits: Tensor, legal: LegalChoices, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability and the entropy of every head, both ``[N, H]``.

    Args:
        logits: ``[N, P]`` logits of all heads side by side.
        legal: The choices that were legal given what was drawn before them.
        actions: ``[N, H]`` integer, the choices that were taken.
    """
    apply = cast(Callable[..., tuple[Tensor, Tensor]], _LogProbAndEntropy.apply)
    taken, entropy = apply(logits.t(), legal, actions.t())
    return taken.t(), entropy.t()


def draw_actions(
    spec: ActionSpec, logits: Tensor, masks: ChoiceMasks, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the op, then every other head given what it depends on.

    Args:
        spec: The heads.
        logits: ``[N, P]`` logits of all heads side by side.
        masks: The legal choices.
        generator: The source of randomness, or None for the mode: the likeliest op, then the
            likeliest choice of every other head given it.

    Returns:
        actions: ``[N, H]`` int64.
        log_probs: ``[N, H]`` of each choice, among those it was drawn from.
        legal: ``[N, H, K]`` bool, the choices each head was drawn from.

    Raises:
        NoLegalActionError: If a head has no legal choice, naming head and environment.
        NonFiniteError: If the logits are not finite.
    """
    layout = layout_of(spec, logits.device, torch.float32)
    padded = logits.float().index_select(1, layout.padded)
    padded = padded.view(-1, *layout.padded_shape)
    weights = padded.masked_fill(~masks.legal, -torch.inf)
    scores = weights if generator is None else weights - _negated_gumbel_noise(weights, generator)
    legal = masks.legal
    if masks.conditions:
        _apply_conditions(spec, masks, weights, scores)
        legal = weights > -torch.inf
    actions = scores.argmax(dim=-1)
    log_p = torch.log_softmax(weights, dim=-1)
    log_probs = log_p.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    # A head without a legal choice has -inf or NaN here, and so have non-finite logits.
    if not math.isfinite(log_probs.detach().min()):
        masks.require_legal(spec)
        raise NonFiniteError(
            "the policy's logits are not finite; its weights or the observations hold NaN or "
            "infinity. Check the observations, or lower learning_rate."
        )
    return actions, log_probs, legal


def _negated_gumbel_noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return finite noise whose subtraction makes the largest log-weight a draw."""
    uniform = torch.rand(like.shape, generator=generator, device=like.device)
    return uniform.clamp_(min=1e-12).log_().neg_().log_()


def _apply_conditions(
    spec: ActionSpec, masks: ChoiceMasks, weights: Tensor, scores: Tensor
) -> None:
    """Set, in place, log-weights and scores to -inf where a parent's choice rules them out."""
    drawn: dict[int, Tensor] = {}
    for condition in masks.conditions:
        parent, child = condition.parent, condition.child
        if parent not in drawn:
            drawn[parent] = scores[:, parent].argmax(dim=-1)
        ruled_out = ~condition.allowed(drawn[parent])
        if parent != spec.op_index:
            op = scores[:, spec.op_index].argmax(dim=-1)
            ruled_out &= relevance_table(spec, op.device)[op, child].unsqueeze(-1)
        for values in (weights, scores) if scores is not weights else (weights,):
            values[:, child, : ruled_out.shape[-1]].masked_fill_(ruled_out, -torch.inf)
