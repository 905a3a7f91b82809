"""Small models of the usual kinds, with the places of each whose units can become more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, gelu, max_pool2d, relu


def flat_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


class LeNet(nn.Module):
    """Functions between layers, and a flatten that turns each channel into nine inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv_2 = nn.Conv2d(4, 6, 3)
        self.full_1 = nn.Linear(6 * 9, 10)
        self.full_2 = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(relu(self.conv_1(x)), 2)
        x = adaptive_avg_pool2d(relu(self.conv_2(x)), 3)
        return self.full_2(relu(self.full_1(self.flattened(x))))

    def flattened(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class FixedSize(LeNet):
    def flattened(self, x: Tensor) -> Tensor:
        return x.view(-1, 54)


def vgg() -> nn.Module:
    """Batch norms of every form, one of them after the flatten; dropout."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6, affine=False), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.BatchNorm1d(24), nn.Linear(24, 8)),
        *(nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)),
    )


class BasicBlock(nn.Module):
    def __init__(self, width: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width_out)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width_out)
        self.shortcut = nn.Identity()
        if stride > 1:
            conv = nn.Conv2d(width, width_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(width_out))

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class Bottleneck(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, hidden, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(hidden)
        self.conv2 = nn.Conv2d(hidden, hidden, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(hidden)
        self.conv3 = nn.Conv2d(hidden, width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))))
        return relu(self.bn3(self.conv3(y)) + x)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.layers = nn.Sequential(BasicBlock(4, 4, 1), BasicBlock(4, 6, 2), Bottleneck(6, 3))
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(relu(self.bn(self.stem(x)))).mean((2, 3)))


def _double_conv(width: int, width_out: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(width, width_out, 3, padding=1),
        nn.BatchNorm2d(width_out),
        nn.ReLU(),
        nn.Conv2d(width_out, width_out, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Its decoder reads concatenated tensors, with the skip before or after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.down_1, self.down_2 = _double_conv(1, 4), _double_conv(4, 3)
        self.up = nn.ConvTranspose2d(3, 2, 2, 2)
        self.last = _double_conv(6, 4)
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down_1(x)
        up = self.up(self.down_2(max_pool2d(skip, 2)))
        return self.out(self.last(torch.cat([skip, up], 1)))


class PreNormBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.fc2(gelu(self.fc1(self.norm_2(x))))


def pre_norm() -> nn.Module:
    return nn.Sequential(PreNormBlock(8), nn.Linear(8, 3))


def encoder() -> nn.Module:
    """Torch's own layers, whose fast path reads weights without calling the modules."""
    settings = {"d_model": 8, "nhead": 2, "dim_feedforward": 6, "dropout": 0.0, "batch_first": True}
    return nn.Sequential(
        nn.TransformerEncoderLayer(**settings, norm_first=True, activation="gelu"),
        nn.TransformerEncoderLayer(**settings),
    )


class RecurrentHead(nn.Module):
    def __init__(self, kind: type[nn.GRU | nn.LSTM]) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 6)
        self.rnn = kind(6, 7, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(7, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(self.rnn(relu(self.embed(x)))[0][:, -1])))


class TiedEmbeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.up, self.down = nn.Linear(6, 9), nn.Linear(9, 6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.down(relu(self.up(self.embed(tokens)))))


class Softmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.softmax(self.a(x), -1))


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(relu(self.a(relu(self.a(x)))))


@dataclass(frozen=True)
class Case:
    """A model with the slots for units that it can have, and what is wrong with other places."""

    build: Callable[[], nn.Module]
    sample: Callable[[int], Tensor]
    places: tuple[str, ...]
    refused: dict[str, str]
    """A pattern of the reason, by place."""


def _normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _tokens(seed: int) -> Tensor:
    return torch.randint(7, (3, 5), generator=torch.Generator().manual_seed(seed))


IMAGES, VECTORS, SEQUENCES = _normal(3, 1, 8, 8), _normal(4, 5), _normal(3, 5, 8)

CASES = {
    "flat": Case(flat_mlp, VECTORS, ("0>2", "2>4"), {"4>0": "reach the model's output"}),
    "lenet": Case(LeNet, IMAGES, ("conv_1>conv_2", "conv_2>full_1", "full_1>full_2"), {}),
    "fixed": Case(
        FixedSize,
        IMAGES,
        ("conv_1>conv_2", "full_1>full_2"),
        {"conv_2>full_1": "fails with more units .*x54 .*a size is fixed"},
    ),
    "vgg": Case(vgg, IMAGES, ("0>4", "4>10", "10>14"), {"1>4": "no submodule, group"}),
    "resnet": Case(
        ResNet,
        IMAGES,
        (
            # Each stage has a residual stream.
            "stem+layers.0.conv2>layers.0.conv1+layers.1.conv1+layers.1.shortcut.0",
            "layers.0.conv1>conv2",
            "layers.1.conv1>conv2",
            "layers.1.conv2>*",
            "layers.2.conv1>layers.2.conv2",
            "layers.2.conv2>layers.2.conv3",
        ),
        {"layers.2.conv3>fc": "no submodule, group"},
    ),
    "unet": Case(
        UNet,
        IMAGES,
        (
            "down_1.0>down_1.3",
            "down_1.3>down_2.0+last.0",
            "down_2.0>down_2.3",
            "down_2.3>up",
            "up>last.0",
            "last.0>last.3",
            "last.3>out",
        ),
        {},
    ),
    "pre_norm": Case(pre_norm, SEQUENCES, ("0.fc1>0.fc2",), {"0.fc2>1": "fails with more units"}),
    "encoder": Case(encoder, SEQUENCES, ("*.linear1>linear2",), {"0.norm2>1.linear1": "no submod"}),
    "gru": Case(lambda: RecurrentHead(nn.GRU), SEQUENCES, ("embed>rnn", "rnn>fc1", "fc1>fc2"), {}),
    "lstm": Case(
        lambda: RecurrentHead(nn.LSTM), SEQUENCES, ("embed>rnn", "rnn>fc1", "fc1>fc2"), {}
    ),
    "tied": Case(TiedEmbeddings, _tokens, ("up>down",), {"down>head": "shares a tensor .*tied"}),
    "softmax": Case(Softmax, VECTORS, (), {"a>b": "'b' does not read .*'a'.* mixes"}),
    "twice": Case(CalledTwice, VECTORS, (), {"a>b": "'a' is called 2 times"}),
}

GROWABLE = [name for name, case in CASES.items() if case.places]


def build(name: str, seed: int = 0) -> nn.Module:
    """Return a case's model with drawn weights and statistics, in evaluation mode."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = CASES[name].build().eval()
        for tensor in model.parameters():
            # Large enough that few units are dead on a few samples.
            if tensor.ndim > 1:
                tensor.mul_(2.0)
            else:
                tensor.add_(0.3 * torch.rand_like(tensor))
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(0.3 * torch.rand_like(buffer))
    return model
