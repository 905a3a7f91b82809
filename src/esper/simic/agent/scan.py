"""The linear recurrence behind advantages, as a tensor scan of logarithmic depth."""

from __future__ import annotations

import torch
from torch import Tensor


def reverse_scan(inputs: Tensor, decay: float, stops: Tensor) -> Tensor:
    """Return ``x[t] = inputs[t] + (0 if stops[t] else decay * x[t + 1])`` along the last axis.

    Each round doubles the number of steps that every entry has summed, so T steps take log2(T)
    rounds of whole-tensor operations: the form for accelerators, where a loop over steps is slow.
    Whatever lies beyond a stop is selected away, not multiplied by zero, so a NaN there is gone.

    Args:
        inputs: ``[..., T]`` floating point.
        decay: What each step keeps of its successor.
        stops: ``[..., T]`` bool, where nothing is carried over from the next step.
    """
    total, stopped, weight, reach = inputs.clone(), stops, decay, 1
    n_steps = inputs.shape[-1]
    while reach < n_steps:
        head, tail = total[..., :-reach], total[..., reach:]
        joined = torch.where(stopped[..., :-reach], head, head + weight * tail)
        total = torch.cat([joined, total[..., n_steps - reach :]], dim=-1)
        is_cut = stopped[..., :-reach] | stopped[..., reach:]
        stopped = torch.cat([is_cut, stopped[..., n_steps - reach :]], dim=-1)
        weight, reach = weight * weight, 2 * reach
    return total
