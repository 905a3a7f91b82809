"""A population uses the faster form by default, or the requested one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from esper.config.growth import MLPHostConfig
from esper.errors import ConfigError, UnsupportedHostError
from esper.growth.placement import add_slots
from esper.populations import SequentialPopulation, StackedPopulation, make_population
from esper.populations.factory import MAX_STACKED_PARAMETERS
from tests.populations.worlds import CONFIGS, MLP, Builder, make_specs


class Recurrent(nn.Module):
    """A host whose recurrent layer has no stacked form."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(2, 4, batch_first=True)
        self.block = nn.Linear(4, 4)
        self.head = nn.Linear(4, MLP.n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.recurrent(x.unflatten(1, (3, 2)))[0][:, -1]))


class MeanOfSamples(nn.Module):
    """A host whose layers can be stacked, but whose forward code names the batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(MLP.n_features, MLP.n_features)
        self.head = nn.Linear(MLP.n_features, MLP.n_classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return self.head(y - y.mean(0))


def build(kind: type[nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return add_slots(kind(), ["block"], torch.zeros(2, MLP.n_features))


@pytest.mark.parametrize("design", sorted(CONFIGS))
def test_several_small_hosts_are_stacked(design: str) -> None:
    specs = make_specs(CONFIGS[design], (8, 8))
    assert isinstance(make_population(Builder(CONFIGS[design]), specs), StackedPopulation)


def test_a_single_host_is_not_stacked() -> None:
    population = make_population(Builder(MLP), make_specs(MLP, (8,)))
    assert isinstance(population, SequentialPopulation)


def test_large_hosts_are_not_stacked() -> None:
    width = int(MAX_STACKED_PARAMETERS**0.5)
    config = MLPHostConfig(n_features=6, n_classes=3, width=width, hidden=width, n_blocks=1)
    population = make_population(Builder(config), make_specs(config, (8, 8)))
    assert isinstance(population, SequentialPopulation)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Recurrent, "recurrent is a GRU"), (MeanOfSamples, "MeanOfSamples")],
)
def test_a_design_that_cannot_be_stacked_falls_back_to_sequential(
    kind: type[nn.Module], reason: str
) -> None:
    specs = make_specs(MLP, (8, 8))
    population = make_population(lambda seed: build(kind, seed), specs)
    assert isinstance(population, SequentialPopulation)
    with pytest.raises(UnsupportedHostError, match=rf"^{reason}.*use SequentialPopulation"):
        make_population(lambda seed: build(kind, seed), specs, form="stacked")


@pytest.mark.parametrize(
    ("form", "kind"), [("stacked", StackedPopulation), ("sequential", SequentialPopulation)]
)
def test_an_explicit_form_is_used(form: str, kind: type) -> None:
    # One host, which would be trained by itself, and two, which would be stacked.
    for sizes in ((8,), (8, 8)):
        population = make_population(Builder(MLP), make_specs(MLP, sizes), form=form)  # type: ignore[arg-type]
        assert type(population) is kind


def test_an_unknown_form_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"form is 'stack'; .*Did you mean 'stacked'\?"):
        make_population(Builder(MLP), make_specs(MLP, (8,)), form="stack")  # type: ignore[arg-type]


def test_an_empty_population_is_rejected() -> None:
    for form in ("auto", "stacked", "sequential"):
        with pytest.raises(ConfigError, match="specs is empty"):
            make_population(Builder(MLP), [], form=form)  # type: ignore[arg-type]
