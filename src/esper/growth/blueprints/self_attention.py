"""Causal self-attention for sequences ``[B, T, D]``."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from esper.growth.blueprints.blueprint import Blueprint, SeedForm
from esper.growth.tensor_kinds import TensorKind

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
    Blueprint(
        name="self_attention",
        kinds=frozenset({TensorKind.SEQUENCE}),
        form=SeedForm.SERIAL,
        build=lambda site: SelfAttentionSeed(site.width),
        summary="causal self-attention",
    ),
)
