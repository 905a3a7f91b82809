"""Wider twins equal models that are built at their width, or compute what a trained model does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.errors import SurgeryError
from esper.growth.surgery.twins import TwinMaker, is_untrained


class Recurrent(nn.Module):
    """Letters, a GRU and a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(9, 4 * width, padding_idx=0)
        self.gru = nn.GRU(4 * width, 6 * width, batch_first=True)
        self.head = nn.Linear(6 * width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.letters(x))[1][0])


class ResNet(nn.Module):
    """Two residual blocks on a stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        n = 4 * width
        self.stem = nn.Sequential(nn.Conv2d(1, n, 3, bias=False), nn.BatchNorm2d(n))
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU())
            for _ in range(2)
        )
        self.head = nn.Linear(n, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for branch in self.branches:
            x = x + branch(x)
        return self.head(x.mean((2, 3)))


def mlp(width: int) -> nn.Module:
    hidden = 8 * width
    layers = nn.Linear(12, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(hidden, 4))


def normal_mlp(width: int) -> nn.Module:
    model = mlp(width)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


VECTORS, IMAGES = torch.randn(6, 12), torch.randn(3, 1, 8, 8)
WORDS = torch.randint(9, (4, 7), generator=torch.Generator().manual_seed(0))
KINDS: dict[str, tuple[Callable[[int], nn.Module], Tensor]] = {
    "mlp": (mlp, VECTORS),
    "normal weights": (normal_mlp, VECTORS),
    "resnet": (ResNet, IMAGES),
    "recurrent": (Recurrent, WORDS),
}


def built(make: Callable[[int], nn.Module], width: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(width)


@pytest.mark.parametrize("kind", KINDS)
def test_twins_of_untrained_models_are_drawn_like_models_of_their_width(kind: str) -> None:
    make, sample = KINDS[kind]
    twins, wide = list[nn.Module](), list[nn.Module]()
    for seed in range(24):
        maker = TwinMaker(built(make, 1, seed), (sample,))
        assert maker.is_untrained
        twins.append(maker.make(4, seed=seed))
        wide.append(built(make, 4, seed + 100))
    assert maker.count_parameters(4) == sum(p.numel() for p in wide[0].parameters())
    for name, parameter in wide[0].named_parameters():
        own, other = (
            torch.stack([model.get_parameter(name).detach() for model in models]).double()
            for models in (twins, wide)
        )
        assert own.shape == other.shape
        # The deviation of a layer's twin is known as well as that of the few weights it has.
        rel = 0.1 if make(1).get_parameter(name).numel() >= 64 else 0.45
        wanted = float(other.square().mean().sqrt())
        assert float(own.square().mean().sqrt()) == pytest.approx(wanted, rel=rel, abs=1e-9), name
        assert parameter.requires_grad
    assert twins[0](sample).shape == wide[0](sample).shape
    if kind == "recurrent":
        assert not twins[0].letters.weight[0].any()  # type: ignore[union-attr, index]


@pytest.mark.parametrize("kind", KINDS)
def test_trained_models_are_told_from_untrained_ones(kind: str) -> None:
    make, sample = KINDS[kind]
    before, after = list[bool](), list[bool]()
    for seed in range(10):
        model = built(make, 1, seed)
        before.append(is_untrained(model))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(100):
            optimizer.zero_grad()
            outputs: Any = model(sample)
            nn.functional.cross_entropy(outputs, torch.arange(len(outputs)) % 3).backward()
            optimizer.step()
        after.append(is_untrained(model))
    assert sum(before) >= 9
    # Weights and biases of a few normal numbers look much the same after a short training.
    assert sum(after) <= (10 if kind == "normal weights" else 2)


def test_a_twin_of_a_trained_model_computes_the_same_and_its_optimizer_follows() -> None:
    model = mlp(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        model(VECTORS).square().mean().backward()
        optimizer.step()
    maker = TwinMaker(model, (VECTORS,))
    before = model(VECTORS)
    maker.make(2, seed=0, model=model, optimizer=optimizer)
    torch.testing.assert_close(model(VECTORS), before)
    own = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in own} == {id(p) for p in model.parameters()}
    assert all(optimizer.state[p]["exp_avg"].shape == p.shape for p in own)


def test_frozen_layers_and_unnamed_groups_stay_as_wide_as_they_are() -> None:
    model = mlp(1)
    model[0].requires_grad_(False)  # type: ignore[index]
    assert [group.name for group in TwinMaker(model, (VECTORS,)).groups] == ["2>4"]
    named = TwinMaker(mlp(1), (VECTORS,), at=["0>2"])
    assert named.sizes(2) == (("0>2", 8, 16, "units"),)
    with pytest.raises(SurgeryError, match="'nope' cannot be widened"):
        TwinMaker(mlp(1), (VECTORS,), at=["nope"])
    frozen = TwinMaker(mlp(1).requires_grad_(False), (VECTORS,))
    assert frozen.problem == "all that could be widened is frozen"
