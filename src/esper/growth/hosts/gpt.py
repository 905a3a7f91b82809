"""A small causal transformer, norms before its parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.config.hosts import GPTHostConfig
from esper.growth.blueprints.self_attention import CausalAttention
from esper.growth.hosts.weights import draw_weights


class GPTBlock(nn.Module):
    """Attention, then a two-layer network, each added to the residual stream."""

    def __init__(self, config: GPTHostConfig) -> None:
        super().__init__()
        width = config.width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, config.n_heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, config.hidden), nn.GELU(), nn.Linear(config.hidden, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after the block."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPTHost(nn.Module):
    """Maps tokens ``[B, T]`` to the logits of each next token ``[B, T, vocabulary]``."""

    def __init__(self, config: GPTHostConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self._shrink_embeddings()
        self.blocks = nn.Sequential(*(GPTBlock(config) for _ in range(config.n_blocks)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary)

    def reset_parameters(self) -> None:
        """Draw all weights anew, as they were when the host was made."""
        self.token.reset_parameters()
        self.position.reset_parameters()
        self._shrink_embeddings()
        for part in (self.blocks, self.norm, self.head):
            draw_weights(part)

    def _shrink_embeddings(self) -> None:
        """Draw embeddings that are a tenth as large as PyTorch's."""
        nn.init.normal_(self.token.weight, std=0.1)
        nn.init.normal_(self.position.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        # Spelled out for every sample, so that axes in front of [B, T] are allowed.
        steps = torch.arange(tokens.shape[-1], device=tokens.device).expand(tokens.shape)
        x = self.token(tokens) + self.position(steps)
        return self.head(self.norm(self.blocks(x)))
