"""A change keeps what a model computes on every input, or it is refused."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import esper
from esper.errors import SurgeryError

WIDTH = 8


class Attention(nn.Module):
    """Attention that takes its heads apart in one of the ways that people write."""

    def __init__(self, way: str, n_heads: int) -> None:
        super().__init__()
        self.way, self.n_heads, self.size = way, n_heads, WIDTH // n_heads
        if way.startswith("packed"):
            self.packed = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        if self.way == "packed":
            parts = self.packed(x).view(n, t, -1, 3 * self.size).transpose(1, 2).chunk(3, -1)
        elif self.way == "packed three":
            parts = self.packed(x).view(n, t, -1, 3, self.size).permute(3, 0, 2, 1, 4).unbind(0)
        elif self.way == "packed split":
            rows = self.packed(x).split(WIDTH, -1)
            parts = [each.view(n, t, self.n_heads, -1).transpose(1, 2) for each in rows]
        else:
            parts = [layer(x) for layer in (self.query, self.key, self.value)]
            if self.way == "by size":
                parts = [each.view(n, t, -1, self.size).transpose(1, 2) for each in parts]
            elif self.way == "by number":
                parts = [each.view(n, t, self.n_heads, -1).transpose(1, 2) for each in parts]
            elif self.way == "heads last":
                parts = [each.view(n, t, -1, self.n_heads).permute(0, 3, 1, 2) for each in parts]
        y = functional.scaled_dot_product_attention(*parts)
        if y.ndim == 4:
            y = (y.permute(0, 2, 3, 1) if self.way == "heads last" else y.transpose(1, 2)).flatten(
                2
            )
        return self.out(y)


class Attending(nn.Module):
    """Two blocks of attention."""

    def __init__(self, way: str, n_heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention(way, n_heads) for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sample", ["equal positions", "one position", "usual"])
@pytest.mark.parametrize("n_heads", [1, 2])
@pytest.mark.parametrize(
    "way",
    ["by size", "by number", "heads last", "flat", "packed", "packed three", "packed split"],
)
def test_no_sample_lets_attention_compute_something_else(
    way: str, n_heads: int, sample: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = Attending(way, n_heads).to(dtype)
    length = 1 if sample == "one position" else 5
    x = torch.randn(2, 1, WIDTH) if sample == "equal positions" else torch.randn(2, length, WIDTH)
    before, others = copy.deepcopy(model).double(), torch.randn(4, 6, WIDTH).double()
    try:
        esper.widen(model, 1.5, sample_input=x.expand(2, length, WIDTH).to(dtype))
    except SurgeryError:
        assert_same_state(model, before.to(dtype))
        return
    model.double()  # the weights as they are, without rounding on the way
    torch.testing.assert_close(model(others), before(others), rtol=0.0, atol=1e-9)


def test_a_sample_of_one_position_is_said_to_leave_heads_open() -> None:
    model = Attending("by number", 2)
    model.head = nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(), nn.Linear(6, 3))
    change = esper.widen(model, 2.0, sample_input=torch.randn(2, 1, WIDTH))
    assert [row.place for row in change.places] == ["head"]
    assert any("blocks.0.query" in note and "positions" in note for note in change.notes)


class Residual(nn.Module):
    """A residual block: x + f(x), or norm(x + f(x))."""

    def __init__(self, width: int, hidden: int, *, is_gated: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * hidden if is_gated else hidden)
        self.down = nn.Linear(hidden, width)
        self.is_gated = is_gated

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.norm(x))
        return x + self.down(functional.glu(h) if self.is_gated else functional.gelu(h))


def mean_centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def shuffled(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def doubled_late(x: Tensor) -> Tensor:
    return torch.cat([x[..., :-2], 2.0 * x[..., -2:]], -1)


def without_small(x: Tensor) -> Tensor:
    return x * (x >= x.median(-1, keepdim=True).values)


PER_UNIT: list[Callable[[Tensor], Tensor]] = [torch.relu, torch.tanh, functional.silu, torch.square]
MIXING: list[Callable[[Tensor], Tensor]] = [
    mean_centred,
    shuffled,
    doubled_late,
    without_small,
    lambda x: x.softmax(-1),
    lambda x: functional.layer_norm(x, x.shape[-1:]),
    lambda x: x.flip(-1),
    lambda x: x / x.shape[-1] ** 0.5,
]
"""What does not act on each unit alone, or depends on how many there are."""


class Drawn(nn.Module):
    """A random network: layers in a row, some joined by a sum or next to each other."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        drawn = random.Random(seed)
        self.steps: list[tuple[str, int]] = []
        self.functions = [drawn.choice(PER_UNIT + MIXING * (seed % 2)) for _ in range(5)]
        self.layers = nn.ModuleList()
        width = WIDTH
        for k in range(5):
            step = drawn.choice(["plain", "norm", "join", "blocks", "gate"])
            new = 2 * drawn.randint(2, 6)
            if step == "blocks":
                blocks = [Residual(width, new, is_gated=bool(k % 2)) for _ in range(2)]
                self.layers.append(nn.Sequential(*blocks))
                new = width
            elif step == "norm":
                self.layers.append(nn.Sequential(nn.Linear(width, new), nn.BatchNorm1d(new)))
            else:
                self.layers.append(nn.Linear(width, 2 * new if step == "gate" else new))
            self.steps.append((step, k))
            width = width + new if step == "join" else new
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for step, k in self.steps:
            h = self.layers[k](x)
            h = functional.glu(h) if step == "gate" else h
            h = h if step == "blocks" else self.functions[k](h)
            x = torch.cat([x, h], -1) if step == "join" else h
        return self.head(x)


