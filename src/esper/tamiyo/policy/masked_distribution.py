"""Log-probabilities and entropies of factored actions: one masked softmax over all heads at once.

Shapes: ``N`` steps, ``H`` heads, ``P`` choices of all heads side by side.

On the CPU, in single precision, a compiled kernel makes one pass over the steps; elsewhere, or
without a compiler, the same is done with tensor operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.tamiyo.policy.head_layout import LOWEST, HeadLayout, LegalChoices

try:
    from esper.tamiyo.policy import _distribution as _kernel
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
