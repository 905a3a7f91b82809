"""Small networks that tests widen and deepen, each as a class with its width and depth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, width), nn.BatchNorm1d(width), nn.PReLU(width), nn.Linear(width, 3)
    )


class Gated(nn.Module):
    """Two layers whose units meet, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(5, width), nn.Linear(5, width)
        self.down = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class FusedGate(nn.Module):
    """One layer that computes both factors, as in Phi-3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(5, 2 * width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Recurrent(nn.Module):
    """A recurrent network of two layers, read at all steps."""

    def __init__(self, width: int, kind: type[nn.Module] = nn.LSTM, *, both: bool = False) -> None:
        super().__init__()
        self.cell = kind(5, width, num_layers=2, bidirectional=both, batch_first=True)
        self.head = nn.Linear(width * (1 + both), 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0].mean(1))


class BasicBlock(nn.Module):
    """The block of a ResNet, with or without a projection beside it."""

    def __init__(self, n_in: int, n_out: int, inner: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, inner, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, n_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.beside = nn.Identity()
        if n_in != n_out:
            self.beside = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.beside(x))


class ResNet(nn.Module):
    """Two stages whose residual streams have batch norms alone."""

    def __init__(self, width: int = 4, depth: int = 2) -> None:
        super().__init__()
        wide = 2 * width
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.first = nn.Sequential(*(BasicBlock(width, width, width) for _ in range(depth)))
        later = [BasicBlock(wide, wide, wide) for _ in range(depth - 1)]
        self.second = nn.Sequential(BasicBlock(width, wide, wide, 2), *later)
        self.head = nn.Linear(wide * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(torch.relu(self.norm(self.stem(x)))))
        return self.head(F.adaptive_avg_pool2d(x, 2).flatten(1))


class Mobile(nn.Module):
    """An inverted bottleneck: a depthwise convolution acts on each unit by itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(3, width, 1)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.BatchNorm2d(width)
        self.project = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.depthwise(torch.relu(self.expand(x)))))
        return (x + self.project(y)).mean((2, 3))