def trained(model: nn.Module) -> torch.optim.Optimizer:
    """Train a model a little, so that nothing in it is as it was built."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model.train(), optimizer, n_steps=3)
    return optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, n_steps: int) -> None:
    x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    for _ in range(n_steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return {
        n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()
    }


def old_part(gradient: Tensor, new: dict[int, list[tuple[int, int]]]) -> Tensor:
    for axis, ranges in new.items():
        taken = {index for first, end in ranges for index in range(first, end)}
        kept = [index for index in range(gradient.shape[axis]) if index not in taken]
        gradient = gradient.index_select(axis, torch.tensor(kept))
    return gradient


def assert_same_state(model: nn.Module, before: nn.Module) -> None:
    own, wanted = model.state_dict(), before.state_dict()
    assert list(own) == list(wanted)
    assert all(torch.equal(own[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("seed", range(24))
def test_random_networks_grow_exactly_and_train_on_like_a_copy_that_was_loaded(seed: int) -> None:
    torch.manual_seed(seed)
    model = Drawn(seed).double()
    optimizer = trained(model)
    model.eval()
    sample, others = torch.randn(3, WIDTH).double(), 2.0 * torch.randn(20, WIDTH).double()
    before, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    wanted = gradients(before, others)
    model.zero_grad()
    changes: list[esper.Change] = []
    for grow in random.Random(seed).sample([widened, deepened], 2):
        try:
            changes.append(grow(model, sample, optimizer))
        except SurgeryError:
            continue
        torch.testing.assert_close(model(others), before(others), rtol=1e-9, atol=1e-9)
        assert [id(p) for p in model.parameters()] == [
            id(p) for group in optimizer.param_groups for p in group["params"]
        ]
    if changes:
        entries, new = changes[-1].new_entries(), gradients(model, others)
        assert any(bool(new[name].any()) for name in changes[-1].new_names())
        kept = [p for p in new if p not in changes[-1].new_names() or p in entries]
        assert len(kept) == len(wanted)
        for name, old in zip(kept, wanted.values(), strict=True):
            part = old_part(new[name], entries.get(name, {}))
            torch.testing.assert_close(part, old, rtol=1e-7, atol=1e-9)
    for change in reversed(changes):
        change.undo()
    assert_same_state(model, before)
    assert str(optimizer.state_dict()) == str(state)


@pytest.mark.parametrize("seed", range(0, 24, 3))
def test_an_optimizer_that_followed_trains_on_like_one_that_was_loaded(seed: int) -> None:
    torch.manual_seed(seed)
    model = Drawn(2 * seed).double()
    optimizer = trained(model)
    sample = torch.randn(3, WIDTH).double()
    widened(model, sample, optimizer)
    twin = copy.deepcopy(model)
    loaded = torch.optim.AdamW(twin.parameters(), lr=0.01)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model.train(), optimizer, n_steps=3)
    train(twin.train(), loaded, n_steps=3)
    assert_same_state(model, twin)


def widened(model: nn.Module, sample: Tensor, optimizer: torch.optim.Optimizer) -> esper.Change:
    return esper.widen(model, 1.5, sample_input=sample, optimizer=optimizer)


def deepened(model: nn.Module, sample: Tensor, optimizer: torch.optim.Optimizer) -> esper.Change:
    return esper.deepen(model, 1, sample_input=sample, optimizer=optimizer)
