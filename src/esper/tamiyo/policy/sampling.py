"""Drawing factored actions: the op first, then every other head given what it depends on.

Shapes: ``N`` environments, ``H`` heads, ``K`` choices of the widest head, ``P`` choices of all
heads side by side.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from esper.errors import NoLegalActionError, NonFiniteError
from esper.lifecycle.action_spec import ActionSpec, relevance_table
from esper.tamiyo.policy.choice_masks import ChoiceMasks
from esper.tamiyo.policy.head_layout import layout_of

try:
    from esper.tamiyo.policy import _distribution as _kernel
except ImportError:
    _kernel = None


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
