"""Tuning chooses what trying everything would have chosen, within its budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from esper.evidence import tuning
from esper.evidence.cache import ResultCache
from esper.evidence.host_trainer import HostTrainer
from esper.evidence.search_space import (
    Candidate,
    fixed_candidates,
    heuristic_candidates,
    static_candidates,
    widening_sets,
)
from esper.evidence.tuning import (
    Buckets,
    ContextTable,
    TunedArms,
    TuningRuns,
    best_of,
    count_heuristics,
    halve,
    plan_rungs,
    pool_of,
    tune_contexts,
)
from esper.tamiyo import FixedSchedule, Planting
from tests.evidence.test_host_runs import make_trainer

PRICE = 0.3
NO_CACHE = ResultCache(None, {})


@pytest.fixture(scope="module")
def runs() -> TuningRuns:
    return TuningRuns(make_trainer(), NO_CACHE)


@pytest.fixture(scope="module")
def four(runs: TuningRuns) -> list[Candidate]:
    return static_candidates(runs.trainer.slot_config)[:4]


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
    """Return the mean score of each stopping epoch, each from its own training."""
    scores = []
    for stop in trainer.stops:
        plan = list(candidate.grown)
        ends = trainer.run(
            hosts,
            lambda growth, _, stop=stop, plan=plan: FixedSchedule(
                growth.layout, plan, finish_after=stop
            ),
            seeds=dict.fromkeys(range(len(hosts)), candidate.first_seeds()),
        )
        scores.append((ends.accuracy - PRICE * ends.flops).mean())
    return np.array(scores)


def test_a_candidate_to_keep_is_never_dropped(runs: TuningRuns, four: list[Candidate]) -> None:
    free = halve(runs, four, price=PRICE, budget=24)
    worst = free.ranking[-1]
    kept = halve(runs, four, price=PRICE, budget=24, keep=worst)
    assert {host for one, host in kept.runs if one == worst} == set(range(8))
    assert {host for one, host in free.runs if one == worst} == set(range(4))
    other = Candidate(planted=(Planting(slot="blocks.1", blueprint="low_rank"),))
    assert other in halve(runs, four, price=PRICE, budget=24, keep=other).ranking


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


def test_buckets_hold_a_third_each() -> None:
    generator = np.random.default_rng(0)
    n_classes, n_samples = generator.permutation(90), generator.permutation(900)[:90]
    buckets = Buckets.of(n_classes, n_samples)
    found = buckets.find(n_classes, n_samples)
    for host in range(90):
        row = sum(n_classes[host] > edge for edge in buckets.classes)
        column = sum(n_samples[host] > edge for edge in buckets.samples)
        assert found[host] == 3 * row + column
    assert np.bincount(found // 3).tolist() == [30, 30, 30]
    assert np.bincount(found % 3).tolist() == [30, 30, 30]


def test_a_context_table_has_the_best_choice_of_each_bucket(
    runs: TuningRuns, four: list[Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "N_DRAWS", 24)
    monkeypatch.setattr(tuning, "MIN_BUCKET_HOSTS", 6)
    family = halve(runs, four[:2], price=PRICE, budget=24)
    table = tune_contexts(runs, [family], price=PRICE, budget=10_000)
    n_classes, n_samples = runs.trainer.contexts(range(24))
    found = table.buckets.find(n_classes, n_samples)
    own = [bucket for bucket in range(9) if (found == bucket).sum() >= 6]
    assert sorted(table.choices) == own
    assert len(own) > 1
    for bucket in own:
        hosts = np.flatnonzero(found == bucket).tolist()
        accuracy, flops = runs.curves(four[:2], hosts, lambda _: None)
        means = (accuracy - PRICE * flops).mean(1)
        candidate, stop = np.unravel_index(means.argmax(), means.shape)
        scores, overall = accuracy - PRICE * flops, table.overall
        common = scores[four.index(overall.candidate), :, overall.stop]
        gains = scores[candidate, :, stop] - common
        is_own = gains.mean() > gains.std(ddof=1) / len(hosts) ** 0.5
        assert table.choices[bucket].candidate == (four[candidate] if is_own else overall.candidate)
        assert table.choices[bucket].stop == (stop if is_own else overall.stop)
    chosen = table.choose(n_classes, n_samples)
    for host in range(24):
        assert chosen[host] == table.choices.get(int(found[host]), table.overall)


class _Simulated:
    """Stands in for host runs: given scores plus noise."""

    def __init__(self, value: Callable[[int, int], float], candidates: list[Candidate]) -> None:
        self._value, self._candidates = value, candidates
        self.trainer = self
        self.stops = (0, 1)

    def contexts(self, hosts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        kinds = np.array(hosts) % 9
        return kinds // 3, kinds % 3

    def curves(
        self, candidates: Sequence[Candidate], hosts: Sequence[int], on_share: object
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = np.zeros((len(candidates), len(hosts), 2))
        for row, candidate in enumerate(candidates):
            number = self._candidates.index(candidate)
            for column, host in enumerate(hosts):
                noise = np.random.default_rng((number, host)).normal(0.0, 0.05, 2)
                scores[row, column] = self._value(number, host % 9) + noise
        return scores, np.zeros_like(scores)


def test_a_kind_of_host_gets_its_own_choice_only_if_clearly_better() -> None:
    candidates = static_candidates(make_trainer().slot_config)[:16]

    def tables(value: Callable[[int, int], float]) -> ContextTable:
        runs = cast(TuningRuns, _Simulated(value, candidates))
        family = halve(runs, candidates, price=0.0, budget=2048)
        return tune_contexts(runs, [family], price=0.0, budget=4096)

    alike = tables(lambda number, _: 0.001 * number)
    n_own = sum(choice != alike.overall for choice in alike.choices.values())
    assert n_own <= 6
    lost = [
        0.001 * (candidates.index(alike.overall.candidate) - candidates.index(one.candidate))
        for one in alike.choices.values()
    ]
    assert np.mean(lost) < 0.003
    mixed = tables(lambda number, kind: 0.2 * (number == 3 and kind == 4))
    assert mixed.choices[4].candidate == candidates[3]


def test_families_are_compared_on_their_common_hosts() -> None:
    candidates = static_candidates(make_trainer().slot_config)[:8]
    hard = {host: 0.5 * (host >= 8) for host in range(999)}

    class Drifting(_Simulated):
        def curves(self, candidates: Any, hosts: Any, on_share: object) -> Any:
            scores, flops = super().curves(candidates, hosts, on_share)
            return scores - np.array([hard[host] for host in hosts])[None, :, None], flops

    runs = cast(TuningRuns, Drifting(lambda number, _: 0.3 * (number >= 4), candidates))
    few = halve(runs, candidates[:4], price=0.0, budget=24)
    many = halve(runs, candidates[4:], price=0.0, budget=240)
    assert few.best.value > many.best.value
    assert best_of(runs, [few, many], 0.0) == many.best


def test_a_larger_budget_tries_more_heuristics() -> None:
    assert [count_heuristics(budget) for budget in (8, 256, 1024, 4096, 16384)] == [
        2,
        16,
        64,
        128,
        512,
    ]


def test_the_pool_takes_turns_among_families(runs: TuningRuns, four: list[Candidate]) -> None:
    first = halve(runs, four[:2], price=PRICE, budget=4)
    second = halve(runs, four[2:], price=PRICE, budget=4)
    pool = pool_of([first, second])
    assert pool == [first.ranking[0], second.ranking[0], first.ranking[1], second.ranking[1]]


def test_candidates_are_distinct_and_fit_their_slots() -> None:
    config = make_trainer().slot_config
    static, fixed = static_candidates(config), fixed_candidates(config, 16)
    assert Candidate() in static
    assert Candidate() in fixed
    assert len(set(static)) == len(static)
    assert len(set(fixed)) == len(fixed)
    names = {p.blueprint for one in static for p in one.planted}
    assert {"widen_small", "widen_medium", "widen_large", "mlp_small", "mlp_large"} <= names
    assert "noop" not in names
    for one in (*static, *fixed):
        for planting in (*one.planted, *one.grown):
            assert config.does_fit(planting.blueprint, planting.slot)
    assert any(len(one.planted) == 2 for one in static)
    assert {p.epoch for one in fixed for p in one.grown} == {0, 2, 4}
    drawn = heuristic_candidates(config, 12)
    assert len(set(drawn)) == 12
    assert drawn == heuristic_candidates(config, 12)
    assert len(widening_sets(config)) == 16


def test_cached_tuned_arms_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "N_DRAWS", 20)
    monkeypatch.setattr(tuning, "MIN_BUCKET_HOSTS", 5)

    def run() -> list[np.ndarray]:
        cache = ResultCache(tmp_path, {"task": "spirals"})
        evaluation = HostTrainer(make_trainer().task, purpose="evaluation", final_split="test")
        arms = TunedArms(make_trainer(), evaluation, budget=6, cache=cache)
        done = [arms.run(name, range(3), PRICE) for name in ("static", "context_table")]
        return [np.concatenate([one.accuracy, one.flops, one.n_epochs]) for one in done]

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
