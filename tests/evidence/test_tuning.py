"""Tuning chooses what trying everything would have chosen, within its budget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from esper.evidence.cache import ResultCache
from esper.evidence.search_space import (
    Candidate,
    fixed_candidates,
    heuristic_candidates,
    size_candidates,
)
from esper.evidence.tuning import (
    TunedArms,
    TuningRuns,
    count_heuristics,
    halve,
    plan_rungs,
)
from esper.tamiyo import FixedSchedule
from esper.training.host_trainer import HostTrainer
from tests.training.test_host_runs import make_trainer

PRICE = 0.3
NO_CACHE = ResultCache(None, {})


@pytest.fixture(scope="module")
def runs() -> TuningRuns:
    return TuningRuns(make_trainer(), NO_CACHE)


@pytest.fixture(scope="module")
def four(runs: TuningRuns) -> list[Candidate]:
    return size_candidates(runs.trainer.slot_config)[:4]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 100])
@pytest.mark.parametrize("budget", [2, 5, 60, 455, 4096])
def test_halving_stays_within_its_budget_and_ends_with_two(n: int, budget: int) -> None:
    rungs = plan_rungs(n, budget)
    spent, before = 0, 0
    for number, (candidates, hosts) in enumerate(rungs):
        spent += candidates * (hosts - before)
        before = hosts
        if number:
            assert candidates == -(-rungs[number - 1][0] // 2)
            assert hosts == 2 * rungs[number - 1][1]
    assert spent <= max(budget, 1)
    assert rungs[-1][0] <= 2
    assert rungs[0][0] <= n


def test_halving_worked_by_hand() -> None:
    # 8 x 4 + 4 x 4 + 2 x 8 = 64 host runs.
    assert plan_rungs(8, 64) == [(8, 4), (4, 8), (2, 16)]
    assert plan_rungs(8, 63) == [(8, 3), (4, 6), (2, 12)]


def test_the_choice_is_the_best_candidate_and_stop_on_the_last_hosts(
    runs: TuningRuns, four: list[Candidate]
) -> None:
    tuned = halve(runs, four, price=PRICE, budget=12)
    assert plan_rungs(4, 12) == [(4, 2), (2, 4)]
    on_two = {one: brute_force(runs.trainer, one, range(2)) for one in four}
    best_two = sorted(four, key=lambda one: -on_two[one].max())[:2]
    on_four = {one: brute_force(runs.trainer, one, range(4)) for one in best_two}
    best = max(best_two, key=lambda one: on_four[one].max())
    assert tuned.best.candidate == best
    assert tuned.best.stop == np.round(on_four[best], 9).argmax()
    assert tuned.best.value == pytest.approx(on_four[best].max())
    assert set(tuned.ranking) == set(four)
    assert tuned.ranking[0] == best
    assert len(tuned.runs) == 12


def brute_force(trainer: HostTrainer, candidate: Candidate, hosts: range) -> np.ndarray:
    """Return the mean return of each stopping epoch, each from its own training."""
    returns = []
    for stop in trainer.stops:
        plan = list(candidate.grown)
        ends = trainer.run(
            hosts,
            lambda growth, _, stop=stop, plan=plan: FixedSchedule(
                growth.layout, plan, finish_after=stop
            ),
            seeds=dict.fromkeys(range(len(hosts)), candidate.first_seeds()),
        )
        returns.append((ends.score - PRICE * ends.flops).mean())
    return np.array(returns)


def test_another_price_repeats_no_run(four: list[Candidate]) -> None:
    runs = TuningRuns(make_trainer(), NO_CACHE)
    made: list[int] = []
    run = runs.trainer.run
    runs.trainer.run = lambda hosts, *a, **k: made.append(len(hosts)) or run(hosts, *a, **k)  # type: ignore[method-assign]
    cheap = halve(runs, four, price=0.0, budget=24)
    dear = halve(runs, four, price=5.0, budget=24)
    assert sum(made) == len(cheap.runs | dear.runs)
    assert dear.best.stop == 0
    assert cheap.best.stop > 0


def test_a_larger_budget_tries_more_heuristics() -> None:
    assert [count_heuristics(budget) for budget in (8, 256, 1024, 4096, 16384)] == [
        2,
        16,
        64,
        128,
        512,
    ]


def test_candidates_are_distinct_and_fit_their_slots() -> None:
    config = make_trainer().slot_config
    sizes, fixed = size_candidates(config), fixed_candidates(config, 16)
    assert Candidate() in sizes
    assert Candidate() in fixed
    assert len(set(sizes)) == len(sizes)
    assert len(set(fixed)) == len(fixed)
    names = {p.blueprint for one in sizes for p in one.planted}
    assert {"widen_small", "widen_medium", "widen_large", "mlp_small", "mlp_large"} <= names
    assert "noop" not in names
    for one in (*sizes, *fixed):
        for planting in (*one.planted, *one.grown):
            assert config.does_fit(planting.blueprint, planting.slot)
    assert any(len(one.planted) == 2 for one in sizes)
    assert {p.epoch for one in fixed for p in one.grown} == {0, 2, 4}
    drawn = heuristic_candidates(config, 12)
    assert len(set(drawn)) == 12
    assert drawn == heuristic_candidates(config, 12)


def test_cached_tuned_arms_are_the_same(tmp_path: Path) -> None:
    def run() -> list[np.ndarray]:
        cache = ResultCache(tmp_path, {"task": "spirals"})
        evaluation = HostTrainer(make_trainer().task, purpose="evaluation", final_split="test")
        arms = TunedArms(make_trainer(), evaluation, budget=6, cache=cache)
        done = [arms.run(name, range(3), PRICE) for name in ("fixed-size", "fixed")]
        return [np.concatenate([one.score, one.flops, one.n_epochs]) for one in done]

    first = run()
    n_files = len(list(tmp_path.iterdir()))
    again = run()
    assert n_files == len(list(tmp_path.iterdir())) > 1
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_damaged_cache_file_is_made_again_and_keys_are_kept_apart(tmp_path: Path) -> None:
    cache, made = ResultCache(tmp_path, {"task": "a"}), list[int]()

    def make() -> dict[str, list[int]]:
        made.append(1)
        return {"values": [1, 2]}

    for _ in range(2):
        assert cache.get({"host": 1}, make)["values"].tolist() == [1, 2]
    assert len(made) == 1
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:20])
    cache.get({"host": 1}, make)
    assert len(made) == 2
    cache.get({"host": 2}, make)
    ResultCache(tmp_path, {"task": "b"}).get({"host": 1}, make)
    assert len(made) == 4
