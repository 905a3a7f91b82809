"""The seed determines a host, and hosts that do not fit the population are rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from esper.errors import ConfigError
from esper.growth.blueprints import SeedForm
from esper.growth.blueprints import registry as blueprint
from esper.growth.footprint import forward_flops, training_step_flops
from esper.growth.placement import add_slots
from esper.growth.sites import TensorKind
from esper.populations import (
    HostData,
    HostSpec,
    make_population,
)
from tests.populations.worlds import (
    MLP,
    Builder,
    compiled,
    in_torch,
    make_specs,
)


def build_plain(seed: int) -> nn.Module:
    """Draw from torch's default generator, as user models do."""
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    return add_slots(model, ["0"], torch.zeros(2, 6))


def build_seeding(seed: int) -> nn.Module:
    torch.manual_seed(5)
    return build_plain(seed)


@pytest.mark.parametrize("build", [build_plain, build_seeding])
def test_the_seed_determines_hosts_that_draw_from_the_default_generator(
    build: Callable[[int], nn.Module],
) -> None:
    specs = make_specs(MLP, (8, 8))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = compiled(build, specs)
    first.restart(0, replace(specs[0], seed=7))
    first.model(1)
    make_population(build, specs)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = compiled(build, [replace(specs[0], seed=7), specs[1]])
    for host in range(2):
        for name, tensor in first.get_state(host).tensors.items():
            assert torch.equal(tensor, second.get_state(host).tensors[name])
    weights = [first.get_state(host).tensors["model/0.weight"] for host in range(2)]
    assert torch.equal(*weights) == (build is build_seeding)


class _Recurrent(nn.Module):
    """A sequence model whose cost depends on the length."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x).mean(-2))


def _sequences(length: int, seed: int) -> HostSpec:
    inputs, targets = torch.randn(8, length, 4), torch.arange(8) % 3
    return HostSpec(seed=seed, data=HostData(inputs, targets, inputs, targets))


def test_costs_depend_on_a_hosts_own_samples() -> None:
    def build(seed: int) -> nn.Module:
        return add_slots(_Recurrent(), ["block"], torch.zeros(2, 5, 4))

    specs = [_sequences(5, 0), _sequences(10, 1)]
    population = in_torch(build, specs)
    population.restart(0, _sequences(20, 2))
    for host, length in enumerate((20, 10)):
        sample = torch.zeros(2, length, 4)
        table = population.costs_of(host)
        assert table.host_forward == forward_flops(build(0), sample) / 2
        assert table.host_training == training_step_flops(build(0), sample) / 2


def test_a_blueprint_registered_after_the_population_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blueprint, "_REGISTRY", dict(blueprint._REGISTRY))
    specs = make_specs(MLP, (8, 8))
    population = compiled(Builder(MLP), specs)
    before = population.get_state(0).tensors
    blueprint.register_blueprint(
        blueprint.Blueprint(
            name="late",
            kinds=frozenset({TensorKind.VECTOR}),
            form=SeedForm.SERIAL,
            build=lambda site: nn.Linear(site.width, site.width),
            summary="came late",
        )
    )
    with pytest.raises(ConfigError, match=r"host 0 .*blueprints .*'late'"):
        population.restart(0, specs[1])
    for name, tensor in population.get_state(0).tensors.items():
        assert torch.equal(tensor, before[name])
