"""Both forms of a population copy each host's own block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper.config.growth import GrowthConfig, MLPHostConfig, PopulationConfig
from esper.growth.export import export
from esper.growth.hosts import make_host
from esper.growth.modules import count_parameters
from esper.lifecycle.factored_actions import WAIT, GrowthAction, Op
from esper.populations import (
    FirstSeed,
    HostSpec,
    SequentialPopulation,
    StackedPopulation,
    vector_hosts,
)
from tests.populations.test_forms_agree import act, assert_same_state, run_together
from tests.populations.worlds import CONFIGS, MLP, Builder, make_specs, to_double

Pair = tuple[SequentialPopulation, StackedPopulation]


def make_pair(design: str, start: Any = "copied") -> Pair:
    growth = GrowthConfig(deepen_start=start, min_training_epochs=0, embargo_epochs=50)
    build, specs = (
        Builder(CONFIGS[design], torch.float64),
        to_double(make_specs(CONFIGS[design], (24, 16, 9))),
    )
    config = PopulationConfig(batch_size=8, weight_decay=0.01)
    return (
        SequentialPopulation(build, specs, config, growth_config=growth),
        StackedPopulation(build, specs, config, growth_config=growth),
    )


def script(slot: str) -> list[list[GrowthAction]]:
    """Train, then deepen the first host and, later and more slowly, the second."""
    go = act(Op.ADVANCE, slot)
    return [
        [WAIT, WAIT, WAIT],
        [act(Op.GERMINATE, slot, blueprint="deepen"), WAIT, WAIT],
        [go, act(Op.GERMINATE, slot, blueprint="deepen", alpha_target=0.5), WAIT],
        [go, go, WAIT],
        [WAIT, go, WAIT],
        [WAIT, WAIT, act(Op.GERMINATE, slot, blueprint="norm")],
    ]


@pytest.mark.parametrize(
    ("design", "start"), [("mlp", "copied"), ("mlp", "fresh"), ("cnn", "copied"), ("gpt", "copied")]
)
def test_both_forms_agree_while_hosts_deepen(design: str, start: Any) -> None:
    pair = make_pair(design, start)
    run_together(pair, script("blocks.0"), tolerance=1e-9)


def test_the_kernel_computes_copies_of_linear_blocks() -> None:
    _, stacked = make_pair("mlp")
    action = act(Op.GERMINATE, "blocks.0", blueprint="deepen")
    stacked.plant(0, [FirstSeed(action=action, number=0)])
    is_compiled = vector_hosts.is_kernel_available()
    assert [stacked.vector_hosts.has_program(host) for host in range(3)] == [is_compiled] * 3


@pytest.mark.parametrize("form", [0, 1])
def test_a_copy_has_the_weights_of_its_own_host(form: int) -> None:
    population = make_pair("mlp")[form]
    population.train_epoch()
    population.apply(1, act(Op.GERMINATE, "blocks.0", blueprint="deepen"))
    tensors = population.get_state(1).tensors
    own, copied = tensors["host/blocks.0.first.weight"], tensors["seed/blocks.0/block.first.weight"]
    assert torch.equal(copied, own)
    assert not torch.equal(own, population.get_state(0).tensors["host/blocks.0.first.weight"])
    assert not tensors["seed/blocks.0/block.second.weight"].any()


def test_hosts_of_several_widths_copy_blocks_of_their_own_size() -> None:
    design = replace(MLP, hidden=6)

    def build_as(config: MLPHostConfig) -> Any:
        return lambda seed: make_host(config, seed=seed, design=design).double()

    specs: list[HostSpec] = to_double(make_specs(MLP, (24, 16)))
    specs[1] = replace(specs[1], build=build_as(replace(MLP, hidden=3)))
    growth = GrowthConfig(min_training_epochs=0, embargo_epochs=50)
    pair = tuple(
        form(build_as(design), specs, PopulationConfig(batch_size=8), growth_config=growth)
        for form in (SequentialPopulation, StackedPopulation)
    )
    slot = "blocks.0"
    both = [act(Op.GERMINATE, slot, blueprint="deepen")] * 2
    go = [act(Op.ADVANCE, slot)] * 2
    run_together(pair, [[WAIT, WAIT], both, go, go, [WAIT, WAIT]], tolerance=1e-9)  # type: ignore[arg-type]
    costs = [pair[0].costs_of(host).seed_work(slot, "deepen", False).parameters for host in (0, 1)]
    blocks = [count_parameters(pair[0].model(host).blocks[0].block) for host in (0, 1)]
    assert costs == blocks
    assert costs[0] > costs[1]


@pytest.mark.parametrize("design", ["mlp", "gpt"])
def test_planted_copies_train_alike_in_both_forms(design: str) -> None:
    pair = make_pair(design)
    seed = FirstSeed(action=act(Op.GERMINATE, "blocks.0", blueprint="deepen"), number=0)
    for population in pair:
        population.plant(0, [seed])
    reports = [population.train_epoch() for population in pair]
    np.testing.assert_allclose(reports[0].losses, reports[1].losses, atol=1e-9)
    np.testing.assert_array_equal(reports[0].flops, reports[1].flops)
    assert_same_state(*pair, tolerance=1e-9)
    plain = [export(population.model(0)) for population in pair]
    assert len(plain[0].blocks) == len(plain[1].blocks) == CONFIGS[design].n_blocks + 1


@pytest.mark.parametrize("design", ["mlp", "cnn", "gpt"])
def test_both_forms_agree_when_a_slot_deepens_again(design: str) -> None:
    pair = make_pair(design)
    seeds = [
        FirstSeed(action=act(Op.GERMINATE, "blocks.0", blueprint=blueprint), number=number)
        for number, blueprint in enumerate(["deepen", "norm", "deepen", "deepen"])
    ]
    for population in pair:
        for host in range(2):
            population.plant(host, seeds[2 * host :])
    for _ in range(2):
        reports = [population.train_epoch() for population in pair]
        np.testing.assert_allclose(reports[0].losses, reports[1].losses, atol=1e-9)
        np.testing.assert_array_equal(reports[0].flops, reports[1].flops)
    assert_same_state(*pair, tolerance=1e-9)
    inputs = pair[0].specs[0].data.validation_inputs
    for host in range(2):
        model = pair[1].model(host).eval()
        plain = export(model)
        assert len(plain.blocks) == CONFIGS[design].n_blocks + 3 - host
        torch.testing.assert_close(plain(inputs), model(inputs), atol=1e-9, rtol=1e-9)
