"""Log-probabilities and entropies of factored actions: one masked softmax over all heads at once.

Shapes: ``N`` steps, ``H`` heads, ``P`` choices of all heads side by side.

On the CPU, in single precision, a compiled kernel makes one pass over the steps; elsewhere, or
without a compiler, the same is done with tensor operations.
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

try:
    from esper.simic.policy import _distribution as _kernel
except ImportError:
    _kernel = None


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
        evaluate = _evaluate_natively if _is_native(legal.weight) else _evaluate_with_tensors
        logits_in = logits.to(legal.weight.dtype).contiguous()
        actions = actions.contiguous()
        log_p, p, taken, entropy = evaluate(logits_in, legal, actions)
        ctx.save_for_backward(log_p, p, entropy, actions)
        ctx.layout, ctx.logits_dtype = legal.layout, logits.dtype
        return taken, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, None, None]:
        """Return the gradient of the logits, ``[P, N]``."""
        log_p, p, entropy, actions = ctx.saved_tensors
        differentiate = _differentiate_natively if _is_native(p) else _differentiate_with_tensors
        d_logits = differentiate(ctx.layout, log_p, p, entropy, actions, *gradients)
        return d_logits.to(ctx.logits_dtype), None, None


def _is_native(tensor: Tensor) -> bool:
    return _kernel is not None and tensor.is_cpu and tensor.dtype is torch.float32


def _evaluate_with_tensors(
    logits: Tensor, legal: LegalChoices, actions: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    layout = legal.layout
    log_p, p = masked_log_softmax(logits, legal)
    taken = log_p.gather(0, actions + layout.starts)
    return log_p, p, taken, layout.total(p * log_p).neg_()


def _evaluate_natively(
    logits: Tensor, legal: LegalChoices, actions: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert _kernel is not None
    log_p, p = torch.empty_like(logits), torch.empty_like(logits)
    taken, entropy = logits.new_empty(actions.shape), logits.new_empty(actions.shape)
    n_heads, n_steps = actions.shape
    _kernel.evaluate(
        logits.data_ptr(),
        legal.weight.data_ptr(),
        actions.data_ptr(),
        legal.layout.sizes.data_ptr(),
        n_heads,
        n_steps,
        log_p.data_ptr(),
        p.data_ptr(),
        taken.data_ptr(),
        entropy.data_ptr(),
    )
    return log_p, p, taken, entropy


def _differentiate_with_tensors(
    layout: HeadLayout,
    log_p: Tensor,
    p: Tensor,
    entropy: Tensor,
    actions: Tensor,
    d_taken: Tensor,
    d_entropy: Tensor,
) -> Tensor:
    slope = log_p.mul(layout.spread(d_entropy))
    slope.add_(layout.spread(torch.addcmul(d_taken, entropy, d_entropy)))
    return slope.mul_(p).neg_().scatter_add_(0, actions + layout.starts, d_taken)


def _differentiate_natively(
    layout: HeadLayout,
    log_p: Tensor,
    p: Tensor,
    entropy: Tensor,
    actions: Tensor,
    d_taken: Tensor,
    d_entropy: Tensor,
) -> Tensor:
    assert _kernel is not None
    d_logits = torch.empty_like(p)
    d_taken, d_entropy = d_taken.contiguous(), d_entropy.contiguous()
    n_heads, n_steps = actions.shape
    _kernel.gradient(
        log_p.data_ptr(),
        p.data_ptr(),
        entropy.data_ptr(),
        d_taken.data_ptr(),
        d_entropy.data_ptr(),
        actions.data_ptr(),
        layout.sizes.data_ptr(),
        n_heads,
        n_steps,
        d_logits.data_ptr(),
    )
    return d_logits


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
    if _kernel is not None and logits.is_cpu:
        return _draw_natively(spec, logits.detach().float(), masks, generator)
    return _draw_with_tensors(spec, logits.detach().float(), masks, generator)


def _draw_natively(
    spec: ActionSpec, logits: Tensor, masks: ChoiceMasks, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw by where a uniform number falls among the cumulated probabilities of each head."""
    assert _kernel is not None
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    batch, shape = len(logits), (len(logits), spec.n_heads)
    # The kernel narrows the masks in place, to what each head was drawn from.
    legal = masks.legal.clone(memory_format=torch.contiguous_format)
    tables = [condition.table.contiguous() for condition in masks.conditions]
    conditions: list[int] = []
    for condition, table in zip(masks.conditions, tables, strict=True):
        stride = table.stride(0) if table.ndim == 3 else 0
        conditions += (condition.child, condition.parent, table.data_ptr(), stride)
    uniform = None if generator is None else torch.rand(shape, generator=generator)
    actions, log_probs = torch.empty(shape, dtype=torch.int64), torch.empty(shape)
    failed = _kernel.draw(
        layout_of(spec, logits.device, torch.float32).draw_plan_address,
        batch,
        logits.data_ptr(),
        logits.stride(0),
        0 if uniform is None else uniform.data_ptr(),
        legal.data_ptr(),
        actions.data_ptr(),
        log_probs.data_ptr(),
        *conditions,
    )
    if failed:
        place, is_not_finite = divmod(failed - 1, 2)
        _raise_for(spec, *divmod(place, spec.n_heads), bool(is_not_finite))
    return actions, log_probs, legal


def _draw_with_tensors(
    spec: ActionSpec, logits: Tensor, masks: ChoiceMasks, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the largest of log-weights with Gumbel noise."""
    layout = layout_of(spec, logits.device, torch.float32)
    padded = logits.index_select(1, layout.padded)
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
    if not math.isfinite(log_probs.min()):
        failed = (~torch.isfinite(log_probs)).nonzero()
        env, head = (int(index) for index in failed[0])
        _raise_for(spec, env, head, is_not_finite=bool(legal[env, head].any()))
    return actions, log_probs, legal


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
