"""Log-probabilities and entropies of factored actions: one masked softmax over all heads at once.

Shapes: ``N`` steps, ``H`` heads, ``P`` choices of all heads side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.errors import NoLegalActionError, NonFiniteError
from esper.simic.policy.action_spec import ActionSpec, relevance_table
from esper.simic.policy.masks import LOWEST, ChoiceMasks, HeadLayout, LegalChoices, layout_of

# exp() leaves its fast path near its underflow. Anything this far below a head's best choice
# has a probability of nothing, and an illegal choice is set to exactly 0 after it.
_NEGLIGIBLE = -80.0


def masked_log_softmax(logits: Tensor, legal: LegalChoices) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (finite everywhere) and probabilities of each head, ``[P, N]``.

    Illegal logits meet the ceiling, so that what the network put there has no influence and
    nothing non-finite arises; their probability is exactly 0.
    """
    layout = legal.layout
    bounded = torch.minimum(logits, legal.ceiling)
    shifted = bounded.sub_(layout.spread(layout.best(bounded))).clamp_(min=LOWEST)
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
        layout, actions = legal.layout, actions.contiguous()
        log_p, p = masked_log_softmax(logits.to(legal.weight.dtype).contiguous(), legal)
        taken = log_p.gather(0, actions + layout.starts)
        entropy = layout.total(p * log_p).neg_()
        ctx.save_for_backward(log_p, p, entropy, actions)
        ctx.layout, ctx.logits_dtype = layout, logits.dtype
        return taken, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, None, None]:
        """Return the gradient of the logits, ``[P, N]``."""
        log_p, p, entropy, actions = ctx.saved_tensors
        d_taken, d_entropy = gradients
        layout: HeadLayout = ctx.layout
        slope = log_p.mul(layout.spread(d_entropy))
        slope.add_(layout.spread(torch.addcmul(d_taken, entropy, d_entropy)))
        d_logits = slope.mul_(p).neg_().scatter_add_(0, actions + layout.starts, d_taken)
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
    padded = logits.detach().float().index_select(1, layout.padded).view(-1, *layout.padded_shape)
    noise = None if generator is None else _exponential_noise(padded, generator)
    legal = masks.legal
    if masks.conditions:
        legal = _apply_conditions(spec, masks, padded, noise)
    probabilities, actions = _draw(padded, legal, noise)
    log_probs = probabilities.gather(-1, actions).squeeze(-1).log_()
    # A head without a legal choice has NaN here, and so has one with non-finite logits.
    if not math.isfinite(log_probs.min()):
        env, head = (int(index) for index in (~torch.isfinite(log_probs)).nonzero()[0])
        _raise_for(spec, env, head, is_not_finite=bool(legal[env, head].any()))
    return actions.squeeze(-1), log_probs, legal


def _draw(logits: Tensor, legal: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return probabilities ``[..., K]`` and a choice ``[..., 1]``: the likeliest without noise.

    With noise, the choice is the winner of an exponential race: if ``E[k]`` is exponentially
    distributed, ``argmin E[k] / p[k]`` is a draw from ``p``. An illegal choice, whose ``p`` is
    exactly 0, never wins.
    """
    p = torch.where(legal, logits, -torch.inf).softmax(dim=-1)
    scores = p if noise is None else p / noise
    return p, scores.argmax(dim=-1, keepdim=True)


def _exponential_noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return positive, exponentially distributed numbers."""
    return torch.rand(like.shape, generator=generator, device=like.device).log_().neg_()


def _apply_conditions(
    spec: ActionSpec, masks: ChoiceMasks, logits: Tensor, noise: Tensor | None
) -> Tensor:
    """Return ``[N, H, K]`` bool: what each head may choose given its parents."""
    legal = masks.legal.clone()
    drawn: dict[int, Tensor] = {}

    def choice_of(head: int) -> Tensor:
        if head not in drawn:
            row_noise = None if noise is None else noise[:, head]
            drawn[head] = _draw(logits[:, head], legal[:, head], row_noise)[1].squeeze(-1)
        return drawn[head]

    for condition in masks.conditions:
        parent, child = condition.parent, condition.child
        allowed = condition.allowed(choice_of(parent))
        if parent != spec.op_index:
            op = choice_of(spec.op_index)
            is_read = relevance_table(spec, op.device)[op, child]
            allowed = allowed | ~is_read.unsqueeze(-1)
        legal[:, child, : allowed.shape[-1]] &= allowed
    return legal


def _raise_for(spec: ActionSpec, env: int, head: int, is_not_finite: bool) -> None:
    """Say why no choice of a head could be drawn."""
    place = f"head {spec.names[head]!r} of environment {env}"
    if is_not_finite:
        raise NonFiniteError(
            f"the logits of {place} are not finite; the policy's weights or the observations hold "
            "NaN or infinity. Check the observations, or lower learning_rate."
        )
    raise NoLegalActionError(
        f"{place} has no legal choice; every head needs at least one "
        "(a head that does not matter may allow all of its choices)."
    )
