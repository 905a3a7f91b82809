"""Small models to grow and bit-exact comparisons, shared by several tests."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import Optimizer

from esper.growth.host_slots import HostSlots, slots
from esper.growth.placement import add_slots
from esper.growth.seed_slot import SeedSlot
from esper.growth.sites import SlotSite, TensorKind
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage


class ResidualBlock(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class ResidualMLP(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Linear(5, width)
        self.blocks = nn.ModuleList(ResidualBlock(width, 8) for _ in range(2))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ConvBlock(nn.Module):
    def __init__(self, width: int, hidden: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(width, hidden, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(hidden)
        self.conv_2 = nn.Conv2d(hidden, width_out, 3, padding=1)
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(width, width_out, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.conv_2(torch.relu(self.norm(self.conv_1(x))))


class ConvNet(nn.Module):
    """Its second block halves the feature map; each block is followed by an in-place operation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.block_1 = ConvBlock(4, 4, 4, stride=1)
        self.block_2 = ConvBlock(4, 6, 8, stride=2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.block_1(self.stem(x)))
        return self.head(torch.relu_(self.block_2(x)).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.query_key_value(x).chunk(3, dim=-1)
        return self.project(scaled_dot_product_attention(query, key, value, is_causal=True))


class TransformerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Transformer(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, width)
        self.blocks = nn.Sequential(TransformerBlock(width), TransformerBlock(width))
        self.head = nn.Linear(width, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def _tokens(seed: int) -> Tensor:
    return torch.randint(7, (3, 5), generator=torch.Generator().manual_seed(seed))


def _normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed))


HOSTS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...], Callable[[int], Tensor]]] = {
    "mlp": (ResidualMLP, ("blocks.0", "blocks.1", "stem"), _normal(4, 5)),
    "conv": (ConvNet, ("block_1", "block_2"), _normal(3, 1, 6, 6)),
    # One slot is nested in another.
    "transformer": (Transformer, ("blocks.0", "blocks.0.mlp", "blocks.1.attention"), _tokens),
}
"""Constructor, slot names and seeded input of each model."""


def make_host(name: str, seed: int = 0) -> tuple[nn.Module, HostSlots, Tensor]:
    """Return a model with slots, its slots and an input."""
    model = copy.deepcopy(_host(name, seed))
    return model, slots(model), HOSTS[name][2](1)


@functools.cache
def _host(name: str, seed: int) -> nn.Module:
    make, at, sample = HOSTS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
    return add_slots(model, list(at), sample(0))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum()


def grads_of(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the gradient of each parameter that has one, by name."""
    model.zero_grad()
    loss_of(model, x).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def lead_to(host: HostSlots, slot: str, stage: Stage, **choices: object) -> SeedSlot:
    """Bring a dormant slot to a stage by legal actions, and return it."""
    host.germinate(slot, **choices)  # type: ignore[arg-type]
    for successor in (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING):
        if host[slot].stage == stage:
            break
        while host[slot].stage != successor:
            host.tick()
            host.advance(slot)
    assert host[slot].stage == stage
    return host[slot]


def randomize(module: nn.Module, seed: int = 0) -> None:
    """Give a seed random weights, as if it had been trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are bitwise equal: -0.0 differs from 0.0, NaN equals itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    raw = [t.detach().contiguous().flatten().view(torch.uint8) for t in (a, b)]
    return torch.equal(raw[0], raw[1])


def same_state(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def hooks_of(model: nn.Module) -> int:
    """Return the number of hooks of any kind on a model's modules."""
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, table)) for module in model.modules() for table in tables)


def site_for(
    kind: TensorKind, *, width: int = 4, width_in: int | None = None, size: int = 4
) -> SlotSite:
    """Return a site with a batch of two and sequences or feature maps of ``size``."""
    shapes = {
        TensorKind.VECTOR: lambda w: (2, w),
        TensorKind.SEQUENCE: lambda w: (2, size, w),
        TensorKind.FEATURE_MAP: lambda w: (2, w, size, size),
    }
    shape = shapes[kind]
    return SlotSite(
        name="block",
        kind=kind,
        output_shape=shape(width),
        input_shape=shape(width_in or width),
        input_key=0,
    )


def find_leftovers(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that an optimizer holds but the model does not."""
    present = {id(parameter) for parameter in model.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return [p for p in (*held, *optimizer.state) if id(p) not in present]


STYLES = list(BlendStyle)
