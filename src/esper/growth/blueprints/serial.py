"""Seeds of linear layers for sequences ``[B, T, D]`` and vectors ``[B, D]``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from esper.growth.blueprints.registry import Blueprint, SeedForm
from esper.growth.blueprints.widening import draw_mirrored
from esper.growth.sites import SlotSite, TensorKind

LORA_SMALL_RANK = 4
LORA_LARGE_RANK = 16


class LowRankSeed(nn.Sequential):
    """A linear map of small rank beside the block, without biases, so that it can be merged into a
    linear block. Starts at zero: the layer that leads out is zero.
    """

    def __init__(self, width_in: int, width_out: int, rank: int) -> None:
        rank = max(1, min(rank, width_in, width_out))
        up = nn.Linear(rank, width_out, bias=False)
        nn.init.zeros_(up.weight)
        super().__init__(nn.Linear(width_in, rank, bias=False), up)


class MLPSeed(nn.Sequential):
    """Two linear layers on the block's output. Starts at zero, with units in mirrored pairs."""

    def __init__(self, width: int, hidden: int) -> None:
        first, last = nn.Linear(width, hidden), nn.Linear(hidden, width)
        draw_mirrored(first, last)
        super().__init__(first, nn.GELU(), last)


def _lora(name: str, rank: int) -> Blueprint:
    def build(site: SlotSite) -> nn.Module:
        return LowRankSeed(site.input_width, site.width, rank)

    kinds = frozenset({TensorKind.SEQUENCE})
    summary = f"linear map of rank {rank} beside the block"
    return Blueprint(
        name=name,
        kinds=kinds,
        form=SeedForm.PARALLEL,
        build=build,
        summary=summary,
        family="lora_large",
    )


