"""Starting two layers at zero, yet able to learn at full speed: hidden units in mirrored pairs.

If the layer that leads out were zero, the layer before it would get no gradient at first, and the
pair would take many steps to come to life. Here all weights are of the usual size. Both units of a
pair read the same and give opposite shares, so together they give nothing until they have learned,
and their gradients differ from the first step on.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Layer = nn.Linear | nn.Conv2d


@torch.no_grad()
def draw_mirrored(first: Layer, second: Layer) -> None:
    """Draw the weights of two layers with a rectifier between, the second without a bias's share.

    Weights have the variance ``2 / inputs`` of He et al. (2015), drawn from torch's default
    generator. Units 2i and 2i + 1 are a pair; the last of an odd number gives nothing.
    """
    nn.init.kaiming_normal_(first.weight)
    nn.init.kaiming_normal_(second.weight)
    for layer in (first, second):
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    _odd(first.weight, dim=0).copy_(_even(first.weight, dim=0))
    _odd(second.weight, dim=1).copy_(-_even(second.weight, dim=1))
    if first.weight.shape[0] % 2:
        second.weight[:, -1] = 0.0


@torch.no_grad()
def is_mirrored(first: Layer, second: Layer) -> bool:
    """Return whether two layers still give nothing: each unit and its pair cancel."""
    outgoing = second.weight
    if not outgoing.any():
        return True
    pairs = [torch.equal(_odd(outgoing, dim=1), -_even(outgoing, dim=1))]
    pairs += [
        torch.equal(_odd(tensor, dim=0), _even(tensor, dim=0))
        for tensor in (first.weight, first.bias)
        if tensor is not None
    ]
    is_single = outgoing.shape[1] % 2 == 1
    return all(pairs) and not (is_single and outgoing[:, -1].any())


def _even(weight: Tensor, *, dim: int) -> Tensor:
    """Return the first unit of each pair, in front."""
    return weight.transpose(0, dim)[: weight.shape[dim] // 2 * 2 : 2]


def _odd(weight: Tensor, *, dim: int) -> Tensor:
    """Return the second unit of each pair, in front."""
    return weight.transpose(0, dim)[1 : weight.shape[dim] // 2 * 2 : 2]
