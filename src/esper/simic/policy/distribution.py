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

try:
    from esper.simic.policy import _draw as _kernel
except ImportError:
    _kernel = None

from esper.errors import NoLegalActionError, NonFiniteError
from esper.simic.policy.action_spec import ActionSpec, relevance_table
from esper.simic.policy.masks import LOWEST, ChoiceMasks, HeadLayout, LegalChoices, layout_of

# exp() leaves its fast path near its underflow. Anything this far below a head's best choice
# has a probability of nothing, and an illegal choice is set to exactly 0 after it.
_NEGLIGIBLE = -80.0


def masked_log_softmax(logits: Tensor, legal: LegalChoices) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (finite everywhere) and probabilities of each head, ``[P, N]``.

    Illegal logits meet the ceiling, so that what the network put there has no influence and
    nothing non-finite arises; their exponential counts as exactly 0.
    """
    layout = legal.layout
    if legal.is_everything and layout.is_single:
        log_p = torch.log_softmax(logits, dim=0)
        return log_p, log_p.exp()
    bounded = logits.clone() if legal.is_everything else torch.minimum(logits, legal.ceiling)
    shifted = bounded.sub_(layout.spread(layout.best(bounded))).clamp_(min=LOWEST)
    weights = shifted.clamp(min=_NEGLIGIBLE).exp_()
    if not legal.is_everything:
        weights.mul_(legal.weight)
    total = layout.total(weights)
    return shifted.sub_(layout.spread(total.log())), weights.div_(layout.spread(total))


def log_prob_and_entropy(
    logits: Tensor, legal: LegalChoices, actions: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return log-probability of the taken choices and entropy of each head, ``[H, N]``.

    Args:
        logits: ``[P, N]``.
        legal: The legal choices.
        actions: ``[H, N]`` choices taken.

    Returns:
        Both, and what :func:`log_prob_and_entropy_backward` needs.
    """
    layout = legal.layout
    log_p, p = masked_log_softmax(logits.to(legal.weight.dtype).contiguous(), legal)
    chosen = actions if layout.is_single else actions + layout.starts
    taken = log_p.gather(0, chosen)
    entropy = layout.total(p * log_p).neg_()
    return taken, entropy, (log_p, p, entropy, chosen)


def log_prob_and_entropy_backward(
    layout: HeadLayout,
    saved: tuple[Tensor, ...],
    d_taken: Tensor,
    d_entropy: Tensor | None,
) -> Tensor:
    """Return the gradient ``[P, N]`` of the logits; None stands for a gradient of zero.

    With ``p`` the probabilities, ``q = log p`` and ``h`` the entropy of a head,

        d log p[a] / d logit[k] = [k = a] - p[k]
        d h        / d logit[k] = -p[k] * (q[k] + h)

    so an illegal choice, whose ``p`` is exactly 0, gets a gradient of exactly 0.
    """
    log_p, p, entropy, chosen = saved
    if d_entropy is None:
        d_logits = p.mul(layout.spread(d_taken)).neg_()
    else:
        slope = log_p.mul(layout.spread(d_entropy))
        slope.add_(layout.spread(torch.addcmul(d_taken, entropy, d_entropy)))
        d_logits = slope.mul_(p).neg_()
    return d_logits.scatter_add_(0, chosen, d_taken)


