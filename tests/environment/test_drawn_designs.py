"""Hosts whose designs, budgets and prices are drawn, side by side in one environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper.config.growth import (
    RELATIVE_REWARDS,
    Budget,
    GrowthConfig,
    MLPHostConfig,
    PopulationConfig,
    RewardConfig,
    RewardForm,
)
from esper.environment.draws import draw_seed
from esper.environment.episodes import GrowthEpisodes
from esper.environment.vector_env import GrowthVectorEnv
from esper.errors import ConfigError
from esper.growth.hosts import HostMaker
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.tamiyo import Controller, NoGrowth
from esper.tamiyo.controllers.price_schedule import PriceSchedule
from esper.tasks import Samples, Task, TaskData, TaskDraw, make_task

MAKERS = [
    HostMaker(
        MLPHostConfig(n_features=3, n_classes=2, width=4, hidden=4, n_blocks=1, has_skips=False)
    ),
    HostMaker(MLPHostConfig(n_features=5, n_classes=3, width=4, hidden=6, n_blocks=2)),
    HostMaker(MLPHostConfig(n_features=2, n_classes=2, width=6, hidden=2, n_blocks=3)),
]
PRICES = [0.0, 0.1, 0.3]
EPOCHS = [4, 6, 5]


def draw(seed: int) -> TaskDraw:
    kind = seed // 4 % 3
    rng = np.random.default_rng([seed])
    config: Any = MAKERS[kind].config
    splits = []
    for n in (64, 24, 24):
        inputs = rng.standard_normal((n, config.n_features)).astype(np.float32)
        targets = rng.permutation(np.arange(n) % config.n_classes)
        splits.append(Samples(torch.from_numpy(inputs), torch.from_numpy(targets)))
    return TaskDraw(
        data=TaskData(train=splits[0], validation=splits[1], test=splits[2]),
        n_classes=config.n_classes,
        learning_rate=0.01,
        make_host=MAKERS[kind],
        batch_size=8 * (1 + kind),
        batches_per_epoch=2 + kind,
        n_epochs=EPOCHS[kind],
        flop_price=PRICES[kind],
    )


TASK = Task(
    name="designs",
    make_host=MAKERS[0],
    draw=draw,
    budget=Budget(n_epochs=6, flop_price=0.2, parameter_rent=0.0),
    training=PopulationConfig(batch_size=16, learning_rate=1e-3),
    growth=GrowthConfig(min_training_epochs=0, min_holding_epochs=0, advances_alone=True),
    draws_price=True,
    draws_designs=True,
    max_slots=5,
)


def kind_of(seed: int) -> int:
    return seed // 4 % 3


def random_actions(growth: GrowthEpisodes, rng: np.random.Generator) -> np.ndarray:
    """Return actions that are mostly germinations in a random slot; illegal ones become waits."""
    actions = rng.integers(0, growth.head_sizes, (growth.n_hosts, len(HEAD_NAMES)))
    actions[:, -1] = np.where(rng.random(growth.n_hosts) < 0.8, Op.GERMINATE, actions[:, -1])
    actions[:, HEAD_NAMES.index("blueprint")] = growth.slot_config.blueprint_index("widen_large")
    return np.where(growth.masks().are_legal(actions)[:, None], actions, 0)


def seeds_of(kinds: list[int], first: int = 0) -> list[int]:
    """Return a draw seed of each kind."""
    return [
        next(s for s in range(first + 100 * n, 10**6) if kind_of(s) == k)
        for n, k in enumerate(kinds)
    ]


def test_hosts_side_by_side_live_as_they_would_alone() -> None:
    seeds = seeds_of([0, 1, 2, 1])
    together = GrowthEpisodes(TASK, seeds)
    alone = [GrowthEpisodes(TASK, [seed]) for seed in seeds]
    rng = np.random.default_rng(0)
    for _ in range(7):
        actions = random_actions(together, rng)
        result = together.step(actions)
        for host, own in enumerate(alone):
            single = own.step(actions[host : host + 1])
            for name, term in result.terms.by_name().items():
                assert term[host] == single.terms.by_name()[name][0], (host, name)
            np.testing.assert_array_equal(together.observe()[host], own.observe()[0])
            assert torch.equal(together.masks().choices[host], own.masks().choices[0])
            np.testing.assert_array_equal(result.slots.stage[host], single.slots.stage[0])
    assert together.records.is_over.all()
    assert together.records.slots.grown_parameters.any()


def test_each_host_has_its_own_budget_and_price() -> None:
    growth = GrowthEpisodes(TASK, seeds_of([0, 1, 2]))
    waits = np.zeros((3, len(HEAD_NAMES)), np.int64)
    costs = np.zeros(3)
    while not growth.records.is_over.all():
        costs -= growth.step(waits).terms.flops_cost
    assert growth.records.epoch.tolist() == EPOCHS
    np.testing.assert_allclose(costs, np.array(PRICES) * growth.records.flops_used)
    # A host that nobody grows costs one reference run, and settling a little more.
    np.testing.assert_allclose(growth.records.flops_used, 1.0, atol=0.2)


def test_a_drawn_budget_stays_within_the_budget_of_the_task() -> None:
    task = replace(TASK, budget=replace(TASK.budget, n_epochs=5))
    growth = GrowthEpisodes(task, seeds_of([0, 1, 2]), rewards=RewardConfig(reward="paired"))
    while not growth.records.is_over.all():
        growth.step(np.zeros((3, len(HEAD_NAMES)), np.int64))
    assert growth.records.epoch.tolist() == [4, 5, 5]


def test_only_hosts_that_cost_something_may_finish() -> None:
    growth = GrowthEpisodes(TASK, seeds_of([0, 1, 2]))
    assert growth.masks()["op"][:, Op.FINISH].tolist() == [False, True, True]


def test_nothing_can_be_done_in_slots_that_a_host_lacks() -> None:
    growth = GrowthEpisodes(TASK, seeds_of([0, 1, 2]))
    germinable = growth.masks()["slot_by_op"][:, Op.GERMINATE]
    # The units, the list of blocks unless they are plain, and each block.
    assert germinable.tolist() == [[n < count for n in range(5)] for count in (2, 4, 5)]


def test_a_host_that_replaces_one_of_another_design_is_as_new() -> None:
    first, then = seeds_of([0, 1, 2]), seeds_of([2, 0, 1], first=1000)
    growth, rng = GrowthEpisodes(TASK, first), np.random.default_rng(1)
    for _ in range(3):
        growth.step(random_actions(growth, rng))
    growth.begin([0, 1, 2], then)
    fresh = GrowthEpisodes(TASK, then)
    rng, other = np.random.default_rng(2), np.random.default_rng(2)
    for _ in range(6):
        np.testing.assert_array_equal(growth.observe(), fresh.observe())
        results = growth.step(random_actions(growth, rng)), fresh.step(random_actions(fresh, other))
        np.testing.assert_array_equal(results[0].terms.total, results[1].terms.total)
    np.testing.assert_array_equal(growth.records.final_score, fresh.records.final_score)


@pytest.mark.parametrize("n_steps", [pytest.param(2, marks=pytest.mark.slow), 9])
def test_a_saved_environment_goes_on_bit_for_bit(n_steps: int) -> None:
    envs, twin = GrowthVectorEnv(TASK, 4), GrowthVectorEnv(TASK, 4)
    envs.reset(seed=3)
    rng = np.random.default_rng(4)
    for _ in range(n_steps):
        envs.step(random_actions(envs.growth, rng))
    twin.load_state_dict(envs.state_dict())
    other = np.random.default_rng()
    other.bit_generator.state = rng.bit_generator.state
    for _ in range(8):
        found = envs.step(random_actions(envs.growth, rng))
        expected = twin.step(random_actions(twin.growth, other))
        for own, wanted in zip(found[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(own, wanted)
    kinds = {kind_of(draw_seed("training", 3, episode)) for episode in range(4)}
    assert len(kinds) > 1


def make_baseline(form: str, growth: GrowthEpisodes) -> Controller:
    """Return the controller that rewards of a form are relative to, started."""
    baseline = NoGrowth() if form == "paired" else PriceSchedule(growth.layout)
    baseline.start(growth.n_hosts)
    return baseline


def act(controller: Controller, growth: GrowthEpisodes, step: int) -> np.ndarray:
    starts = np.full(growth.n_hosts, step == 0)
    return controller.act(growth.observe(), growth.masks(), starts)


@pytest.mark.parametrize("form", RELATIVE_REWARDS)
def test_a_controller_that_does_as_its_baseline_gets_nothing(form: RewardForm) -> None:
    rewards = RewardConfig(reward=form, shaping=0.0)
    growth = GrowthEpisodes(TASK, seeds_of([0, 1, 2]), rewards=rewards)
    baseline = make_baseline(form, growth)
    for step in range(7):
        terms = growth.step(act(baseline, growth, step)).terms
        np.testing.assert_allclose(terms.total, 0.0, atol=1e-12)
    assert growth.records.is_over.all()
    assert (growth.records.slots.grown_parameters[0].sum() > 0) == (form == "scheduled")


@pytest.mark.parametrize("form", RELATIVE_REWARDS)
def test_returns_are_what_is_gained_over_the_baseline(form: RewardForm) -> None:
    seeds = seeds_of([0, 1, 2, 2, 1])
    grown = [
        GrowthEpisodes(TASK, seeds, rewards=RewardConfig(reward=one)) for one in ("dense", form)
    ]
    other = GrowthEpisodes(TASK, seeds, rewards=RewardConfig())
    baseline = make_baseline(form, other)
    generators = [np.random.default_rng(5) for _ in grown]
    returns = np.zeros((3, len(seeds)))
    for step in range(7):
        for index, (growth, rng) in enumerate(zip(grown, generators, strict=True)):
            actions = random_actions(growth, rng)
            actions[0 if step else 1, -1] = Op.FINISH if step == 3 else Op.WAIT
            returns[index] += growth.step(actions).terms.total
            if step == 4:
                stopped = growth.returns_if_stopped()
                assert stopped.shape == (len(seeds),)
        returns[2] += other.step(act(baseline, other, step)).terms.total
    np.testing.assert_allclose(returns[1], returns[0] - returns[2], atol=1e-12)
    assert np.abs(returns[1]).max() > 0.01
    np.testing.assert_allclose(grown[1].returns_if_stopped(), returns[1], atol=1e-12)
    np.testing.assert_array_equal(grown[0].records.final_score, grown[1].records.final_score)


def test_baselines_are_those_of_new_hosts_after_a_restart() -> None:
    rewards = RewardConfig(reward="scheduled", shaping=0.0)
    first, second = seeds_of([0, 1]), seeds_of([2, 0], first=1000)
    growth = GrowthEpisodes(TASK, first, rewards=rewards)
    growth.begin([1], second[1:])
    fresh = GrowthEpisodes(TASK, [first[0], second[1]], rewards=rewards)
    for name in ("baseline_scores", "baseline_flops", "baseline_final_score"):
        np.testing.assert_array_equal(getattr(growth.records, name), getattr(fresh.records, name))
    restored = GrowthEpisodes(TASK, second, rewards=rewards)
    restored.load_state_dict(growth.state_dict())
    np.testing.assert_array_equal(restored.records.baseline_flops, growth.records.baseline_flops)


@pytest.mark.parametrize("form", RELATIVE_REWARDS)
def test_baselines_need_a_population_for_each_host(form: RewardForm) -> None:
    with pytest.raises(ConfigError, match=rf"'{form}'.*'digits'"):
        GrowthEpisodes(make_task("digits"), [0], rewards=RewardConfig(reward=form))
