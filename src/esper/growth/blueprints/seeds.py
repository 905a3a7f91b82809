"""The built-in blueprints, and the seeds of those that are modules beside a block.

Every such seed's output starts at zero, usually because its last layer is initialized to zero.
Shapes: feature maps ``[B, C, H, W]``, sequences ``[B, T, D]``, vectors ``[B, D]``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from esper.growth.blueprints.registry import Blueprint, built_in
from esper.growth.sites import SlotSite, TensorKind

LORA_SMALL_RANK = 4
LORA_LARGE_RANK = 16
MAX_HEADS = 4


class NoopSeed(nn.Module):
    """Always returns zeros. It has no parameters."""

    def forward(self, y: Tensor) -> Tensor:
        """Return zeros in the shape of ``y``."""
        return torch.zeros_like(y)


class NormSeed(nn.Sequential):
    """Normalizes a whole feature map, or the features at each position of other tensors."""

    def __init__(self, site: SlotSite) -> None:
        is_map = site.kind == TensorKind.FEATURE_MAP
        norm = nn.GroupNorm(1, site.width) if is_map else nn.LayerNorm(site.width)
        nn.init.zeros_(norm.weight)
        super().__init__(norm)


class LowRankSeed(nn.Sequential):
    """A low-rank linear map in parallel with the block.

    It has no biases, so that it can be merged into a linear block.
    """

    def __init__(self, width_in: int, width_out: int, rank: int) -> None:
        rank = max(1, min(rank, width_in, width_out))
        up = nn.Linear(rank, width_out, bias=False)
        nn.init.zeros_(up.weight)
        super().__init__(nn.Linear(width_in, rank, bias=False), up)


@torch.no_grad()
def draw_mirrored(first: nn.Linear, second: nn.Linear) -> None:
    """Initialize two layers so that their hidden units cancel in pairs; biases become zero.

    Weights are drawn from torch's default generator with the variance ``2 / inputs`` of He et al.
    (2015). Units 2i and 2i + 1 read the same and have opposite outgoing weights; with an odd number
    of units, the outgoing weights of the last are zero.
    """
    nn.init.kaiming_normal_(first.weight)
    nn.init.kaiming_normal_(second.weight)
    for layer in (first, second):
        nn.init.zeros_(layer.bias)
    _odd(first.weight, dim=0).copy_(_even(first.weight, dim=0))
    _odd(second.weight, dim=1).copy_(-_even(second.weight, dim=1))
    if first.weight.shape[0] % 2:
        second.weight[:, -1] = 0.0


def _even(weight: Tensor, *, dim: int) -> Tensor:
    """Return the first unit of each pair, along axis 0."""
    return weight.transpose(0, dim)[: weight.shape[dim] // 2 * 2 : 2]


def _odd(weight: Tensor, *, dim: int) -> Tensor:
    """Return the second unit of each pair, along axis 0."""
    return weight.transpose(0, dim)[1 : weight.shape[dim] // 2 * 2 : 2]


class MLPSeed(nn.Sequential):
    """Two linear layers. The output starts at zero because units cancel in mirrored pairs."""

    def __init__(self, width: int, hidden: int) -> None:
        first, last = nn.Linear(width, hidden), nn.Linear(hidden, width)
        draw_mirrored(first, last)
        super().__init__(first, nn.GELU(), last)


class CausalAttention(nn.Module):
    """Self-attention in which each position attends to itself and earlier positions.

    Leading axes before ``[B, T, D]`` are allowed, so that hosts can be computed together.
    """

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width)

    def extra_repr(self) -> str:
        """Return the number of heads, which the layers do not show."""
        return f"n_heads={self.n_heads}"

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention output, in the shape of ``x``."""
        # Sizes and parts are read one by one, because torch.fx cannot unpack them on export.
        n_steps, width = x.shape[-2], x.shape[-1]
        shape = (-1, n_steps, self.n_heads, width // self.n_heads)
        # [..., T, 3 * D] -> three of [batch, heads, T, D / heads]. Split first, so that the
        # gradients are joined without another copy.
        parts = self.query_key_value(x).chunk(3, -1)
        query, key, value = (parts[k].reshape(shape).transpose(1, 2) for k in range(3))
        gathered = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(gathered.transpose(1, 2).reshape(x.shape))


class SelfAttentionSeed(nn.Sequential):
    """Layer norm followed by causal attention."""

    def __init__(self, width: int) -> None:
        n_heads = next(n for n in range(min(MAX_HEADS, width), 0, -1) if width % n == 0)
        attention = CausalAttention(width, n_heads)
        nn.init.zeros_(attention.project.weight)
        nn.init.zeros_(attention.project.bias)
        super().__init__(nn.LayerNorm(width), attention)


class SqueezeExciteSeed(nn.Module):
    """Squeeze-and-excitation: scales each channel by a function of the whole feature map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(1, width // 4)
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, hidden, 1),
            nn.ReLU(),
            _zero_conv(hidden, width, 1),
            nn.Tanh(),
        )

    def forward(self, y: Tensor) -> Tensor:
        """Return ``y`` with each channel scaled by a factor in (-1, 1)."""
        return y * self.excite(y)


class DepthwiseSeed(nn.Sequential):
    """A 3x3 depthwise convolution, then a 1x1 convolution."""

    def __init__(self, width: int) -> None:
        depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        super().__init__(depthwise, nn.ReLU(), _zero_conv(width, width, 1))


class BottleneckSeed(nn.Sequential):
    """Convolutions 1x1 down, 3x3, 1x1 up."""

    def __init__(self, width: int) -> None:
        hidden = max(1, width // 4)
        super().__init__(
            nn.Conv2d(width, hidden, 1),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, padding=1),
            nn.ReLU(),
            _zero_conv(hidden, width, 1),
        )


class ConvSeed(nn.Sequential):
    """Two 3x3 convolutions with ``hidden`` channels between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(
            nn.Conv2d(width, hidden, 3, padding=1), nn.ReLU(), _zero_conv(hidden, width, 3)
        )


def _zero_conv(width_in: int, width_out: int, kernel: int) -> nn.Conv2d:
    """Return a convolution with zero weights that keeps the size of the feature map."""
    conv = nn.Conv2d(width_in, width_out, kernel, padding=kernel // 2)
    nn.init.zeros_(conv.weight)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv


def _low_rank(name: str, rank: Callable[[SlotSite], int]) -> Blueprint:
    return built_in(name, lambda site: LowRankSeed(site.input_width, site.width, rank(site)))


def _mlp(name: str, hidden: Callable[[int], int]) -> Blueprint:
    return built_in(name, lambda site: MLPSeed(site.width, hidden(site.width)))


def _conv(name: str, share: float) -> Blueprint:
    return built_in(name, lambda site: ConvSeed(site.width, max(1, int(share * site.width))))


def _by_surgery(site: SlotSite) -> nn.Module:
    raise AssertionError(f"the slot {site.name!r} grows by surgery, so there is nothing to build")


BLUEPRINTS = (
    built_in("noop", lambda _: NoopSeed()),
    built_in("norm", NormSeed),
    built_in("attention", lambda site: SqueezeExciteSeed(site.width)),
    built_in("depthwise", lambda site: DepthwiseSeed(site.width)),
    built_in("bottleneck", lambda site: BottleneckSeed(site.width)),
    _conv("conv_small", 0.25),
    _conv("conv_light", 0.5),
    _conv("conv_heavy", 1.0),
    _low_rank("lora_small", lambda _: LORA_SMALL_RANK),
    _low_rank("lora_large", lambda _: LORA_LARGE_RANK),
    _mlp("mlp_small", lambda width: max(1, width // 2)),
    _mlp("mlp_large", lambda width: 2 * width),
    built_in("self_attention", lambda site: SelfAttentionSeed(site.width)),
    _low_rank("low_rank", lambda site: site.width // 8),
    built_in("widen_small", _by_surgery, grows="units", share=0.25),
    built_in("widen_medium", _by_surgery, grows="units", share=0.5),
    built_in("widen_large", _by_surgery, grows="units", share=1.0),
    built_in("widen_huge", _by_surgery, grows="units", share=3.0),
    built_in("deepen", _by_surgery, grows="blocks"),
)
