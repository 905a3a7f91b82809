"""Hosts that start with committed seeds are the static networks that growth would lead to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.config.growth import GrowthConfig, PopulationConfig
from esper.errors import IllegalActionError, SlotError
from esper.growth.export import export
from esper.growth.footprint import training_step_flops
from esper.lifecycle.factored_actions import BlendStyle, GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import (
    FirstSeed,
    Population,
)
from tests.populations.test_forms_agree import assert_same_state, make_pair
from tests.populations.worlds import (
    FORMS,
    MLP,
    Builder,
    Make,
    make_specs,
)

CONFIG = PopulationConfig(batch_size=8, learning_rate=0.01)


def germinate(slot: str, blueprint: str, **choices: object) -> GrowthAction:
    return GrowthAction(op=Op.GERMINATE, slot=slot, blueprint=blueprint, **choices)  # type: ignore[arg-type]


def wide_and_gated(number: int = 0) -> list[FirstSeed]:
    return [
        FirstSeed(action=germinate("blocks.0", "mlp_large"), number=number),
        FirstSeed(
            action=germinate(
                "blocks.1", "mlp_small", style=BlendStyle.LEARNED_GATE, alpha_target=0.5
            ),
            number=number + 1,
        ),
    ]


def make(form: Make) -> Population:
    eager = GrowthConfig(min_training_epochs=0)
    return form(Builder(MLP), make_specs(MLP, (40, 24)), CONFIG, growth_config=eager)


def grow(population: Population, host: int, actions: list[GrowthAction]) -> None:
    """Germinate seeds in turn without training, advancing each until the next may germinate."""
    for action in actions:
        population.apply(host, action)
        for _ in range(2):
            outcome = population.apply(host, GrowthAction(op=Op.ADVANCE, slot=action.slot))
            assert outcome.was_done


@pytest.mark.parametrize("form", FORMS)
def test_planted_seeds_have_the_weights_of_grown_ones_and_are_blended_immediately(
    form: Make,
) -> None:
    planted, grown = make(form), make(form)
    planted.plant(1, wide_and_gated())
    grow(grown, 1, [seed.action for seed in wide_and_gated()])
    theirs = grown.get_state(1).tensors
    own = planted.get_state(1).tensors
    assert own.keys() == theirs.keys()
    for name, tensor in own.items():
        assert torch.equal(tensor, theirs[name]), name
    lives = dict(planted.lives(1).items())
    assert [life.stage for life in lives.values()][2:] == [Stage.FOSSILIZED] * 2
    assert [life.alpha for life in lives.values()][2:] == [1.0, 0.5]
    assert (planted.slot_arrays().stage[1, 2:] == Stage.FOSSILIZED).all()
    assert (planted.slot_arrays().stage[0] == Stage.DORMANT).all()


@pytest.mark.parametrize("form", FORMS)
def test_the_number_of_a_seed_determines_its_weights(form: Make) -> None:
    planted, grown = make(form), make(form)
    planted.plant(0, [FirstSeed(action=germinate("blocks.0", "mlp_small"), number=1)])
    grow(grown, 0, [germinate(f"blocks.{index}", "mlp_small") for index in (1, 0)])
    theirs = grown.get_state(0).tensors
    seeds = {n: t for n, t in planted.get_state(0).tensors.items() if "blocks.0.seed." in n}
    assert seeds
    for name, tensor in seeds.items():
        assert torch.equal(tensor, theirs[name])


@pytest.mark.parametrize("design", ["mlp", "cnn"])
def test_both_forms_agree_on_planted_hosts_and_their_costs(design: str) -> None:
    pair = make_pair(design, CONFIG, torch.float64)
    blueprint = "mlp_small" if design == "mlp" else "conv_small"
    seeds = [FirstSeed(action=germinate("blocks.1", blueprint), number=0)]
    for population in pair:
        population.plant(0, seeds)
        population.plant(2, seeds)
    for _ in range(3):
        reports = [population.train_epoch() for population in pair]
        np.testing.assert_allclose(reports[0].flops, reports[1].flops)
    assert_same_state(*pair, 1e-9)
    order, model = pair[0].orders[0], pair[0].model(0)
    per_sample = training_step_flops(model, pair[0].specs[0].data.train_inputs[:1])
    assert reports[0].flops[0] == pytest.approx(per_sample * order.n_batches * order.batch_size)


@pytest.mark.parametrize("form", FORMS)
def test_a_host_with_a_planted_widening_trains_like_a_wider_network(form: Make) -> None:
    population = make(form)
    population.plant(
        0,
        [
            FirstSeed(action=germinate("blocks.*.first>second", "widen_medium"), number=index)
            for index in range(2)
        ],
    )
    wide = export(population.model(0))
    assert sum(p.numel() for p in wide.parameters()) > sum(
        p.numel() for p in Builder(MLP)(0).parameters()
    )
    optimizer = torch.optim.Adam(wide.parameters(), lr=CONFIG.learning_rate)
    inputs, targets = population.specs[0].data.split("train")
    order = make(form).orders[0]
    for _ in range(3):
        population.train_epoch()
        for batch in torch.from_numpy(order.draw_epoch()):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(wide(inputs[batch]), targets[batch]).backward()
            optimizer.step()
    trained = export(population.model(0))
    torch.testing.assert_close(trained(inputs), wide(inputs), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_planting_is_rejected_after_training_and_where_it_does_not_fit(
    form: Make,
) -> None:
    population = make(form)
    with pytest.raises(IllegalActionError, match="does not fit"):
        population.plant(0, [FirstSeed(action=germinate("blocks.0", "conv_small"), number=0)])
    population.train_epoch()
    with pytest.raises(SlotError, match=r"host \d .*1 epochs"):
        population.plant(1, wide_and_gated())


@pytest.mark.parametrize("form", FORMS)
def test_committed_only_evaluation_leaves_out_every_other_seed(form: Make) -> None:
    population = make(form)
    population.plant(0, wide_and_gated()[:1])
    population.apply(0, germinate("blocks.1", "mlp_large"))
    for _ in range(2):
        population.apply(0, GrowthAction(op=Op.ADVANCE, slot="blocks.1"))
        population.train_epoch()
    for _ in range(4):
        population.train_epoch()
    as_it_is = population.evaluate(hosts=[0])
    committed = population.evaluate(hosts=[0], committed_only=True)
    assert committed.losses[0] != as_it_is.losses[0]
    assert committed.flops[0] < as_it_is.flops[0]
    population.end_growth(0, keep=False)
    left = population.evaluate(hosts=[0])
    np.testing.assert_array_equal(committed.losses, left.losses)
    np.testing.assert_array_equal(committed.metrics, left.metrics)
    np.testing.assert_array_equal(committed.flops, left.flops)
