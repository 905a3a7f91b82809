"""The records of episodes agree with the models themselves."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from esper.environment.records import EpisodeRecords
from esper.growth.host_slots import slots
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.stages import Stage
from esper.tamiyo.policy.observations import HISTORY
from tests.environment.worlds import (
    choose,
    life_of_a_seed,
    make_envs,
    module_slot,
    random_actions,
    wait,
)


def accuracy(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return (model(inputs).argmax(1) == targets).double().mean().item()


@pytest.mark.parametrize("form", ["torch", "auto"])
def test_scores_and_contributions_agree_with_the_models(form: str) -> None:
    envs = make_envs(4, "digits-family", form=form, n_epochs=14)
    envs.reset(seed=0)
    population, records = envs.growth.hosts, envs.growth.records
    config, at = envs.slot_config, module_slot(envs.slot_config)
    script = [*life_of_a_seed(config)[:6], *[choose(Op.WAIT)] * 4]
    worths: list[float] = []
    measured_stages: set[int] = set()
    for step, row in enumerate(script):
        late = choose(Op.WAIT) if step < 2 else script[step - 2]
        envs.step(np.stack([row, row, late, choose(Op.WAIT)]))
        arrays = population.slot_arrays()
        for host in range(4):
            data = population.specs[host].data
            sample = data.validation_inputs, data.validation_targets
            model = population.model(host)
            score = accuracy(model, *sample)
            assert records.score[host] == pytest.approx(score, abs=1e-9)
            is_open = arrays.stage[host, at] == Stage.HOLDING
            assert np.flatnonzero(records.slots.is_measured[host]).tolist() == [at] * int(is_open)
            if is_open:
                with slots(model)[config.slot_ids[at]].switched_off():
                    worth = score - accuracy(model, *sample)
                assert records.slots.contribution[host, at] == pytest.approx(worth, abs=1e-9)
                worths.append(worth)
                measured_stages.add(int(arrays.stage[host, at]))
            else:
                assert np.isnan(records.slots.contribution[host, at])
            n = sum(p.numel() for p in model.parameters())
            added = sum(p.numel() for p in slots(model)["blocks.0"].seed_parameters())
            assert records.n_parameters[host] + records.slots.grown_parameters[host].sum() == n
            assert records.slots.grown_parameters[host, at] == added
    assert measured_stages == {Stage.HOLDING}
    assert len(set(worths)) > 1


@pytest.mark.parametrize("form", ["torch", "auto"])
def test_a_slot_that_grows_again_is_paid_for_and_observed(form: str) -> None:
    envs = make_envs(2, "digits", form=form, n_epochs=20)
    envs.reset(seed=0)
    population, records, layout = envs.growth.hosts, envs.growth.records, envs.layout
    hidden, factor = records.slots.first_hidden[0, 0], 1
    widen = choose(Op.GERMINATE, 0, envs.slot_config.blueprint_index("widen_large"))
    for _ in range(2):
        for row in (widen, *[choose(Op.WAIT)] * 5):
            observations, *_ = envs.step(np.stack([row, choose(Op.WAIT)]))
            n = sum(parameter.numel() for parameter in population.model(0).parameters())
            assert records.n_parameters[0] + records.slots.grown_parameters[0].sum() == n
        factor *= 2
        seen = layout.slot(observations, "growth")[:, 0]
        np.testing.assert_allclose(seen, [np.log2(factor) / 4, 0.0], rtol=1e-5)
        place = population.model(0).get_submodule("blocks.0.first")
        assert len(place.weight) == factor * hidden


def test_a_pruned_seed_contributes_nothing() -> None:
    envs = make_envs(2, "digits-family", n_epochs=14)
    envs.reset(seed=0)
    config = envs.slot_config
    script = [*life_of_a_seed(config)[:6], choose(Op.PRUNE, module_slot(config))]
    for row in script[:-1]:
        envs.step(np.stack([row, row]))
    assert (np.nan_to_num(envs.growth.records.slots.contribution) != 0.0).any()
    envs.step(np.stack([script[-1]] * 2))
    assert np.isnan(envs.growth.records.slots.contribution).all()


def count_flops(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor | None) -> int:
    """Count a training step, or a forward pass without targets, with torch's counter."""
    counter = FlopCounterMode(display=False)
    with counter:
        if targets is None:
            with torch.no_grad():
                model.eval()(inputs)
        else:
            nn.functional.cross_entropy(model.train()(inputs), targets).backward()
    return counter.get_total_flops()


