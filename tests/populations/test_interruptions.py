"""Copies, failures, removals and interruptions leave a population in a consistent state."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from esper.config.growth import PopulationConfig
from esper.errors import ConfigError
from esper.lifecycle.factored_actions import GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import (
    Population,
)
from tests.populations.test_slot_arrays import assert_arrays_follow
from tests.populations.worlds import (
    FORMS,
    MLP,
    Builder,
    Make,
    make_specs,
)

CONFIG = PopulationConfig(batch_size=8)


def act(op: Op, blueprint: str = "mlp_small") -> GrowthAction:
    return GrowthAction(op=op, slot="blocks.0", blueprint=blueprint)


def assert_same(first: Population, second: Population, tolerance: float = 0.0) -> None:
    for host in range(first.n_hosts):
        a, b = first.get_state(host), second.get_state(host)
        assert a.facts == b.facts
        assert a.tensors.keys() == b.tensors.keys()
        for name, tensor in a.tensors.items():
            torch.testing.assert_close(tensor, b.tensors[name], atol=tolerance, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_a_population_with_a_loaded_state_is_independent(form: Make) -> None:
    population = form(Builder(MLP), make_specs(MLP, (16, 24)), CONFIG)
    population.apply(0, act(Op.GERMINATE))
    population.apply(0, act(Op.ADVANCE))
    population.train_epoch()
    twin = form(Builder(MLP), population.specs, CONFIG)
    twin.load_state_dict(population.state_dict())
    assert_same(population, twin)
    assert_arrays_follow(twin)
    before, stages = population.state_dict(), population.slot_arrays().stage.copy()
    twin.apply(1, act(Op.GERMINATE))
    twin.apply(0, act(Op.ADVANCE))
    twin.train_epoch()
    assert_arrays_follow(twin)
    stages_of_twin = twin.slot_arrays().stage[:, 2].tolist()
    assert stages_of_twin == [Stage.BLENDING, Stage.GERMINATED]
    np.testing.assert_array_equal(population.slot_arrays().stage, stages)
    for name, tensor in population.state_dict()["tensors"].items():
        assert torch.equal(tensor, before["tensors"][name])
    population.apply(1, act(Op.GERMINATE))
    population.apply(0, act(Op.ADVANCE))
    population.train_epoch()
    assert_same(population, twin)


def spoil_data(population: Population, host: int) -> None:
    population.specs[host].data.train_inputs[:] = torch.nan


@pytest.mark.parametrize("form", FORMS)
def test_removed_seeds_do_not_return_when_the_host_is_rolled_back(form: Make) -> None:
    population = form(Builder(MLP), make_specs(MLP, (16, 16)), CONFIG)
    population.apply(0, act(Op.GERMINATE))
    population.apply(0, act(Op.ADVANCE))
    population.train_epoch()
    population.end_growth(0, keep=False)
    good = population.get_state(0)
    spoil_data(population, 0)
    report = population.train_epoch()
    assert report.interventions[0].pruned == ()
    now = population.get_state(0)
    assert now.tensors.keys() == good.tensors.keys()
    assert population.lives(0)["blocks.0"].stage == Stage.EMBARGOED


@pytest.mark.parametrize("form", FORMS)
def test_unknown_hosts_cannot_be_finished_or_cleared(form: Make) -> None:
    population = form(Builder(MLP), make_specs(MLP, (16, 16)), CONFIG)
    for host in (-1, 2):
        with pytest.raises(ConfigError, match=rf"no host {host}; .*0 to 1"):
            population.finish(host)
        with pytest.raises(ConfigError, match=rf"no host {host}; .*0 to 1"):
            population.end_growth(host, keep=False)
    assert not population.is_finished.any()


@pytest.mark.parametrize("form", FORMS)
def test_a_restarted_host_is_rolled_back_to_its_own_start(form: Make) -> None:
    specs = make_specs(MLP, (16, 16))
    population = form(Builder(MLP), specs, CONFIG)
    population.train_epoch()
    other = make_specs(MLP, (16, 16, 24))[2]
    population.restart(0, other)
    start = population.get_state(0).tensors
    spoil_data(population, 0)
    assert list(population.train_epoch().interventions) == [0]
    now = population.get_state(0).tensors
    assert now.keys() == start.keys()
    for name, tensor in now.items():
        assert torch.equal(tensor, start[name])


@pytest.mark.parametrize("form", FORMS)
def test_flops_of_a_failing_host_are_counted_up_to_the_failure(form: Make) -> None:
    specs = make_specs(MLP, (32, 32))
    population = form(Builder(MLP), specs, CONFIG)
    order = copy.deepcopy(population.orders[0]).draw_epoch()
    specs[0].data.train_inputs[order[2]] = torch.nan
    report = population.train_epoch()
    assert list(report.interventions) == [0]
    by_step = 8 * population.costs_of(0).host_training
    assert report.flops.tolist() == [3 * by_step, 4 * by_step]
