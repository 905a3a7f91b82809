"""The problems of the evidence on real data: a data set, and a small model as a user writes it.

Every model has a width multiple: 1 is the model as given, and a multiple widens all of what Esper
can widen, and nothing else. Shapes: B samples of a batch, T places of a sequence, W features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from sets import CONTEXT, RealSet
from torch import Tensor, nn
from torch.nn import functional


def mlp(n_inputs: int, n_outputs: int, *, hidden: int = 8) -> nn.Module:
    """Return two hidden layers."""
    return nn.Sequential(
        nn.Linear(n_inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, n_outputs),
    )


class ResidualBlock(nn.Module):
    """A two-layer residual branch with a norm."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., W]`` plus the branch."""
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def residual_mlp(n_inputs: int, n_outputs: int, *, hidden: int = 8) -> nn.Module:
    """Return two residual blocks on a stream of 16 features."""
    blocks = (ResidualBlock(16, hidden) for _ in range(2))
    return nn.Sequential(nn.Flatten(), nn.Linear(n_inputs, 16), *blocks, nn.Linear(16, n_outputs))


def cnn(n_outputs: int, *, channels: int = 4) -> nn.Module:
    """Return two convolutions with pooling."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(9 * channels, n_outputs),
    )


def norm_cnn(n_outputs: int, *, channels: int = 4) -> nn.Module:
    """Return two convolutions with batch norms, the second at half the resolution."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(9 * channels, n_outputs),
    )


class ResNetBlock(nn.Module):
    """A residual block of two convolutions with batch norms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, C, H, W]``."""
        return functional.relu(x + self.branch(x))


