"""Copies, failures, removals and interruptions leave a population in a consistent state."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.config.growth import PopulationConfig
from esper.errors import ConfigError
from esper.lifecycle.factored_actions import BlendStyle, GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import (
    CrossEntropy,
    Population,
    SequentialPopulation,
    StackedPopulation,
)
from tests.populations.test_slot_arrays import assert_arrays_follow
from tests.populations.worlds import CNN, MLP, Builder, make_specs

FORMS = [SequentialPopulation, StackedPopulation]
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


class _Failing(CrossEntropy):
    """An objective whose loss fails at a given call."""

    def __init__(self) -> None:
        self.calls_left = -1

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise KeyboardInterrupt
        return super().losses(outputs, targets)


@pytest.mark.parametrize("has_acted", [False, True])
def test_an_interrupted_epoch_is_rolled_back(has_acted: bool) -> None:
    def make() -> StackedPopulation:
        specs, failing = make_specs(CNN, (32, 40, 7)), _Failing()
        population = StackedPopulation(Builder(CNN), specs, CONFIG, objective=failing)
        population.apply(1, act(Op.GERMINATE, "conv_small"))
        population.train_epoch()
        population.apply(1, act(Op.ADVANCE))
        population.train_epoch()
        if has_acted:
            population.apply(0, act(Op.GERMINATE, "conv_small"))
            population.apply(0, act(Op.ADVANCE))
        return population

    hit, calm = make(), make()
    lives = [hit.lives(host) for host in range(3)]
    objective = hit.objective
    assert isinstance(objective, _Failing)
    for call in (1, 3, 5):
        objective.calls_left = call
        with pytest.raises(KeyboardInterrupt):
            hit.train_epoch()
        assert_same(hit, calm)
        assert_arrays_follow(hit)
        assert [hit.lives(host) for host in range(3)] == lives
    hit.apply(2, act(Op.GERMINATE, "conv_small"))
    calm.apply(2, act(Op.GERMINATE, "conv_small"))
    for _ in range(2):
        reports = [population.train_epoch() for population in (hit, calm)]
        np.testing.assert_array_equal(reports[0].losses, reports[1].losses)
    assert_same(hit, calm)
    assert_arrays_follow(hit)


@pytest.mark.parametrize("form", FORMS)
def test_a_population_with_a_loaded_state_is_independent(form: type[Population]) -> None:
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
    assert twin.slot_arrays().stage.tolist() == [[Stage.BLENDING, 0], [Stage.GERMINATED, 0]]
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
def test_removed_seeds_do_not_return_when_the_host_is_rolled_back(form: type[Population]) -> None:
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
def test_unknown_hosts_cannot_be_finished_or_cleared(form: type[Population]) -> None:
    population = form(Builder(MLP), make_specs(MLP, (16, 16)), CONFIG)
    for host in (-1, 2):
        with pytest.raises(ConfigError, match=rf"no host {host}; .*0 to 1"):
            population.finish(host)
        with pytest.raises(ConfigError, match=rf"no host {host}; .*0 to 1"):
            population.end_growth(host, keep=False)
    assert not population.is_finished.any()


@pytest.mark.parametrize("form", FORMS)
def test_a_restarted_host_is_rolled_back_to_its_own_start(form: type[Population]) -> None:
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
def test_flops_of_a_failing_host_are_counted_up_to_the_failure(form: type[Population]) -> None:
    specs = make_specs(MLP, (32, 32))
    population = form(Builder(MLP), specs, CONFIG)
    order = copy.deepcopy(population.orders[0]).draw_epoch()
    specs[0].data.train_inputs[order[2]] = torch.nan
    report = population.train_epoch()
    assert list(report.interventions) == [0]
    by_step = 8 * population.costs.host_training
    assert report.flops.tolist() == [3 * by_step, 4 * by_step]


def test_every_snapshot_is_that_of_the_current_state(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = make_specs(MLP, (32, 40, 7))
    population = StackedPopulation(Builder(MLP), specs, CONFIG)
    take, n_taken = population._take_snapshot, []

    def checked(**options: bool) -> None:
        take(**options)
        n_taken.append(0)
        states = population.state, population._snapshot
        first, second = ([sorted(store.hosts) for store in state.stores()] for state in states)
        assert first == second
        for host in range(population.n_hosts):
            now, saved = population.state.get_host(host), population._snapshot.get_host(host)
            assert now.facts == saved.facts
            assert now.tensors.keys() == saved.tensors.keys()
            for name, tensor in now.tensors.items():
                assert torch.equal(tensor, saved.tensors[name])

    monkeypatch.setattr(population, "_take_snapshot", checked)
    seed = GrowthAction(op=Op.GERMINATE, slot="blocks.1", blueprint="low_rank", alpha_target=0.7)
    gated = replace(seed, style=BlendStyle.LEARNED_GATE)
    ungated = replace(seed, op=Op.SET_ALPHA_TARGET, alpha_speed_epochs=0)
    # Hosts join and leave groups that others are in.
    acting = {
        1: [(0, gated), (2, gated)],
        2: [(0, replace(seed, op=Op.ADVANCE))],
        3: [(1, gated), (2, replace(seed, op=Op.ADVANCE))],
        4: [(1, replace(seed, op=Op.ADVANCE))],
        7: [(2, replace(seed, op=Op.ADVANCE))],
        10: [(2, ungated)],
        11: [(0, replace(seed, op=Op.PRUNE, alpha_speed_epochs=0))],
    }
    for epoch in range(14):
        for host, action in acting.get(epoch, []):
            assert population.apply(host, action).was_done
        if epoch == 12:
            population.restart(1, specs[2])
            population.apply(1, gated)
        population.train_epoch()
    assert len(n_taken) == 14 + len(acting) + 1