def _build_low_rank(site: SlotSite) -> nn.Module:
    return LowRankSeed(site.input_width, site.width, rank=site.width // 8)


def _build_small_mlp(site: SlotSite) -> nn.Module:
    return MLPSeed(site.width, max(1, site.width // 2))


def _build_large_mlp(site: SlotSite) -> nn.Module:
    return MLPSeed(site.width, 2 * site.width)


_DENSE_KINDS = frozenset({TensorKind.SEQUENCE, TensorKind.VECTOR})


def zero_conv(width_in: int, width_out: int, kernel: int) -> nn.Conv2d:
    """Return a convolution that keeps the size of the map and gives zeros while it is new."""
    conv = nn.Conv2d(width_in, width_out, kernel, padding=kernel // 2)
    nn.init.zeros_(conv.weight)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv


class SqueezeExciteSeed(nn.Module):
    """Scales each channel by what the whole map holds. Starts at zero: its last layer is zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(1, width // 4)
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, hidden, 1),
            nn.ReLU(),
            zero_conv(hidden, width, 1),
            nn.Tanh(),
        )

    def forward(self, y: Tensor) -> Tensor:
        """Return ``y`` times a factor in (-1, 1) by channel."""
        return y * self.excite(y)


class DepthwiseSeed(nn.Sequential):
    """A 3x3 filter by channel, then a mix of channels. Starts at zero: its last layer is zero."""

    def __init__(self, width: int) -> None:
        depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        super().__init__(depthwise, nn.ReLU(), zero_conv(width, width, 1))


class BottleneckSeed(nn.Sequential):
    """1x1 down, 3x3, 1x1 up. Starts at zero: its last layer is zero."""

    def __init__(self, width: int) -> None:
        hidden = max(1, width // 4)
        super().__init__(
            nn.Conv2d(width, hidden, 1),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, padding=1),
            nn.ReLU(),
            zero_conv(hidden, width, 1),
        )


class ConvSeed(nn.Sequential):
    """Two 3x3 convolutions with ``hidden`` channels between. Starts at zero: its last is zero."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(
            nn.Conv2d(width, hidden, 3, padding=1), nn.ReLU(), zero_conv(hidden, width, 3)
        )


def _blueprint(
    name: str, summary: str, make: Callable[[int], nn.Module], family: str = ""
) -> Blueprint:
    return Blueprint(
        name=name,
        kinds=frozenset({TensorKind.FEATURE_MAP}),
        form=SeedForm.SERIAL,
        build=lambda site: make(site.width),
        summary=summary,
        family=family,
    )


def _conv(name: str, summary: str, share: float) -> Blueprint:
    def make(width: int) -> nn.Module:
        return ConvSeed(width, max(1, int(share * width)))

    return _blueprint(name, summary, make, family="conv_heavy")


class NoopSeed(nn.Module):
    """Proposes no change, ever. It has no parameters."""

    def forward(self, y: Tensor) -> Tensor:
        """Return zeros in the shape of ``y``."""
        return torch.zeros_like(y)


class LayerNormSeed(nn.Sequential):
    """``weight * normalised(y) + bias`` over features. Starts at zero: weight and bias are zero."""

    def __init__(self, width: int) -> None:
        norm = nn.LayerNorm(width)
        nn.init.zeros_(norm.weight)
        super().__init__(norm)


class GroupNormSeed(nn.Sequential):
    """``weight * normalised(y) + bias`` over an image. Starts at zero: weight and bias are."""

    def __init__(self, width: int) -> None:
        norm = nn.GroupNorm(1, width)
        nn.init.zeros_(norm.weight)
        super().__init__(norm)


def _build(site: SlotSite) -> nn.Module:
    is_map = site.kind == TensorKind.FEATURE_MAP
    return GroupNormSeed(site.width) if is_map else LayerNormSeed(site.width)


MAX_HEADS = 4


class CausalAttention(nn.Module):
    """Self-attention in which a position sees itself and what came before.

    Axes in front of ``[B, T, D]`` are allowed, so that hosts can be computed side by side.
    """

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width)

    def extra_repr(self) -> str:
        """Return what its layers do not show."""
        return f"n_heads={self.n_heads}"

    def forward(self, x: Tensor) -> Tensor:
        """Return what each position gathers, in the shape of ``x``."""
        n_steps = x.shape[-2]
        # [..., T, 3 * D] -> three of [batch, heads, T, D / heads]
        heads = self.query_key_value(x).unflatten(-1, (3, self.n_heads, -1))
        heads = heads.reshape(-1, n_steps, 3, self.n_heads, x.shape[-1] // self.n_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        gathered = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(gathered.transpose(-3, -2).reshape(x.shape))


class SelfAttentionSeed(nn.Sequential):
    """Layer norm, then causal attention. Starts at zero: the projection that leads out is zero."""

    def __init__(self, width: int) -> None:
        n_heads = next(n for n in range(min(MAX_HEADS, width), 0, -1) if width % n == 0)
        attention = CausalAttention(width, n_heads)
        nn.init.zeros_(attention.project.weight)
        nn.init.zeros_(attention.project.bias)
        super().__init__(nn.LayerNorm(width), attention)


BLUEPRINTS = (
    _lora("lora_small", LORA_SMALL_RANK),
    _lora("lora_large", LORA_LARGE_RANK),
    Blueprint(
        name="mlp_small",
        kinds=_DENSE_KINDS,
        form=SeedForm.SERIAL,
        build=_build_small_mlp,
        summary="two linear layers, half as wide between",
        family="mlp_large",
    ),
    Blueprint(
        name="mlp_large",
        kinds=_DENSE_KINDS,
        form=SeedForm.SERIAL,
        build=_build_large_mlp,
        summary="two linear layers, twice as wide between",
    ),
    Blueprint(
        name="low_rank",
        kinds=frozenset({TensorKind.VECTOR}),
        form=SeedForm.PARALLEL,
        build=_build_low_rank,
        summary="linear map of an eighth of the rank beside the block",
    ),
    _blueprint("attention", "squeeze-and-excite: scales channels", SqueezeExciteSeed),
    _blueprint("depthwise", "3x3 by channel, then 1x1", DepthwiseSeed),
    _blueprint("bottleneck", "1x1 down, 3x3, 1x1 up", BottleneckSeed),
    _conv("conv_small", "two 3x3, a quarter wide", 0.25),
    _conv("conv_light", "two 3x3, half as wide", 0.5),
    _conv("conv_heavy", "two 3x3, as wide as the block", 1.0),
    Blueprint(
        name="noop",
        kinds=frozenset(TensorKind),
        form=SeedForm.SERIAL,
        build=lambda site: NoopSeed(),
        summary="changes nothing",
    ),
    Blueprint(
        name="norm",
        kinds=frozenset(TensorKind),
        form=SeedForm.SERIAL,
        build=_build,
        summary="normalised copy, scaled by channel",
    ),
    Blueprint(
        name="self_attention",
        kinds=frozenset({TensorKind.SEQUENCE}),
        form=SeedForm.SERIAL,
        build=lambda site: SelfAttentionSeed(site.width),
        summary="causal self-attention",
    ),
)