class ResNet(nn.Module):
    """Classifies images ``[B, 1, 14, 14]`` with a residual stream at half their resolution."""

    def __init__(self, n_classes: int, *, channels: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )
        self.blocks = nn.Sequential(ResNetBlock(channels), ResNetBlock(channels))
        self.head = nn.Linear(channels, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class StreamMLP(nn.Module):
    """A residual MLP without norms."""

    def __init__(self, n_inputs: int, n_classes: int, *, width: int = 1) -> None:
        super().__init__()
        self.stem = nn.Linear(n_inputs, 16 * width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(16 * width, 8 * width), nn.ReLU(), nn.Linear(8 * width, 16 * width)
            )
            for _ in range(2)
        )
        self.head = nn.Linear(16 * width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class UNet(nn.Module):
    """Denoises images ``[B, 1, 14, 14]`` at two resolutions."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.ReLU())
        self.coarse = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
        )
        self.join = nn.Sequential(
            nn.Conv2d(2 * channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 1, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the images without noise."""
        fine = self.fine(x)
        coarse = self.coarse(functional.max_pool2d(fine, 2))
        return self.join(torch.cat([fine, functional.interpolate(coarse, scale_factor=2)], dim=1))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, T, W]``."""
        parts = self.qkv(x).unflatten(2, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, n_heads=2)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, T, W]``."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Predicts the next token."""

    def __init__(self, vocabulary: int, *, hidden: int = 16, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits ``[B, T, vocabulary]`` of tokens ``[B, T]``."""
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class WordClassifier(nn.Module):
    """Reads a word with a GRU and classifies it with an MLP."""

    def __init__(self, n_classes: int, *, width: int = 1) -> None:
        super().__init__()
        hidden = 8 * width
        self.letters = nn.Embedding(27, 16 * width, padding_idx=0)
        self.gru = nn.GRU(16 * width, 24 * width, batch_first=True)
        self.head = nn.Sequential(
            nn.Linear(24 * width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, n_classes),
        )

    def forward(self, words: Tensor) -> Tensor:
        """Return logits of words ``[B, T]``."""
        _, last = self.gru(self.letters(words))
        return self.head(last[0])


class CharacterGRU(nn.Module):
    """Predicts the next character with a GRU."""

    def __init__(self, vocabulary: int, *, width: int = 1) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, 8 * width)
        self.gru = nn.GRU(8 * width, 16 * width, batch_first=True)
        self.head = nn.Linear(16 * width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[B, T, vocabulary]`` of characters ``[B, T]``."""
        return self.head(self.gru(self.characters(x))[0])


class SequenceEncoder(nn.Module):
    """Torch's encoder over a sequence, averaged and classified."""

    def __init__(self, n_tokens: int, length: int, n_classes: int, *, hidden: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, 16)
        self.places = nn.Parameter(0.02 * torch.randn(length, 16))
        layer = nn.TransformerEncoderLayer(16, 2, hidden, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.encoder(self.embedding(x) + self.places).mean(1))


class BaseScanner(nn.Module):
    """Convolutions along a sequence of bases ``[B, T]``."""

    def __init__(self, n_classes: int, *, channels: int = 4) -> None:
        super().__init__()
        self.bases = nn.Embedding(4, 2 * channels)
        self.scan = nn.Sequential(
            nn.Conv1d(2 * channels, channels, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(channels, channels, 5, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(6),
            nn.Flatten(),
            nn.Linear(6 * channels, n_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.scan(self.bases(x).transpose(1, 2))


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A data set, a model, and how it is trained."""

    name: str
    data: str
    """The name of the data set."""
    title: str
    """The model in a few words."""
    make: Callable[[RealSet, int], nn.Module]
    """Returns the model for a data set at a width multiple."""
    metric: str = "accuracy"
    """``"accuracy"``, or ``"mse"`` or ``"loss"``, of which less is better."""
    epochs: int = 30
    learning_rate: float = 3e-3
    batch_size: int = 64
    max_training: int = 5_000
    repeats: int = 1
    """Seeds for each one asked for: small sets get more, because their scores are noisy."""
    is_fresh: bool = False
    """Whether it was added after the rule of the race was chosen."""

    @property
    def source(self) -> str:
        """The name that data sets made from the same data share."""
        return self.data.partition("-")[0]

    @property
    def is_loss(self) -> bool:
        """Whether less is better."""
        return self.metric != "accuracy"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch."""
        if self.metric == "mse":
            return functional.mse_loss(outputs, targets)
        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _tabular(name: str, **settings: object) -> Problem:
    """Return a table with an MLP of two hidden layers of 8 units."""

    def make(data: RealSet, multiple: int) -> nn.Module:
        return mlp(data.inputs.shape[1], data.n_classes or 1, hidden=8 * multiple)

    return Problem(name=name, data=name, title="MLP, 2 hidden layers of 8", make=make, **settings)


SMALL = {"batch_size": 32, "epochs": 40, "repeats": 2}
"""Settings of sets of fewer than a thousand samples."""
PROBLEMS = {
    problem.name: problem
    for problem in (
        _tabular("letter"),
        _tabular("satellite"),
        _tabular("shuttle"),
        _tabular("spam"),
        _tabular("income", learning_rate=1e-3),
        _tabular("dna", learning_rate=1e-3),
        _tabular("vowel", **SMALL),
        _tabular("vehicle", **SMALL),
        _tabular("soybean", **SMALL),
        _tabular("breast-cancer", learning_rate=1e-3, **SMALL),
        _tabular("pima", learning_rate=1e-3, **SMALL),
        _tabular("diamonds", metric="mse"),
        _tabular("diabetes", metric="mse", **SMALL),
        _tabular("ozone", metric="mse", **SMALL),
        Problem(
            name="fashion-cnn",
            data="fashion",
            title="CNN, 2 convolutions of 4 channels",
            make=lambda data, multiple: cnn(data.n_classes, channels=4 * multiple),
            epochs=15,
            max_training=2_500,
        ),
        Problem(
            name="fashion-residual",
            data="fashion",
            title="residual MLP, 2 blocks of 8",
            make=lambda data, multiple: residual_mlp(196, data.n_classes, hidden=8 * multiple),
            epochs=20,
        ),
        Problem(
            name="fashion-unet",
            data="fashion-noisy",
            title="U-Net, 4 channels",
            make=lambda _, multiple: UNet(4 * multiple),
            metric="mse",
            epochs=15,
            max_training=1_000,
        ),
        Problem(
            name="python-gpt",
            data="python",
            title="GPT, width 32, 2 blocks with MLPs of 16",
            make=lambda data, multiple: GPT(data.n_classes, hidden=16 * multiple),
            metric="loss",
            epochs=12,
            max_training=1_000,
        ),
        Problem(
            name="words-gru",
            data="words",
            title="GRU of 24 on letters of 16, with an MLP head of 8",
            make=lambda data, multiple: WordClassifier(data.n_classes, width=multiple),
            epochs=15,
            max_training=2_500,
        ),
        Problem(
            name="dna-encoder",
            data="dna-bases",
            title="nn.TransformerEncoder, 2 layers of width 16 with MLPs of 8",
            make=lambda data, multiple: SequenceEncoder(4, 60, data.n_classes, hidden=8 * multiple),
            epochs=12,
            max_training=1_500,
        ),
        Problem(
            name="dna-conv1d",
            data="dna-bases",
            title="Conv1d, 2 convolutions of 4 channels",
            make=lambda data, multiple: BaseScanner(data.n_classes, channels=4 * multiple),
            epochs=15,
            max_training=1_500,
        ),
        Problem(
            name="fashion-resnet",
            data="fashion",
            title="ResNet, a stream of 4 channels with 2 blocks",
            make=lambda data, multiple: ResNet(data.n_classes, channels=4 * multiple),
            epochs=12,
            max_training=1_500,
        ),
        Problem(
            name="letter-stream",
            data="letter",
            title="residual MLP without norms, a stream of 16 with 2 blocks of 8",
            make=lambda data, multiple: StreamMLP(16, data.n_classes, width=multiple),
            epochs=20,
            max_training=3_000,
        ),
        Problem(
            name="satellite-stream",
            data="satellite",
            title="residual MLP without norms, a stream of 16 with 2 blocks of 8",
            make=lambda data, multiple: StreamMLP(36, data.n_classes, width=multiple),
            epochs=20,
            max_training=3_000,
        ),
        Problem(
            name="letter-wide",
            data="letter",
            title="MLP, 2 hidden layers of 300",
            make=lambda data, multiple: mlp(16, data.n_classes, hidden=300 * multiple),
            epochs=12,
            max_training=1_500,
            learning_rate=1e-3,
        ),
        Problem(
            name="python-gpt-wide",
            data="python",
            title="GPT, width 64, 2 blocks with MLPs of 256",
            make=lambda data, multiple: GPT(data.n_classes, hidden=256 * multiple, width=64),
            metric="loss",
            epochs=8,
            max_training=600,
        ),
        _tabular("insurance", learning_rate=1e-3, is_fresh=True),
        _tabular("boston", metric="mse", is_fresh=True, **SMALL),
        _tabular("glass", is_fresh=True, **SMALL),
        _tabular("ionosphere", learning_rate=1e-3, is_fresh=True, **SMALL),
        _tabular("musk", learning_rate=1e-3, is_fresh=True, **SMALL),
        _tabular("sonar", learning_rate=1e-3, is_fresh=True, **SMALL),
        Problem(
            name="fashion-norm",
            data="fashion",
            title="CNN, 2 convolutions of 4 channels with batch norms",
            make=lambda data, multiple: norm_cnn(data.n_classes, channels=4 * multiple),
            epochs=12,
            max_training=2_000,
            is_fresh=True,
        ),
        Problem(
            name="fashion-wide",
            data="fashion",
            title="MLP, 2 hidden layers of 256",
            make=lambda data, multiple: nn.Sequential(
                nn.Flatten(), mlp(196, data.n_classes, hidden=256 * multiple)
            ),
            epochs=12,
            max_training=1_500,
            learning_rate=1e-3,
            is_fresh=True,
        ),
        Problem(
            name="python-gru",
            data="python",
            title="GRU of 16 on characters of 8",
            make=lambda data, multiple: CharacterGRU(data.n_classes, width=multiple),
            metric="loss",
            epochs=12,
            max_training=1_000,
            is_fresh=True,
        ),
    )
}
"""Every problem by name."""
