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
from esper.growth.weight_laws import WeightLaw
from esper.lifecycle.stages import Stage


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


MODELS: dict[str, tuple[Callable[[int, int], nn.Module], tuple[str, str], Tensor]] = {
    "mlp": (mlp, ("0>2", "2>4"), torch.randn(2, 20)),
    "conv": (conv, ("0>3", "3>6"), torch.randn(2, 3, 6, 6)),
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


@pytest.mark.parametrize(
    "order", [pytest.param(1, marks=pytest.mark.slow), -1], ids=["forward", "backward"]
)
@pytest.mark.parametrize("start", [default, he, glorot, fixed])
@pytest.mark.parametrize("name", MODELS)
def test_a_network_widened_everywhere_is_distributed_like_a_wide_one(
    name: str, start: Callable[[nn.Module], nn.Module], order: int
) -> None:
    make, pairs, x = MODELS[name]
    grown: dict[str, list[Tensor]] = {}
    wide: dict[str, list[Tensor]] = {}
    with torch.random.fork_rng(devices=[]):
        for seed in range(5):
            torch.manual_seed(seed)
            model = esper.add_slots(start(make(24, 16)), list(pairs), x, seed=seed)
            for pair in pairs[::order]:
                slots(model).start_wider(pair, "widen_large")
            for store, source in ((grown, esper.export(model)), (wide, start(make(48, 32)))):
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


def test_units_that_start_at_part_of_alpha_have_the_same_law_when_merged() -> None:
    model = esper.add_slots(mlp(64, 8), ["0>2"], torch.randn(2, 20))
    host = slots(model)
    host.germinate("0>2", "widen_large", alpha_target=0.5)
    host.commit_start("0>2")
    assert (host["0>2"].stage, host["0>2"].alpha) == (Stage.FOSSILIZED, 0.5)
    columns = esper.export(model)[2].weight.chunk(2, 1)
    assert columns[1].std().item() == pytest.approx(columns[0].std().item(), rel=0.1)


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


def test_a_network_can_start_wider_more_than_once() -> None:
    model = esper.add_slots(mlp(64, 8), ["0>2", "2>4"], torch.randn(2, 20))
    for blueprint in ("widen_large", "widen_large"):
        slots(model).start_wider("0>2", blueprint)
        slots(model).start_wider("2>4", blueprint)
    merged = esper.export(model)
    assert [merged[i].weight.shape for i in (0, 2, 4)] == [(256, 20), (32, 256), (10, 32)]
    assert merged[2].weight.std().item() == pytest.approx((3 * 256) ** -0.5, rel=0.05)
    for part in (*merged[2].weight.chunk(4, 0), *merged[2].weight.chunk(4, 1)):
        assert part.std().item() == pytest.approx((3 * 256) ** -0.5, rel=0.1)


def test_the_starting_weights_depend_on_the_seed_alone() -> None:
    def grown(seed: int) -> Tensor:
        torch.manual_seed(0)
        model = esper.add_slots(mlp(8, 8), ["0>2"], torch.zeros(2, 20), seed=seed)
        torch.manual_seed(seed + 5)
        slots(model).start_wider("0>2", "widen_small")
        return esper.export(model)[0].weight

    assert torch.equal(grown(1), grown(1))
    assert not torch.equal(grown(1), grown(2))


def test_zero_weights_stay_zero() -> None:
    law = WeightLaw.of(torch.zeros(4, 4), 4, 4)
    weight = torch.ones(3, 3)
    law.draw(weight, 8, 8)
    assert not weight.any()
    assert law.growth((4, 4), (8, 8)) == 1.0
