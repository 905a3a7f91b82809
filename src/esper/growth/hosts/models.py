"""A network of linear layers in blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from esper.config.growth import CNNHostConfig, GPTHostConfig, MLPHostConfig
from esper.growth.blueprints.serial import CausalAttention


class PlainBlock(nn.Module):
    """``second(relu(norm(first(x))))``, any axes in front of a sample's own allowed."""

    def __init__(self, first: nn.Module, norm: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.norm = norm
        self.activation = nn.ReLU()
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, in the shape of ``x``."""
        return self.second(self.activation(self.norm(self.first(x))))


class ResidualBlock(PlainBlock):
    """``x + second(relu(norm(first(x))))``, any axes in front of a sample's own allowed."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, in the shape of ``x``."""
        return x + super().forward(x)


class MLPHost(nn.Module):
    """Maps vectors ``[B, features]`` to logits ``[B, classes]``."""

    def __init__(self, config: MLPHostConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.hidden
        block = ResidualBlock if config.has_skips else PlainBlock
        self.stem = nn.Linear(config.n_features, width)
        self.blocks = nn.Sequential(
            *(
                block(nn.Linear(width, hidden), nn.Identity(), nn.Linear(hidden, width))
                for _ in range(config.n_blocks)
            )
        )
        self.head = nn.Linear(width, config.n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.blocks(self.stem(x)))


class CNNHost(nn.Module):
    """Maps images ``[B, channels, H, W]`` to logits ``[B, classes]``."""

    def __init__(self, config: CNNHostConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.hidden
        self.stem = nn.Sequential(
            nn.Conv2d(config.n_channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        self.blocks = nn.Sequential(
            *(
                ResidualBlock(
                    nn.Conv2d(width, hidden, 3, padding=1, bias=False),
                    nn.BatchNorm2d(hidden),
                    nn.Conv2d(hidden, width, 3, padding=1),
                )
                for _ in range(config.n_blocks)
            )
        )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(width, config.n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.pool(self.blocks(self.stem(x))))


def draw_weights(module: nn.Module) -> None:
    """Draw all weights of a host from torch's default generator, in the order of its layers."""
    if type(module) is nn.Linear:
        _draw_linear(module)
        return
    draw = getattr(module, "reset_parameters", None)
    if draw is not None:
        draw()
        return
    for child in module.children():
        draw_weights(child)


@torch.no_grad()
def _draw_linear(layer: nn.Linear) -> None:
    """Do what ``nn.Linear`` does to its weights, to the bit, in a fraction of the time."""
    n_inputs = layer.weight.shape[1]
    # The detour by the gain of a rectifier rounds as torch's initialisation does.
    deviation = math.sqrt(2.0 / (1.0 + math.sqrt(5.0) ** 2)) / math.sqrt(n_inputs)
    bound = math.sqrt(3.0) * deviation
    layer.weight.uniform_(-bound, bound)
    for bias in [one for name, one in layer.named_parameters() if name == "bias"]:
        bound = 1.0 / math.sqrt(n_inputs)
        bias.uniform_(-bound, bound)


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
