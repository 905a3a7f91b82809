"""Hindsight scores measure what could be gained without counting luck."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.evidence.cache import ResultCache
from esper.evidence.headroom import (
    HindsightScores,
    choose_by_luck,
    choose_for_each,
    score_candidates,
)
from esper.evidence.search_space import Candidate, static_candidates
from esper.tamiyo import WaitController
from tests.evidence.test_host_runs import N_EPOCHS, make_trainer

C, N, T = 12, 400, 5


def noisy(truth: np.ndarray, spread: float) -> HindsightScores:
    generator = np.random.default_rng(0)
    chooser, judge = (truth + spread * generator.standard_normal(truth.shape) for _ in range(2))
    return HindsightScores(chooser=chooser, judge=judge)


def test_equal_settings_have_no_headroom_although_luck_suggests_it() -> None:
    scores = noisy(np.zeros((C, N, T)), spread=0.05)
    assert abs(choose_for_each(scores).mean()) < 0.01
    assert choose_by_luck(scores).mean() > 0.1


def test_each_hosts_own_best_setting_is_found() -> None:
    generator = np.random.default_rng(1)
    truth = np.zeros((C, N, T))
    truth[generator.integers(C, size=N), np.arange(N), generator.integers(T, size=N)] = 0.2
    assert choose_for_each(noisy(truth, spread=0.01)).mean() == pytest.approx(0.2, abs=0.005)
    blurred = choose_for_each(noisy(truth, spread=0.05)).mean()
    assert 0.12 < blurred < 0.2


def test_one_setting_that_is_best_for_all_is_chosen_for_all() -> None:
    truth = np.zeros((C, N, T))
    truth[3, :, 2] = 0.02
    scores = noisy(truth, spread=0.05)
    assert choose_for_each(scores).mean() == pytest.approx(0.02, abs=0.008)


def test_candidates_are_scored_on_both_splits_minus_their_price() -> None:
    trainer = make_trainer()
    candidates = static_candidates(trainer.slot_config)[:2]
    cache = ResultCache(None, {})
    scores = score_candidates(trainer, candidates, range(3), price=0.4, cache=cache)
    assert scores.judge.shape == (2, 3, N_EPOCHS + 1)
    for own, found, split in (
        (trainer.again(), scores.chooser, "validation"),
        (trainer, scores.judge, "final"),
    ):
        growth = own.start(range(3))
        growth.plant(dict.fromkeys(range(3), candidates[1].first_seeds()))
        records = growth.records
        settled = records.final_score if split == "final" else records.settled_score
        np.testing.assert_allclose(found[1, :, 0], settled[:3])
        waits = np.zeros((growth.n_hosts, 8), np.int64)
        for _ in range(4):
            growth.step(waits)
        costs = 0.4 * growth.records.paid_flops[:3]
        np.testing.assert_allclose(found[1, :, 4], settled[:3] - costs)
    assert candidates[0] == Candidate()


@pytest.mark.parametrize("task", ["spirals", "digits-family"])
def test_a_second_training_has_the_same_data_and_other_weights(task: str) -> None:
    trainer = make_trainer(task)
    first, other = trainer.start(range(2)), trainer.again().start(range(2))
    for host in range(2):
        specs = first.population.specs[host], other.population.specs[host]
        assert torch.equal(specs[0].data.train_inputs, specs[1].data.train_inputs)
        assert torch.equal(specs[0].data.validation_targets, specs[1].data.validation_targets)
        assert specs[0].learning_rate == specs[1].learning_rate
        pairs = zip(
            first.population.model(host).parameters(),
            other.population.model(host).parameters(),
            strict=True,
        )
        assert any(not torch.equal(one, two) for one, two in pairs)
    runs = [one.run(range(2), lambda *_: WaitController()) for one in (trainer, trainer.again())]
    assert not np.array_equal(runs[0].accuracy, runs[1].accuracy)
    np.testing.assert_allclose(runs[0].flops, runs[1].flops)