class Joined(nn.Module):
    """Units of two layers side by side in what a third one reads, the first ones also flat."""

    def __init__(self, width: int, other: int) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, width, 3, padding=1)
        self.right = nn.Conv2d(3, other, 3, padding=1)
        self.joined = nn.ConvTranspose2d(width + other, 3, 2)
        self.flat = nn.Linear(width * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.relu(self.left(x)), torch.tanh(self.right(x))
        joined = self.joined(torch.cat([left, right], dim=1)).mean((2, 3))
        return joined + self.flat(F.adaptive_avg_pool2d(left, 4).flatten(1))


class Encoder(nn.Module):
    """Residual blocks in a list; with ``is_post`` each ends in a norm, as in BERT."""

    def __init__(self, depth: int, width: int = 8, *, is_post: bool = False) -> None:
        super().__init__()
        self.depth = depth
        self.embed = nn.Linear(5, 6)
        self.blocks = nn.ModuleList(EncoderBlock(k, width, is_post=is_post) for k in range(depth))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for k in range(self.depth):
            x = self.blocks[k](x)
        return self.head(x)


class EncoderBlock(nn.Module):
    """``x + f(norm(x))`` or ``norm(x + f(x))``, which knows its number."""

    def __init__(self, layer_idx: int, width: int, *, is_post: bool) -> None:
        super().__init__()
        self.layer_idx, self.is_post = layer_idx, is_post
        self.norm = nn.LayerNorm(6, eps=1e-9)
        self.mlp = nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.Linear(width, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.mlp(x)) if self.is_post else x + self.mlp(self.norm(x))


class Attention(nn.Module):
    """Attention with query heads that share keys and values, and three ways to compute them."""

    def __init__(self, n_heads: int, n_shared: int, way: str, *, size: int = 4) -> None:
        super().__init__()
        self.n_heads, self.n_shared, self.way, self.size = n_heads, n_shared, way, size
        self.norm = nn.LayerNorm(6)
        if way == "apart":
            self.queries = nn.Linear(6, n_heads * size)
            self.keys = nn.Linear(6, n_shared * size, bias=False)
            self.values = nn.Linear(6, n_shared * size)
        else:
            self.all = nn.Linear(6, (n_heads + 2 * n_shared) * size)
        self.out = nn.Linear(n_heads * size, 6)

    def forward(self, x: Tensor) -> Tensor:
        y, counts = self.norm(x), [self.n_heads, self.n_shared, self.n_shared]
        if self.way == "apart":
            parts = [layer(y) for layer in (self.queries, self.keys, self.values)]
        elif self.way == "in a row":
            parts = list(self.all(y).split([n * self.size for n in counts], dim=-1))
        else:  # head by head
            heads = self.all(y).unflatten(-1, (self.n_shared, -1, self.size))
            parts = [part.flatten(-3) for part in heads.split([heads.shape[-2] - 2, 1, 1], dim=-2)]
        q, k, v = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in parts)
        shared = self.n_heads // self.n_shared
        k, v = (part.repeat_interleave(shared, dim=1) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


@dataclass
class HeadCounts:
    """A configuration that several layers share."""

    num_attention_heads: int
    head_dim: int = 4


class PackedAttention(nn.Module):
    """Queries, keys and values in one layer, told apart in the way of several libraries.

    ``counted`` reads the number of heads from a shared configuration, ``measured`` reshapes by the
    size of heads, and so does ``sinks``, which has a parameter for each head; ``nanoGPT`` and
    ``timm`` derive the size of heads from the width of the input.
    """

    def __init__(self, way: str, config: HeadCounts, width: int = 8) -> None:
        super().__init__()
        self.way, self.config = way, config
        self.n_head, self.head_size = config.num_attention_heads, config.head_dim
        self.n_embd = self.n_head * self.head_size
        self.qkv = nn.Linear(width, 3 * self.n_embd)
        self.out = nn.Linear(self.n_embd, width)
        if way == "sinks":
            self.sinks = nn.Parameter(torch.randn(self.n_head))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to the same shape."""
        n, t, width = x.shape
        if self.way in ("timm", "measured", "sinks"):
            size = width // self.n_head if self.way == "timm" else self.head_size
            q, k, v = self.qkv(x).reshape(n, t, 3, self.n_head, size).permute(2, 0, 3, 1, 4)
        else:
            is_nano = self.way == "nanoGPT"
            n_head = self.n_head if is_nano else self.config.num_attention_heads
            size = width // n_head if is_nano else self.head_size
            parts = self.qkv(x).split(self.n_embd if is_nano else n_head * size, dim=-1)
            q, k, v = (part.view(n, t, n_head, size).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.way == "sinks":
            y = y * torch.sigmoid(self.sinks)[:, None, None]
        return x + self.out(y.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """Gated experts whose weights are stacked, one after another or in turns, and a router."""

    def __init__(self, way: str, width: int, n_experts: int = 3) -> None:
        super().__init__()
        self.way, self.hidden_dim = way, width
        self.router = nn.Linear(8, n_experts)
        self.mix = Stacks(way, width, n_experts)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, D]`` to the same shape."""
        return x + self.mix(x, self.router(x).softmax(-1))


class Stacks(nn.Module):
    """The stacked weights."""

    def __init__(self, way: str, width: int, n_experts: int) -> None:
        super().__init__()
        self.way = way
        if way == "two stacks":
            self.gate = nn.Parameter(torch.randn(n_experts, width, 8))
            self.up = nn.Parameter(torch.randn(n_experts, width, 8))
        else:
            self.gate_up = nn.Parameter(torch.randn(n_experts, 8, 2 * width))
            self.gate_up_bias = nn.Parameter(torch.randn(n_experts, 2 * width))
        self.down = nn.Parameter(torch.randn(n_experts, width, 8))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Map ``[B, D]`` and the weights of experts ``[B, E]`` to ``[B, D]``."""
        if self.way == "two stacks":
            gate, up = (torch.einsum("bd,ehd->beh", x, w) for w in (self.gate, self.up))
        else:
            both = torch.einsum("bd,edh->beh", x, self.gate_up) + self.gate_up_bias
            gate, up = (
                both.chunk(2, -1) if self.way == "halves" else (both[..., ::2], both[..., 1::2])
            )
        return torch.einsum("be,beh,ehd->bd", weights, torch.sigmoid(gate) * up, self.down)


class Packed(nn.Module):
    """Blocks of packed attention with one configuration."""

    def __init__(self, way: str, n_heads: int = 2) -> None:
        super().__init__()
        self.config = HeadCounts(n_heads)
        self.blocks = nn.ModuleList(PackedAttention(way, self.config) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to the same shape."""
        for block in self.blocks:
            x = block(x)
        return x
