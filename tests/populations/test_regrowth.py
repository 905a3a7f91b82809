"""Hosts whose slots grow several seeds in turn, in both forms and with the kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from esper.config.growth import GrowthConfig, PopulationConfig
from esper.growth.export import export
from esper.growth.host_slots import slots
from esper.growth.hosts import sample_input
from esper.growth.modules import count_parameters
from esper.lifecycle.factored_actions import BlendStyle, GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import (
    FirstSeed,
    Population,
    SequentialPopulation,
    StackedPopulation,
    vector_hosts,
)
from esper.populations.host_models import CostTable
from tests.growth.helpers import same_state
from tests.populations.test_forms_agree import assert_same_state
from tests.populations.worlds import CONFIGS, MLP, Builder, make_specs, to_double

FORMS = (SequentialPopulation, StackedPopulation)
QUICK = GrowthConfig(min_training_epochs=0, min_holding_epochs=0, embargo_epochs=1)
CONFIG = PopulationConfig(batch_size=8, weight_decay=0.01, seed_lr_factor=0.5)
SIZES = (24, 24, 16, 7, 24)

Step = tuple[int, str, str, BlendStyle, Stage]
"""A host, slot, blueprint and style, and the stage to bring the seed to before the epoch."""


def make(
    form: type[Population],
    design: str,
    *,
    is_double: bool = True,
    growth_config: GrowthConfig = QUICK,
) -> Population:
    specs = make_specs(CONFIGS[design], SIZES)
    build = Builder(CONFIGS[design], torch.float64 if is_double else torch.float32)
    specs = to_double(specs) if is_double else specs
    return form(build, specs, CONFIG, growth_config=growth_config)


def apply(population: Population, step: Step) -> None:
    host, slot, blueprint, style, stage = step
    alpha = (0.5, 0.7, 1.0)[host % 3]
    life = population.lives(host)[slot]
    go = GrowthAction(op=Op.ADVANCE, slot=slot)
    if stage == Stage.PRUNED:
        actions = [GrowthAction(op=Op.PRUNE, slot=slot)]
    else:
        first = GrowthAction(
            op=Op.GERMINATE,
            slot=slot,
            blueprint=blueprint,
            style=style,
            tempo_epochs=0,
            alpha_target=alpha,
        )
        actions = [] if life.has_seed else [first]
        reached = max(life.stage, Stage.GERMINATED)
        actions += [go] * (min(stage, Stage.HOLDING) - reached)
    if stage == Stage.FOSSILIZED:
        actions.append(GrowthAction(op=Op.FOSSILIZE, slot=slot))
    for action in actions:
        assert population.apply(host, action).was_done


ADD, GATE = BlendStyle.ADD_LINEAR, BlendStyle.LEARNED_GATE
MULTIPLY, SIGMOID = BlendStyle.MULTIPLY_LINEAR, BlendStyle.ADD_SIGMOID
KEEP, TRAIN, HOLD = Stage.FOSSILIZED, Stage.TRAINING, Stage.HOLDING
SERIAL = {"mlp": "mlp_small", "cnn": "conv_small", "gpt": "self_attention"}


def script(design: str) -> list[list[Step]]:
    """Hosts that keep up to three seeds in a slot, prune later ones, or keep none."""
    serial, slot = SERIAL[design], "blocks.0"
    other = "blocks.1" if design != "gpt" else slot
    last = [] if design == "gpt" else [(3, other, "widen_large", GATE, KEEP)]
    return [
        [
            (0, slot, "widen_large", ADD, KEEP),
            (1, slot, serial, MULTIPLY, KEEP),
            (2, slot, serial, GATE, TRAIN),
            (4, slot, "widen_small", GATE, KEEP),
        ],
        [
            (0, slot, "widen_medium", SIGMOID, KEEP),
            (1, slot, "widen_large", GATE, KEEP),
            (2, slot, serial, GATE, KEEP),
            (4, slot, serial, GATE, TRAIN),
            *last,
        ],
        [
            (0, slot, serial, ADD, TRAIN),
            (1, slot, "norm", GATE, KEEP),
            (2, slot, "widen_large", ADD, HOLD),
            (3, other, "norm", ADD, HOLD),
            (4, slot, serial, GATE, Stage.PRUNED),
        ],
        [
            (0, slot, serial, ADD, KEEP),
            (1, slot, "widen_large", ADD, TRAIN),
            (2, slot, "widen_large", ADD, KEEP),
        ],
        [(0, slot, "widen_large", ADD, HOLD), (1, slot, "widen_large", ADD, Stage.PRUNED)],
        [],
    ]


def assert_same_epoch(first: Population, second: Population, tolerance: float) -> None:
    reports = [population.train_epoch() for population in (first, second)]
    for name in ("losses", "gradient_norms", "seed_gradient_norms", "gradient_noise"):
        numbers = [getattr(report, name) for report in reports]
        np.testing.assert_allclose(*numbers, atol=tolerance, rtol=0, err_msg=name)
    np.testing.assert_array_equal(reports[0].flops, reports[1].flops)
    asked = [{"without_slot": slot} for slot in first.slot_config.slot_ids]
    for options in ({}, {"committed_only": True}, *asked):
        judged = [population.evaluate(**options) for population in (first, second)]  # type: ignore[arg-type]
        np.testing.assert_allclose(judged[0].losses, judged[1].losses, atol=tolerance, rtol=0)
        np.testing.assert_array_equal(judged[0].flops, judged[1].flops)
    assert_same_state(first, second, tolerance)


@pytest.mark.parametrize(
    ("design", "has_kernel"),
    [
        ("cnn", True),
        pytest.param("mlp", False, marks=pytest.mark.slow),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in ("mlp", "gpt")),
    ],
)
def test_both_forms_agree_when_slots_grow_again(
    design: str, has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernel:
        monkeypatch.setattr(vector_hosts, "_kernel", None)
    pair = make(SequentialPopulation, design), make(StackedPopulation, design)
    for steps in script(design):
        for population in pair:
            for step in steps:
                apply(population, step)
        assert_same_epoch(*pair, tolerance=1e-9)
    n_fossils = [len(pair[1].lives(host)["blocks.0"].fossils) for host in range(len(SIZES))]
    assert n_fossils == [3, 3, 2, 0, 1]
    if design != "gpt" and has_kernel and vector_hosts.is_kernel_available():
        assert isinstance(pair[1], StackedPopulation)
        assert all(pair[1].vector_hosts.has_program(host) for host in range(len(SIZES)))


@pytest.mark.parametrize("design", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_both_forms_agree_on_blocks_that_reach_their_limit(design: str) -> None:
    limited = replace(QUICK, max_widening=5.0)
    pair = [make(form, design, growth_config=limited) for form in FORMS]
    slot = "blocks.0"
    for _ in range(4):
        for population in pair:
            for host, blueprint in ((0, "widen_huge"), (1, "widen_large"), (2, "widen_medium")):
                if population.lives(host)[slot].stage == Stage.DORMANT:
                    apply(population, (host, slot, blueprint, ADD, KEEP))
        assert_same_epoch(pair[0], pair[1], tolerance=1e-9)
    for population in pair:
        lives = [population.lives(host)[slot] for host in range(3)]
        # 4 times and then the rest; 2, 4 times and the rest; 1.5, 2.25, 3.4 times and on.
        assert [life.stage for life in lives] == [KEEP, KEEP, Stage.DORMANT]
        assert [len(life.fossils) for life in lives] == [1, 2, 4]
        hidden = slots(population.template)[slot].site.hidden
        assert [life.units for life in lives[:2]] == [3 * hidden, 3 * hidden]


@pytest.mark.parametrize(
    "form", [pytest.param(SequentialPopulation, marks=pytest.mark.slow), StackedPopulation]
)
@pytest.mark.parametrize("design", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_a_run_resumes_bit_for_bit_in_every_epoch_of_later_lives(
    form: type[Population], design: str
) -> None:
    steps = script(design)
    whole = make(form, design, is_double=False)
    states = [whole.state_dict()]
    for each in steps:
        for step in each:
            apply(whole, step)
        whole.train_epoch()
        states.append(whole.state_dict())
    resumed = make(form, design, is_double=False)
    for epoch in range(1, len(steps)):
        resumed.load_state_dict(states[epoch])
        for step in steps[epoch]:
            apply(resumed, step)
        resumed.train_epoch()
        found, wanted = resumed.state_dict(), states[epoch + 1]
        assert found["facts"] == wanted["facts"]
        assert found["tensors"].keys() == wanted["tensors"].keys()
        for name, tensor in wanted["tensors"].items():
            assert torch.equal(found["tensors"][name], tensor), (epoch, name)


@pytest.mark.parametrize("form", FORMS)
def test_width_doubles_twice_and_the_host_is_exported_as_one_block(form: type[Population]) -> None:
    population = make(form, "mlp")
    for _ in range(2):
        apply(population, (0, "blocks.0", "widen_large", ADD, KEEP))
        population.train_epoch()
    model = population.model(0)
    plain = export(model)
    x = population.specs[0].data.validation_inputs
    torch.testing.assert_close(plain(x), model.eval()(x))
    block = plain.get_submodule("blocks.0")
    assert isinstance(block.first, nn.Linear)
    assert block.first.out_features == 4 * MLP.hidden
    costs = population.costs_of(0)
    added = costs.fossil_parameters("blocks.0", population.lives(0)["blocks.0"])
    assert count_parameters(plain) == costs.host_parameters + added
    static = population.costs_of(1).training_flops(population.lives(1))
    layer = 2 * MLP.width * MLP.hidden
    # Forward and both gradients of two layers, with one and then two times the hidden units.
    assert costs.training_flops(population.lives(0)) == static + 3 * (2 * layer + 4 * layer)


@pytest.mark.parametrize("form", FORMS)
def test_a_rolled_back_host_keeps_its_fossils(form: type[Population]) -> None:
    population = make(form, "mlp")
    apply(population, (0, "blocks.0", "widen_large", GATE, KEEP))
    population.train_epoch()
    apply(population, (0, "blocks.0", "mlp_small", ADD, TRAIN))
    before = population.get_state(0)
    population.specs[0].data.train_inputs[:] = torch.nan
    assert list(population.train_epoch().interventions) == [0]
    after = population.get_state(0)
    life = population.lives(0)["blocks.0"]
    assert (life.stage, len(life.fossils)) == (Stage.EMBARGOED, 1)
    kept = {n for n in before.tensors if {"host", "fossil"} & set(n.split("/"))}
    assert after.tensors.keys() == kept
    for name, tensor in after.tensors.items():
        assert torch.equal(tensor, before.tensors[name]), name
    assert any(name.startswith("fossil/0/gate/blocks.0/") for name in after.tensors)
    assert any(name.startswith("moments/exp_avg/fossil/0/seed/") for name in after.tensors)


@pytest.mark.parametrize("form", FORMS)
def test_several_seeds_can_be_planted_in_one_slot(form: type[Population]) -> None:
    population = make(form, "mlp")

    def first_seed(blueprint: str, number: int) -> FirstSeed:
        action = GrowthAction(op=Op.GERMINATE, slot="blocks.0", blueprint=blueprint)
        return FirstSeed(action=action, number=number)

    population.plant(0, [first_seed("widen_large", 0), first_seed("widen_large", 1)])
    life = population.lives(0)["blocks.0"]
    assert (life.stage, [fossil.units for fossil in life.fossils]) == (KEEP, [MLP.hidden])
    place = slots(population.model(0))["blocks.0"]
    assert place.seed is not None
    assert place.seed.first.weight.shape[0] == 2 * MLP.hidden  # type: ignore[union-attr, index]
    population.train_epoch()
    assert len(population.lives(0)["blocks.0"].fossils) == 2


def test_a_restarted_host_has_no_fossils() -> None:
    for form in FORMS:
        population = make(form, "mlp")
        apply(population, (0, "blocks.0", "widen_large", GATE, KEEP))
        population.train_epoch()
        population.restart(0, population.specs[1])
        assert population.lives(0)["blocks.0"].fossils == ()
        assert not [name for name in population.get_state(0).tensors if "fossil" in name]
        assert population.slot_arrays().fossil_parameters.sum() == 0


@pytest.mark.parametrize("is_double", [False, True])
@pytest.mark.parametrize("blueprint", ["widen_small", "mlp_large", "low_rank", "norm", "noop"])
def test_each_host_draws_its_own_seed_of_a_blueprint(blueprint: str, is_double: bool) -> None:
    # The seeds of the second host and of the second round can be redrawn instead of built.
    pair = [make(form, "mlp", is_double=is_double) for form in FORMS]
    for style in (BlendStyle.LEARNED_GATE, BlendStyle.ADD_LINEAR):
        for host, slot in ((0, "blocks.0"), (1, "blocks.0"), (2, "blocks.1"), (3, "blocks.1")):
            for population in pair:
                apply(population, (host, slot, blueprint, style, Stage.TRAINING))
            tensors = [population.get_state(host).tensors for population in pair]
            assert same_state(*tensors)
        for host in range(4):
            for population in pair:
                population.restart(host, population.specs[host])


def test_the_cost_of_a_seed_does_not_depend_on_the_host_it_was_counted_for() -> None:
    hosts = [Builder(MLP)(0) for _ in range(2)]
    before, after = (CostTable(host, sample_input(MLP)) for host in hosts)
    grown = slots(hosts[1])
    grown.germinate("blocks.0", "widen_large")
    grown.commit("blocks.0")
    grown.absorb("blocks.0")
    for units in (0, MLP.hidden):
        sizes = [
            table.seed_work("blocks.0", "widen_large", False, units).parameters
            for table in (before, after)
        ]
        assert sizes[0] == sizes[1]