class _LogProbAndEntropy(torch.autograd.Function):
    """The two functions above as one node of autograd."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, legal: LegalChoices, actions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take logits ``[P, N]`` and actions ``[H, N]``; return two ``[H, N]``."""
        ctx.set_materialize_grads(False)
        taken, entropy, saved = log_prob_and_entropy(logits, legal, actions)
        ctx.save_for_backward(*saved)
        ctx.layout, ctx.logits_dtype = legal.layout, logits.dtype
        return taken, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Tensor, None, None]:
        """Return the gradient of the logits, ``[P, N]``."""
        d_taken, d_entropy = gradients
        saved = ctx.saved_tensors
        if d_taken is None:
            d_taken = torch.zeros_like(saved[2])
        d_logits = log_prob_and_entropy_backward(ctx.layout, saved, d_taken, d_entropy)
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
    layout: HeadLayout, logits: Tensor, masks: ChoiceMasks, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the op, then every other head given what it depends on.

    Args:
        layout: The discrete heads.
        logits: ``[N, P]`` logits of all discrete heads side by side.
        masks: The legal choices.
        generator: The source of randomness, or None for the mode: the most likely op, then the
            most likely choice of every other head given it.

    Returns:
        actions: ``[N, D]`` int64.
        log_probs: ``[N, D]`` of each choice, among those it was drawn from.
        legal: ``[N, D, K]`` bool, the choices each head was drawn from.

    Raises:
        NoLegalActionError: If a head has no legal choice, naming head and environment.
        NonFiniteError: If the logits are not finite.
    """
    spec = layout.spec
    uniforms = None
    if generator is not None:
        shape = (logits.shape[0], spec.n_discrete)
        uniforms = torch.rand(shape, generator=generator, device=logits.device)
    if _kernel is None or not logits.is_cpu or logits.dtype is not torch.float32:
        legal = apply_conditions(layout, masks, logits, uniforms)
        actions, log_probs = draw_by_tensors(layout.pad(logits), legal, uniforms)
        is_sound = math.isfinite(log_probs.min())
    else:
        actions, log_probs, legal, is_sound = _draw_by_kernel(layout, logits, masks, uniforms)
    if not is_sound:
        env, head = (int(index) for index in (~torch.isfinite(log_probs)).nonzero()[0])
        place = f"head {spec.names[head]!r} of environment {env}"
        if bool(legal[env, head].any()):
            raise NonFiniteError(
                f"the logits of {place} are not finite; the policy's weights or the observations "
                "hold NaN or infinity. Check the observations, or lower learning_rate."
            )
        raise NoLegalActionError(
            f"{place} has no legal choice; every head needs at least one "
            "(a head that does not matter may allow all of its choices)."
        )
    return actions, log_probs, legal


def choices_beside(spec: ActionSpec, actions: Tensor, masks: ChoiceMasks) -> Tensor:
    """Return the choices ``[N, D, K]`` that each head had, given the others of actions ``[N, D]``.

    Raises:
        NoLegalActionError: If a head had none, naming head and environment.
    """
    layout = layout_of(spec, actions.device, torch.float32)
    # The mode of logits that are 1 at these actions and else 0 is these actions, where legal.
    logits = torch.zeros(len(actions), sum(spec.sizes), device=actions.device)
    logits.scatter_(1, actions + layout.starts.t(), 1.0)
    return draw_actions(layout, logits, masks, None)[2]


def draw_by_tensors(
    logits: Tensor, legal: Tensor, uniforms: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Draw choices ``[...]`` for logits ``[..., K]``; return them and their log-probabilities.

    With uniform numbers ``[...]`` in [0, 1), the choice is the first whose cumulative probability
    is beyond the number; without, the most likely one. A log-probability is NaN if no choice is
    legal or a legal logit is not finite.
    """
    bounded = torch.where(legal, logits.float(), -torch.inf)
    p = bounded.softmax(dim=-1)
    best = p.argmax(dim=-1)
    choice = best
    if uniforms is not None:
        cumulative = p.cumsum(dim=-1)
        beyond = cumulative > (uniforms * cumulative[..., -1]).unsqueeze(-1)
        # Rounding may leave no choice beyond; an illegal one adds nothing and is never the first.
        choice = torch.where(beyond.any(dim=-1), beyond.byte().argmax(dim=-1), best)
    log_probs = bounded.log_softmax(dim=-1).gather(-1, choice.unsqueeze(-1)).squeeze(-1)
    return choice, log_probs


def _draw_by_kernel(
    layout: HeadLayout, logits: Tensor, masks: ChoiceMasks, uniforms: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Do the same for all heads, conditions included; say whether all results are finite."""
    assert _kernel is not None, "the caller looks"
    spec = layout.spec
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    legal, conditions, tables = masks.legal.contiguous(), None, list[Tensor]()
    if masks.conditions:
        # The kernel narrows the masks in place.
        legal = legal.clone() if legal is masks.legal else legal
        tables = [condition.table.contiguous() for condition in masks.conditions]
        rows = [
            (c.child, c.parent, t.data_ptr(), t[0].numel() if t.ndim == 3 else 0)
            for c, t in zip(masks.conditions, tables, strict=True)
        ]
        conditions = torch.tensor(rows)
    n_steps, n_heads, n_choices = legal.shape
    actions = torch.empty(n_steps, n_heads, dtype=torch.int64)
    log_probs = torch.empty(n_steps, n_heads)
    is_sound = _kernel.draw(
        logits.data_ptr(),
        0 if uniforms is None else uniforms.data_ptr(),
        layout.sizes.data_ptr(),
        0 if layout.relevance is None else layout.relevance.data_ptr(),
        0 if conditions is None else conditions.data_ptr(),
        legal.data_ptr(),
        actions.data_ptr(),
        log_probs.data_ptr(),
        n_steps,
        n_heads,
        n_choices,
        logits.stride(0),
        len(tables),
        spec.op_index,
        spec.n_heads,
    )
    return actions, log_probs, legal, is_sound


def apply_conditions(
    layout: HeadLayout, masks: ChoiceMasks, logits: Tensor, uniforms: Tensor | None
) -> Tensor:
    """Return ``[N, D, K]`` bool: what each head may choose given its parents."""
    if not masks.conditions:
        return masks.legal
    spec, legal, padded = layout.spec, masks.legal.clone(), layout.pad(logits)
    drawn: dict[int, Tensor] = {}

    def choice_of(head: int) -> Tensor:
        if head not in drawn:
            own = None if uniforms is None else uniforms[:, head]
            drawn[head] = draw_by_tensors(padded[:, head], legal[:, head], own)[0]
        return drawn[head]

    for condition in masks.conditions:
        parent, child = condition.parent, condition.child
        allowed = condition.allowed(choice_of(parent))
        if parent != spec.op_index and not spec.is_independent:
            op = choice_of(spec.op_index)
            is_read = relevance_table(spec, op.device)[op, child]
            allowed = allowed | ~is_read.unsqueeze(-1)
        legal[:, child, : allowed.shape[-1]] &= allowed
    return legal
