"""The headroom of a task: what the best setting of each host gains, without counting luck."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from esper.errors import ConfigError
from esper.evidence.cache import ResultCache
from esper.evidence.search_space import Candidate, size_candidates
from esper.evidence.tuning import TuningRuns, halve
from esper.statistics import Interval
from esper.tamiyo import NoGrowth
from tests.training.test_host_runs import N_EPOCHS, make_trainer

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "evidence" / "prior" / "headroom.py"
SPEC = importlib.util.spec_from_file_location("prior_headroom", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
room: Any = importlib.util.module_from_spec(SPEC)
sys.modules["prior_headroom"] = room
SPEC.loader.exec_module(room)

C, N, T = 12, 400, 5


def noisy(truth: np.ndarray, spread: float) -> Any:
    generator = np.random.default_rng(0)
    chooser, judge = (truth + spread * generator.standard_normal(truth.shape) for _ in range(2))
    return room.HindsightScores(chooser=chooser, judge=judge)


def test_equal_settings_have_no_headroom_although_luck_suggests_it() -> None:
    scores = noisy(np.zeros((C, N, T)), spread=0.05)
    assert abs(room.choose_for_each(scores).mean()) < 0.01
    assert room.choose_by_luck(scores).mean() > 0.1


def test_each_hosts_own_best_setting_is_found() -> None:
    generator = np.random.default_rng(1)
    truth = np.zeros((C, N, T))
    truth[generator.integers(C, size=N), np.arange(N), generator.integers(T, size=N)] = 0.2
    assert room.choose_for_each(noisy(truth, spread=0.01)).mean() == pytest.approx(0.2, abs=0.005)
    blurred = room.choose_for_each(noisy(truth, spread=0.05)).mean()
    assert 0.12 < blurred < 0.2


def test_one_setting_that_is_best_for_all_is_chosen_for_all() -> None:
    truth = np.zeros((C, N, T))
    truth[3, :, 2] = 0.02
    scores = noisy(truth, spread=0.05)
    assert room.choose_for_each(scores).mean() == pytest.approx(0.02, abs=0.008)


def test_candidates_are_scored_on_both_splits_minus_their_price() -> None:
    trainer = make_trainer()
    candidates = size_candidates(trainer.slot_config)[:2]
    cache = ResultCache(None, {})
    scores = room.score_candidates(trainer, candidates, range(3), price=0.4, cache=cache)
    assert scores.judge.shape == (2, 3, N_EPOCHS + 1)
    for own, found, split in (
        (room.SecondTraining(trainer), scores.chooser, "validation"),
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
        costs = 0.4 * growth.records.flops_used[:3]
        np.testing.assert_allclose(found[1, :, 4], settled[:3] - costs)
    assert candidates[0] == Candidate()


@pytest.mark.parametrize("task", ["spirals", "digits-family"])
def test_a_second_training_has_the_same_data_and_other_weights(task: str) -> None:
    trainer = make_trainer(task)
    first, other = trainer.start(range(2)), room.SecondTraining(trainer).start(range(2))
    for host in range(2):
        specs = first.hosts.specs[host], other.hosts.specs[host]
        assert torch.equal(specs[0].data.train_inputs, specs[1].data.train_inputs)
        assert torch.equal(specs[0].data.validation_targets, specs[1].data.validation_targets)
        assert specs[0].learning_rate == specs[1].learning_rate
        pairs = zip(
            first.hosts.model(host).parameters(),
            other.hosts.model(host).parameters(),
            strict=True,
        )
        assert any(not torch.equal(one, two) for one, two in pairs)
    runs = [
        one.run(range(2), lambda *_: NoGrowth()) for one in (trainer, room.SecondTraining(trainer))
    ]
    assert not np.array_equal(runs[0].score, runs[1].score)
    np.testing.assert_allclose(runs[0].flops, runs[1].flops)


@pytest.fixture(scope="module")
def measured() -> Any:
    return room.headroom(
        "spirals",
        n_hosts=4,
        tuning_runs=12,
        price=0.1,
        task_options={"n_epochs": 4, "batches_per_epoch": 1},
    )


def test_the_optimistic_estimate_is_at_least_the_headroom(measured: Any) -> None:
    assert measured.optimistic.mean >= max(0.0, measured.headroom.mean)
    assert measured.n_candidates >= 2
    assert measured.tuning_runs <= 24
    assert measured.task_options == {"n_epochs": 4, "batches_per_epoch": 1}
    assert "4 hosts are too few" in measured.sentence


def test_the_sentence_states_what_the_interval_supports(measured: Any) -> None:
    some = replace(
        measured,
        n_hosts=99,
        headroom=Interval(0.02, 0.01, 0.03, 99),
        optimistic=Interval(0.05, 0.04, 0.06, 99),
    )
    assert some.sentence.startswith("There is headroom of about +2.0 [1.0, 3.0] points on spirals")
    assert "at most 6.0 points" in some.sentence
    none = replace(some, headroom=Interval(0.001, -0.01, 0.012, 99))
    assert none.sentence.startswith(
        "No headroom is shown on spirals at price 0.1: +0.1 [-1.0, 1.2]"
    )
    assert some.to_json()["sentence"] == some.sentence


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match="tuning_runs is 0"):
        room.headroom("spirals", tuning_runs=0)


class _Simulated:
    """Stands in for host runs: given scores plus noise."""

    def __init__(self, value: Callable[[int], float], candidates: list[Candidate]) -> None:
        self._value, self._candidates = value, candidates
        self.trainer = self
        self.stops = (0, 1)

    def curves(
        self, candidates: Sequence[Candidate], hosts: Sequence[int], on_share: object
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = np.zeros((len(candidates), len(hosts), 2))
        for row, candidate in enumerate(candidates):
            number = self._candidates.index(candidate)
            for column, host in enumerate(hosts):
                noise = np.random.default_rng((number, host)).normal(0.0, 0.05, 2)
                scores[row, column] = self._value(number) + noise
        return scores, np.zeros_like(scores)


def test_families_are_compared_on_their_common_hosts() -> None:
    candidates = size_candidates(make_trainer().slot_config)[:8]
    hard = {host: 0.5 * (host >= 8) for host in range(999)}

    class Drifting(_Simulated):
        def curves(self, candidates: Any, hosts: Any, on_share: object) -> Any:
            scores, flops = super().curves(candidates, hosts, on_share)
            return scores - np.array([hard[host] for host in hosts])[None, :, None], flops

    runs = cast(TuningRuns, Drifting(lambda number: 0.3 * (number >= 4), candidates))
    few = halve(runs, candidates[:4], price=0.0, budget=24)
    many = halve(runs, candidates[4:], price=0.0, budget=240)
    assert few.best.value > many.best.value
    assert room.best_of(runs, [few, many], 0.0) == many.best


def test_the_pool_takes_turns_among_families() -> None:
    runs = TuningRuns(make_trainer(), ResultCache(None, {}))
    four = size_candidates(runs.trainer.slot_config)[:4]
    first = halve(runs, four[:2], price=0.3, budget=4)
    second = halve(runs, four[2:], price=0.3, budget=4)
    pool = room.pool_of([first, second])
    assert pool == [first.ranking[0], second.ranking[0], first.ranking[1], second.ranking[1]]