def test_every_step_is_charged_the_flops_that_torch_counts() -> None:
    envs = make_envs(3, "digits-family", n_epochs=14, batches_per_epoch=2)
    envs.reset(seed=1)
    population, records = envs.growth.hosts, envs.growth.records
    for row in [*life_of_a_seed(envs.slot_config), choose(Op.WAIT)]:
        before = records.flops_used.copy()
        envs.step(np.stack([row, choose(Op.WAIT), row]))
        spent = (records.flops_used - before) * records.reference_flops
        for host in range(3):
            data = population.specs[host].data
            model = copy.deepcopy(population.model(host))
            batch = data.train_inputs[:32], data.train_targets[:32]
            expected = 2 * count_flops(model, *batch)
            expected += count_flops(model, data.validation_inputs, None)
            is_blended = slots(model)["blocks.0"].life.is_growing and slots(model)["blocks.0"].alpha
            is_best = records.settled_epoch[host] == records.epoch[host]
            # The contribution of a held seed, and whether to keep it if training ended here.
            n_without = int(records.slots.is_measured[host].any()) + int(
                is_best and bool(is_blended)
            )
            for _ in range(n_without):
                with slots(model)["blocks.0"].switched_off():
                    expected += count_flops(model, data.validation_inputs, None)
            assert spent[host] == pytest.approx(expected, rel=0.01), row
    design = envs.task.make_host(0)
    assert records.n_parameters.min() < sum(p.numel() for p in design.parameters())
    for host in range(3):
        data = population.specs[host].data
        batch = data.train_inputs[:32], data.train_targets[:32]
        watching = count_flops(design, data.validation_inputs, None)
        reference = 14 * (2 * count_flops(design, *batch) + watching)
        assert records.reference_flops[host] == pytest.approx(reference, rel=0.01)


def test_histories_hold_the_scores_seen_so_far() -> None:
    envs = make_envs(3, n_epochs=12)
    envs.reset(seed=0)
    records, generator = envs.growth.records, np.random.default_rng(0)
    scores, norms = [records.score.copy()], [records.gradient_norm.copy()]
    losses = [records.validation_losses[:, -1].copy()]
    unknown = [np.full(3, np.nan)] * HISTORY
    for _ in range(10):
        envs.step(random_actions(envs, generator))
        scores.append(records.score.copy())
        norms.append(records.gradient_norm.copy())
        losses.append(records.validation_losses[:, -1].copy())
        for seen, known in ((records.scores, scores), (records.validation_losses, losses)):
            np.testing.assert_array_equal(seen.T, [*unknown, *known][-HISTORY:])
        np.testing.assert_array_equal(records.best_score, np.max(scores, axis=0))
        np.testing.assert_array_equal(records.first_loss, losses[0])
        np.testing.assert_array_equal(records.best_loss, np.min(losses, axis=0))
        np.testing.assert_array_equal(records.previous_gradient_norm, norms[-2])
        np.testing.assert_array_equal(records.first_gradient_norm, norms[1])
    assert (np.max(scores, axis=0) > scores[-1]).any()


def test_seed_gradient_norms_are_recorded() -> None:
    envs = make_envs(2, "digits-family")
    envs.reset(seed=0)
    for row in life_of_a_seed(envs.slot_config)[:3]:
        observations, *_ = envs.step(np.stack([row, choose(Op.WAIT)]))
    norms = envs.growth.records.slots.gradient_norm
    at = module_slot(envs.slot_config)
    assert norms[0, at] > 0.0
    assert (norms > 0.0).sum() == 1
    health = envs.layout.slot(observations, "gradient_health")
    assert health[0, at] > -1.0
    assert (health[1] == -1.0).all()


def test_a_rolled_back_host_is_flagged_for_one_step() -> None:
    envs = make_envs(2, n_epochs=6, form="torch")
    envs.reset(seed=0)
    inputs = envs.growth.hosts.specs[0].data.train_inputs
    kept = inputs.clone()
    inputs.fill_(torch.nan)
    observations, *_, info = envs.step(wait(2))
    assert info["was_restored"].tolist() == [True, False]
    assert info["intervention"].tolist() == ["the loss is nan", ""]
    assert envs.layout.host(observations, "was_restored").tolist() == [1.0, 0.0]
    inputs.copy_(kept)
    observations, *_, info = envs.step(wait(2))
    assert info["was_restored"].tolist() == [False, False]
    assert envs.layout.host(observations, "was_restored").tolist() == [0.0, 0.0]


def test_finish_costs_no_rent() -> None:
    envs = make_envs(1)
    envs.reset(seed=0)
    for row in life_of_a_seed(envs.slot_config):
        *_, info = envs.step(row[None])
    assert info["reward_terms"]["rent"][0] < 0.0
    *_, info = envs.step(choose(Op.FINISH)[None])
    assert info["reward_terms"]["rent"][0] == 0.0
    assert info["final_info"]["seed_parameters"][0] > 0


def test_clearing_resets_the_record_of_one_host() -> None:
    records = EpisodeRecords.blank(SlotArrays.blank(2, 3))
    for values in records.columns().values():
        assert (values == 0).all()
    records.score[:] = 1.0
    records.slots.contribution[:] = 0.5
    records.clear(1)
    np.testing.assert_array_equal(records.score, [1.0, np.nan])
    assert records.slots.contribution[0].tolist() == [0.5] * 3
    assert np.isnan(records.slots.contribution[1]).all()
    assert records.last_op.tolist() == [0, -1]
