"""Layers that start wider are distributed like layers that were built that wide."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import esper
from esper.growth.host_slots import slots
from esper.growth.surgery.twins import TwinMaker
from esper.growth.weight_laws import WeightLaw


def mlp(width: int, width_2: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, width),
        nn.ReLU(),
        nn.Linear(width, width_2),
        nn.ReLU(),
        nn.Linear(width_2, 10),
    )


def conv(width: int, width_2: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width_2, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * width_2, 6),
    )


MODELS: dict[str, tuple[Callable[[int, int], nn.Module], Tensor]] = {
    "mlp": (mlp, torch.randn(2, 20)),
    "conv": (conv, torch.randn(2, 3, 6, 6)),
}


def default(model: nn.Module) -> nn.Module:
    return model


def he(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter)
    return model


def glorot(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
    return model


def fixed(model: nn.Module) -> nn.Module:
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model


def ks_probability(first: Tensor, second: Tensor) -> float:
    """Return the p-value of the two-sample Kolmogorov-Smirnov test (asymptotic)."""
    a, b = (np.sort(t.detach().double().flatten().numpy()) for t in (first, second))
    both = np.concatenate([a, b])
    gaps = np.searchsorted(a, both, "right") / len(a) - np.searchsorted(b, both, "right") / len(b)
    size = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    distance = (size + 0.12 + 0.11 / size) * float(np.abs(gaps).max())
    terms = (2 * (-1) ** (k - 1) * math.exp(-2 * k**2 * distance**2) for k in range(1, 100))
    return min(1.0, sum(terms)) if distance > 0.2 else 1.0


@pytest.mark.parametrize("start", [default, he, glorot, fixed])
@pytest.mark.parametrize("name", MODELS)
def test_a_network_widened_everywhere_is_distributed_like_a_wide_one(
    name: str, start: Callable[[nn.Module], nn.Module]
) -> None:
    make, x = MODELS[name]
    grown: dict[str, list[Tensor]] = {}
    wide: dict[str, list[Tensor]] = {}
    with torch.random.fork_rng(devices=[]):
        for seed in range(5):
            torch.manual_seed(seed)
            twin = TwinMaker(start(make(24, 16)), x).make(2, seed=seed)
            for store, source in ((grown, twin), (wide, start(make(48, 32)))):
                for key, value in source.state_dict().items():
                    store.setdefault(key, []).append(value)
    assert grown.keys() == wide.keys()
    for key, tensors in wide.items():
        assert [t.shape for t in grown[key]] == [t.shape for t in tensors]
        found, wanted = torch.stack(grown[key]).double(), torch.stack(tensors).double()
        deviation = wanted.std().item()
        if deviation == 0.0:
            assert torch.equal(found, wanted)
            continue
        n = wanted.numel()
        assert found.std().item() == pytest.approx(deviation, rel=5.0 / math.sqrt(n))
        assert found.mean().item() == pytest.approx(0.0, abs=5.0 * deviation / math.sqrt(n))
        assert ks_probability(found, wanted) > 1e-3
        halves = [part for axis in range(1, min(3, found.ndim)) for part in found.chunk(2, axis)]
        for half in halves:  # the old units and the new ones
            assert half.std().item() == pytest.approx(deviation, rel=8.0 / math.sqrt(n))


def test_new_units_have_the_deviation_of_trained_weights() -> None:
    model = mlp(64, 32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    esper.add_slots(model, ["0>2"], torch.randn(2, 20))
    wanted = model[0].weight.square().mean().sqrt().item()
    slots(model).germinate("0>2", "widen_large")
    old, new = model[0].weight.chunk(2, 0)
    assert new.square().mean().sqrt().item() == pytest.approx(wanted, rel=0.1)
    assert old.square().mean().sqrt().item() == pytest.approx(wanted)
    assert not model[2].weight[:, 64:].any()


def test_zero_weights_stay_zero() -> None:
    law = WeightLaw.of(torch.zeros(4, 4), 4, 4)
    weight = torch.ones(3, 3)
    law.draw(weight, 8, 8)
    assert not weight.any()
