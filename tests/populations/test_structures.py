"""A host that computes something else than the design is detected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.errors import UnsupportedHostError
from esper.growth.placement import add_slots
from esper.populations import (
    SequentialPopulation,
    StackedPopulation,
    make_population,
    stacked_design,
)
from esper.populations.stacked_design import find_difference
from esper.populations.stacking import KnownKinds, kind_of, structure_of
from tests.populations.worlds import GPT, MLP, Builder, make_specs


class _Model(nn.Module):
    """A model with a setting outside its layers."""

    def __init__(self, setting: Any) -> None:
        super().__init__()
        self.block = nn.Linear(MLP.n_features, 4)
        self.head = nn.Linear(4, MLP.n_classes)
        self.setting = setting

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        factor = self.setting(y) if callable(self.setting) else self.setting
        while isinstance(factor, (tuple, list, dict, _Factor)):
            factor = _first(factor)
        return self.head(y * float(factor if not isinstance(factor, Tensor) else factor.mean()))


def _first(value: Any) -> Any:
    if isinstance(value, _Factor):
        return value.factor
    return next(iter(value.values())) if isinstance(value, dict) else value[0]


@dataclass
class _Factor:
    """A setting with its own equality."""

    factor: float


def build(setting: Any) -> Callable[[int], nn.Module]:
    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return add_slots(_Model(setting), ["block"], torch.randn(2, MLP.n_features))

    return make


SETTINGS: dict[str, tuple[Any, Any]] = {
    "number": (1.0, 2.0),
    "whole number": (1, 2),
    "bool": (True, False),
    "string": ("1", "2"),
    "tuple": ((1.0, 3.0), (2.0, 3.0)),
    "nested": ({"a": [1.0]}, {"a": [2.0]}),
    "function": (lambda y: 1.0, lambda y: 2.0),
    "tensor": (torch.tensor([1.0]), torch.tensor([2.0])),
    "array": (np.float64(1.0), np.float64(2.0)),
    "data": (_Factor(1.0), _Factor(2.0)),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_setting_outside_the_layers_is_detected(kind: str) -> None:
    first, second = SETTINGS[kind]
    specs = make_specs(MLP, (8, 8))
    StackedPopulation(build(first), [specs[0], replace(specs[1], build=build(first))])
    other = replace(specs[1], build=build(second))
    with pytest.raises(UnsupportedHostError, match=r"host 1 .*differs by"):
        StackedPopulation(build(first), [specs[0], other])
    population = StackedPopulation(build(first), specs)
    with pytest.raises(UnsupportedHostError, match="host 0 "):
        population.restart(0, other)
    assert isinstance(make_population(build(first), [specs[0], other]), SequentialPopulation)


def test_a_design_whose_settings_depend_on_the_seed_is_detected() -> None:
    with pytest.raises(UnsupportedHostError, match="host 1 "):
        StackedPopulation(lambda seed: build(1.0 + seed)(seed), make_specs(MLP, (8, 8)))


def test_a_different_number_of_attention_heads_is_detected() -> None:
    assert GPT.n_heads != 1
    specs = make_specs(GPT, (8, 8))
    specs[1] = replace(specs[1], build=Builder(replace(GPT, n_heads=1)))
    with pytest.raises(UnsupportedHostError, match="host 1 "):
        StackedPopulation(Builder(GPT), specs)
    assert "n_heads=1" in repr(Builder(replace(GPT, n_heads=1))(0))


def test_hooks_are_part_of_the_structure_and_modes_are_not() -> None:
    model, other = build(1.0)(0), build(1.0)(1)
    assert structure_of(model) == structure_of(other.eval())
    other.register_forward_hook(lambda module, given, y: 2.0 * y)
    assert structure_of(model) != structure_of(other)


def test_each_structure_is_tested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    population = StackedPopulation(build(1.0), make_specs(MLP, (8, 8)))
    tried: list[nn.Module] = []
    monkeypatch.setattr(stacked_design, "find_difference", lambda model, *_: tried.append(model))
    for seed in range(3):
        population.restart(seed % 2, make_specs(MLP, (8, 8))[1])
    assert not tried
    for number in range(200):
        population.restart(0, replace(make_specs(MLP, (8, 8))[1], build=build(2.0 + number)))
    assert len(tried) == 200
    assert len(population.design._problems) <= stacked_design.MAX_STRUCTURES


def _seed(width: int = 3, slope: float = 0.5, *, is_training: bool = True) -> nn.Module:
    layers = nn.Linear(4, width), nn.LeakyReLU(slope), nn.Linear(width, 4)
    return nn.Sequential(*layers).train(is_training)


OTHER_KINDS = {
    "width": _seed(width=2),
    "setting": _seed(slope=0.25),
    "mode": _seed(is_training=False),
    "dtype": _seed().double(),
    "frozen": _seed().requires_grad_(False),
}


@pytest.mark.parametrize("other", OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_models_of_one_kind_differ_only_in_weights(other: nn.Module) -> None:
    assert kind_of(_seed()) == kind_of(_seed())
    assert kind_of(_seed()) != kind_of(other)


def test_modules_of_one_kind_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked_design, "_differences", KnownKinds())
    tried: list[int] = []
    original = stacked_design._compare
    monkeypatch.setattr(
        stacked_design, "_compare", lambda *given: tried.append(0) or original(*given)
    )
    sample = torch.zeros(3, 4)
    assert find_difference(_seed(), sample) is None
    n_first = len(tried)
    assert find_difference(_seed(), sample, _seed()) is None
    assert len(tried) == n_first
    assert find_difference(_seed(width=2), sample, _seed()) is None
    assert len(tried) == 2 * n_first
    assert find_difference(_seed(), torch.zeros(3, 5), _seed()) is not None


def test_the_oldest_answers_are_dropped_first() -> None:
    known = KnownKinds(limit=2)
    answers = iter(range(10))
    assert [known.find(key, lambda: next(answers)) for key in "abacab"] == [0, 1, 0, 2, 3, 4]


@pytest.mark.parametrize("kind", ["frozen", "tied"])
def test_a_host_with_frozen_or_shared_parameters_is_rejected_by_name(kind: str) -> None:
    class _Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Linear(6, 6)
            self.second = nn.Linear(6, 6)
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(self.block(x)))

    def make(seed: int) -> nn.Module:
        return add_slots(_Twice(), ["block"], torch.randn(2, 6))

    def spoil(seed: int) -> nn.Module:
        model = _Twice()
        if kind == "frozen":
            model.head.weight.requires_grad_(False)
        else:
            model.second.weight = model.block.weight
        return add_slots(model, ["block"], torch.randn(2, 6))

    specs = make_specs(MLP, (8, 8))
    specs[1] = replace(specs[1], build=spoil)
    message = "head.weight is frozen" if kind == "frozen" else "are the same parameter"
    with pytest.raises(UnsupportedHostError, match=rf"host 1 .*{message}"):
        StackedPopulation(make, specs)
    assert isinstance(make_population(make, specs), SequentialPopulation)


def test_batch_norm_on_vectors_trains_with_a_single_host() -> None:
    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layers = (nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
        return add_slots(nn.Sequential(*layers), ["0"], torch.randn(2, 6))

    specs = make_specs(MLP, (24,))
    pair = [form(make, specs) for form in (SequentialPopulation, StackedPopulation)]
    losses = [population.train_epoch().losses for population in pair]
    np.testing.assert_allclose(*losses, rtol=1e-5)
