"""Drawing factored actions, and their log-probabilities: one masked softmax over all heads at once.

Shapes: ``N`` steps, ``D`` discrete heads, ``K`` choices of the widest, ``P`` choices of all heads
side by side.
"""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor

try:
    from esper.simic.policy import _draw as _kernel
except ImportError:
    _kernel = None

from esper.errors import NoLegalActionError, NonFiniteError
from esper.simic.policy.action_spec import ActionSpec, all_choices, relevance_table
from esper.simic.policy.masks import LOWEST, ChoiceMasks, HeadLayout, layout_of
from esper.simic.tensors import to_device


def masked_log_softmax(spec: ActionSpec, logits: Tensor, legal: Tensor | None) -> Tensor:
    """Return the log-probability ``[N, D, K]`` of each choice, finite everywhere.

    An illegal choice and padding have a probability of exactly 0 and a gradient of exactly 0,
    whatever the network put there.

    Args:
        spec: The heads of an action.
        logits: ``[N, P]``.
        legal: ``[N, D, K]`` bool; None if every choice is legal.
    """
    # A log-probability needs at least single precision, whatever the weights are in.
    dtype = torch.promote_types(logits.dtype, torch.float32)
    layout = layout_of(spec, logits.device)
    padded = layout.pad(logits.to(dtype))
    if legal is None and layout.has_padding:
        legal = all_choices(spec, logits.device)
    bounded = padded if legal is None else torch.where(legal, padded, LOWEST)
    return bounded.log_softmax(dim=-1)


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
        drawn = torch.rand(logits.shape[0], spec.n_discrete, generator=generator)
        uniforms = to_device(drawn, logits.device)
    if _kernel is None or not logits.is_cpu or logits.dtype is not torch.float32:
        legal = apply_conditions(layout, masks, logits, uniforms)
        actions, log_probs = draw_by_tensors(layout.pad(logits), legal, uniforms)
        # On another device the host would wait; it looks when it reads the actions.
        is_sound = not log_probs.is_cpu or math.isfinite(log_probs.min())
    else:
        actions, log_probs, legal, is_sound = _draw_by_kernel(layout, logits, masks, uniforms)
    if not is_sound:
        raise_unsound(spec, log_probs, legal, masks, actions)
    return actions, log_probs, legal


def raise_unsound(
    spec: ActionSpec,
    log_probs: Tensor,
    legal: Tensor,
    masks: ChoiceMasks | None = None,
    actions: Tensor | None = None,
) -> NoReturn:
    """Say why a log-probability ``[N, H]`` is not finite, naming head and environment.

    With the masks and actions ``[N, D]``, also the conditional masks that left no choice.
    """
    env, head = (int(index) for index in (~torch.isfinite(log_probs)).nonzero()[0])
    place = f"head {spec.names[head]!r} of environment {env}"
    if head >= spec.n_discrete or bool(legal[env, head].any()):
        raise NonFiniteError(
            f"the outputs of {place} are not finite; the policy's weights or the observations "
            "hold NaN or infinity. Check the observations, or lower learning_rate."
        )
    rows = list[str]()
    if masks is not None and actions is not None and bool(masks.legal[env, head].any()):
        parents = [spec.names[one.parent] for one in masks.conditions if one.child == head]
        rows = [
            f"row {int(actions[env, spec.index(name)])} of its mask '{spec.names[head]}|{name}'"
            for name in parents
        ]
    where = f" in {' and '.join(rows)}" if rows else ""
    raise NoLegalActionError(
        f"{place} has no legal choice{where}; every head needs at least one "
        "(a head that does not matter may allow all of its choices)."
    )


def choices_beside(spec: ActionSpec, actions: Tensor, masks: ChoiceMasks) -> Tensor:
    """Return the choices ``[N, D, K]`` that each head had, given the others of actions ``[N, D]``.

    Raises:
        NoLegalActionError: If a head had none, naming head and environment.
    """
    layout = layout_of(spec, actions.device)
    # The mode of logits that are 1 at these actions and else 0 is these actions, where legal.
    logits = torch.zeros(len(actions), sum(spec.sizes), device=actions.device)
    logits.scatter_(1, actions + layout.starts, 1.0)
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
