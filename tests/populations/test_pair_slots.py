"""Hosts with slots on pairs of layers are trained one after another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import esper
from esper.config.growth import GrowthConfig, PopulationConfig
from esper.errors import UnsupportedHostError
from esper.growth.footprint import forward_flops, training_step_flops
from esper.growth.host_slots import slots
from esper.growth.modules import count_parameters
from esper.lifecycle.factored_actions import GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import FirstSeed, HostData, HostSpec, Population, SequentialPopulation
from esper.populations.factory import make_population

PAIRS = ["0>2", "2>5"]
CONFIG = PopulationConfig(batch_size=8, learning_rate=0.01)


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(4, 6),
        nn.ReLU(),
        nn.Linear(6, 8, bias=False),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )
    config = GrowthConfig(min_training_epochs=1, min_holding_epochs=1, embargo_epochs=1)
    return esper.add_slots(model, PAIRS, torch.zeros(2, 4), growth_config=config)


def make(n_hosts: int = 2) -> Population:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 4, generator=generator)
    targets = inputs[:, :3].argmax(1)
    data = HostData(inputs[:28], targets[:28], inputs[28:], targets[28:])
    return make_population(
        build, [HostSpec(seed=seed, data=data) for seed in range(n_hosts)], CONFIG
    )


def germinate(slot: str, blueprint: str = "widen_medium") -> GrowthAction:
    return GrowthAction(
        op=Op.GERMINATE, slot=slot, blueprint=blueprint, tempo_epochs=3, alpha_target=1.0
    )


def step(population: Population, host: int, epoch: int) -> None:
    """Grow both pairs of a host in turn, again and again, and train an epoch."""
    lives = population.lives(host)
    slot = PAIRS[(epoch // 9) % 2]
    match lives[slot].stage:
        case Stage.DORMANT:
            action = germinate(slot)
        case Stage.HOLDING:
            action = GrowthAction(op=Op.FOSSILIZE, slot=slot)
        case Stage.FOSSILIZED:
            action = GrowthAction(op=Op.WAIT)
        case _:
            action = GrowthAction(op=Op.ADVANCE, slot=slot)
    if lives.is_legal(action):
        population.apply(host, action)
    population.train_epoch()


def test_the_factory_trains_such_hosts_one_after_another() -> None:
    assert isinstance(make(), SequentialPopulation)
    with pytest.raises(UnsupportedHostError, match="'0>2'"):
        make_population(build, make().specs, CONFIG, form="stacked")


def test_hosts_grow_again_and_again_and_their_costs_are_those_of_the_merged_network() -> None:
    population, n_before = make(1), count_parameters(build(0))
    x = torch.zeros(2, 4)
    for epoch in range(36):
        step(population, 0, epoch)
        model, lives = population.model(0), population.lives(0)
        if all(life.stage in (Stage.DORMANT, Stage.HOLDING) for _, life in lives.items()):
            merged, costs = esper.export(model), population.costs_of(0)
            torch.testing.assert_close(merged.eval()(x), model.eval()(x))
            added = sum(costs.fossil_parameters(name, life) for name, life in lives.items())
            growing = sum(
                len(p.flatten()) for s in slots(model).values() for p in s.seed_parameters()
            )
            assert count_parameters(merged) <= n_before + added + growing
            assert count_parameters(model) == n_before + added + growing
            assert costs.evaluation_flops(lives) == forward_flops(model, x) / 2
            # The table counts the gradient of every input; that of the model's needs none.
            spent = training_step_flops(model, x) / 2
            assert spent <= costs.training_flops(lives) <= 1.1 * spent
    lives = population.lives(0)
    # half of 6, 9 and 13 units; half of 8 and 12
    units = [[fossil.units for fossil in life.fossils] for _, life in lives.items()]
    assert units == [[3, 4, 6], [4, 6]]


def test_costs_are_those_of_the_merged_network_when_neighbours_grow_at_once() -> None:
    population, n_before, x = make(1), count_parameters(build(0)), torch.zeros(2, 4)
    lives = population.lives(0)

    for slot in PAIRS:
        population.apply(0, germinate(slot))
        while lives[slot].stage != Stage.HOLDING:
            action = GrowthAction(op=Op.ADVANCE, slot=slot)
            if lives.is_legal(action):
                population.apply(0, action)
            population.train_epoch()
    population.train_epoch()
    for slot in PAIRS:
        assert population.apply(0, GrowthAction(op=Op.FOSSILIZE, slot=slot)).was_done
    for _ in range(2):
        population.train_epoch()
    assert [fossil.links for fossil in lives["2>5"].fossils] == [(("0>2", 3),)]
    model, costs = population.model(0), population.costs_of(0)
    merged = esper.export(model)
    added = sum(costs.fossil_parameters(name, life) for name, life in lives.items())
    assert count_parameters(merged) == count_parameters(model) == n_before + added
    assert costs.evaluation_flops(lives) == forward_flops(merged, x) / 2


@pytest.mark.parametrize("stop", [13, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 22))])
def test_a_state_continues_exactly(stop: int) -> None:
    one, other = make(1), make(1)
    for epoch in range(stop):
        step(one, 0, epoch)
    other.load_state_dict(one.state_dict())
    for epoch in range(stop, stop + 4):
        step(one, 0, epoch)
        step(other, 0, epoch)
    states = one.state_dict(), other.state_dict()
    assert states[0]["tensors"].keys() == states[1]["tensors"].keys()
    for name, tensor in states[0]["tensors"].items():
        assert torch.equal(tensor, states[1]["tensors"][name]), name
    assert states[0]["facts"] == states[1]["facts"]


def test_planted_units_start_as_if_the_network_had_been_built_wide() -> None:
    population = make()
    seeds = [
        FirstSeed(action=germinate(pair, "widen_large"), number=i) for i, pair in enumerate(PAIRS)
    ]
    before = population.model(0)
    population.plant(0, seeds)
    model = population.model(0)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    # Mirrored units would leave the output as it is.
    assert not torch.allclose(model.eval()(x), before.eval()(x), atol=1e-3)
    merged = esper.export(model, committed_only=True)
    assert [merged[index].weight.shape for index in (0, 2, 5)] == [(12, 4), (16, 12), (3, 16)]
    scaled = merged[5].weight[:, :8] / before[5].weight
    assert scaled.detach().numpy() == pytest.approx(0.5**0.5, rel=1e-5)
    assert merged[5].weight.abs().max() <= 16**-0.5
    assert merged[2].weight.abs().max() <= 12**-0.5
