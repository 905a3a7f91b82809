"""Slot arrays stay in sync with the slots through every kind of change."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from esper.config.growth import PopulationConfig
from esper.growth.host_slots import slots
from esper.growth.modules import count_parameters
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import (
    ALPHA_CURVES,
    STYLES,
    GrowthAction,
    Op,
    decode_action,
    growth_action_spec,
)
from esper.populations import Population
from tests.populations.worlds import (
    FORMS,
    MLP,
    Builder,
    Make,
    apply_all,
    make_specs,
)


def assert_arrays_follow(population: Population) -> None:
    """Compare every entry with its life."""
    arrays, config = population.slot_arrays(), population.slot_config
    for host in range(population.n_hosts):
        for column, (slot, life) in enumerate(population.lives(host).items()):
            at = host, column
            schedule = life.schedule
            assert arrays.stage[at] == life.stage
            assert arrays.age_epochs[at] == life.age_epochs
            assert arrays.stage_epochs[at] == life.stage_epochs
            assert arrays.alpha[at] == life.alpha
            assert arrays.alpha_at_rest[at] == schedule.is_at_rest
            assert (arrays.ramp_epochs_left[at] == 0) == schedule.is_at_rest
            assert STYLES[arrays.style[at]] == life.style
            assert ALPHA_CURVES[arrays.curve[at]] == schedule.curve
            name = config.blueprints[arrays.blueprint[at]] if arrays.blueprint[at] >= 0 else ""
            assert name == (life.blueprint if life.has_seed else "")
            assert arrays.n_fossils[at] == len(life.fossils)
            assert arrays.fossil_units[at] == sum(fossil.units for fossil in life.fossils)
            if config.slot_ids[column].count("*"):  # the model's own layers
                continue
            place = slots(population.model(host))[slot]
            assert isinstance(place, SeedSlot)
            assert arrays.fossil_parameters[at] == count_parameters(place.fossils)
            assert arrays.parameters[at] == sum(map(count_parameters, (place.seed, place.gate)))
            if life.has_seed and life.alpha > 0:
                assert arrays.alpha_target[at] == schedule.target


def act_at_random(population: Population, generator: np.random.Generator) -> None:
    sizes = growth_action_spec(population.slot_config).sizes
    rare = (Op.FINISH, Op.WAIT, Op.PRUNE)
    for host in range(population.n_hosts):
        for _ in range(10):
            action = decode_action(generator.integers(sizes), population.slot_config)
            if action.op == Op.PRUNE and generator.random() < 0.1:
                break
            if action.op not in rare and population.lives(host).is_legal(action):
                break
        if population.lives(host).is_legal(action) and action.op != Op.FINISH:
            population.apply(host, action)


@pytest.mark.parametrize("form", FORMS)
def test_arrays_follow_random_walks_with_failures_restarts_and_loads(
    form: Make,
) -> None:
    specs = make_specs(MLP, (16, 16, 24))
    population = form(Builder(MLP), specs, PopulationConfig(batch_size=8))
    generator = np.random.default_rng(3)
    seen: set[int] = set()
    for epoch in range(70):
        act_at_random(population, generator)
        assert_arrays_follow(population)
        seen |= set(population.slot_arrays().stage.flatten().tolist())
        if epoch == 20:
            population.restart(1, specs[0])
            assert_arrays_follow(population)
        if epoch == 30:
            population.load_state_dict(population.state_dict())
            assert_arrays_follow(population)
        if epoch == 40:
            population.set_state(2, population.get_state(0))
            assert_arrays_follow(population)
        population.train_epoch()
        assert_arrays_follow(population)
    assert len(seen) == 9
    assert population.slot_arrays().n_fossils.max() > 0


@pytest.mark.parametrize("form", FORMS)
def test_arrays_follow_the_governor(form: Make) -> None:
    specs = make_specs(MLP, (16, 16))
    specs[0].data.train_inputs.fill_(torch.nan)
    population = form(Builder(MLP), specs, PopulationConfig(batch_size=8))
    population.apply(0, GrowthAction(op=Op.GERMINATE, slot="blocks.0", blueprint="norm"))
    assert population.slot_arrays().stage[0, 2] == 1
    report = population.train_epoch()
    assert list(report.interventions) == [0]
    assert_arrays_follow(population)
    assert (population.slot_arrays().blueprint == -1).all()


@pytest.mark.parametrize("form", FORMS)
def test_removing_uncommitted_seeds_keeps_committed_ones(form: Make) -> None:
    population = form(Builder(MLP), make_specs(MLP, (16, 16)), PopulationConfig(batch_size=8))
    grow = GrowthAction(op=Op.GERMINATE, slot="blocks.0", blueprint="mlp_large")
    go = GrowthAction(op=Op.ADVANCE, slot="blocks.0")
    keep = GrowthAction(op=Op.FOSSILIZE, slot="blocks.0")
    wait = GrowthAction()
    for action in (grow, go, go, wait, wait, go):
        apply_all(population, [action, action])
        population.train_epoch()
    population.apply(0, keep)
    before = population.evaluate().losses
    for host in range(2):
        population.end_growth(host, keep=False)
    assert_arrays_follow(population)
    after = population.evaluate().losses
    assert after[0] == before[0]
    assert after[1] != before[1]
    without = population.evaluate(without_slot="blocks.0").losses
    assert after[1] == without[1]


@pytest.mark.parametrize("form", FORMS)
def test_a_copied_model_does_not_change_the_arrays(form: Make) -> None:
    population = form(Builder(MLP), make_specs(MLP, (16, 16)), PopulationConfig(batch_size=8))
    slots(population.model(0)).germinate("blocks.0", "norm")
    assert not population.slot_arrays().stage.any()
    assert_arrays_follow(population)


@pytest.mark.parametrize("form", FORMS)
def test_seed_gradient_norms_match_autograd(form: Make) -> None:
    specs = make_specs(MLP, (8, 8))
    population = form(Builder(MLP), specs, PopulationConfig(batch_size=8))
    population.apply(1, GrowthAction(op=Op.GERMINATE, slot="blocks.1", blueprint="mlp_small"))
    population.apply(1, GrowthAction(op=Op.ADVANCE, slot="blocks.1"))
    model = population.model(1)
    report = population.train_epoch()
    data = specs[1].data
    torch.nn.functional.cross_entropy(model(data.train_inputs), data.train_targets).backward()
    seed = dict(model.named_parameters())
    grads = [
        p.grad.flatten() for name, p in seed.items() if ".seed." in name and p.grad is not None
    ]
    expected = torch.cat(grads).norm().item()
    np.testing.assert_allclose(
        report.seed_gradient_norms[:, 2:], [[0, 0], [0, expected]], rtol=1e-4
    )


@pytest.mark.parametrize("form", FORMS)
def test_gradient_noise_is_the_spread_of_the_batches_norms(form: Make) -> None:
    config = PopulationConfig(batch_size=8, learning_rate=1e-12)  # so that the model stays
    population = form(Builder(MLP), make_specs(MLP, (24, 8)), config)
    model, data = population.model(0), population.specs[0].data
    norms: list[float] = []
    for batch in copy.deepcopy(population.orders[0]).draw_epoch():
        model.zero_grad()
        outputs = model(data.train_inputs[batch])
        torch.nn.functional.cross_entropy(outputs, data.train_targets[batch]).backward()
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        norms.append(torch.cat(grads).norm().item())
    noise = population.train_epoch().gradient_noise
    assert len(norms) == 3
    assert noise[0] == pytest.approx(np.std(norms) / np.mean(norms), rel=1e-4)
    assert noise[1] == pytest.approx(0.0, abs=1e-6)  # a single batch
