"""One training of a host tells what every stopping epoch would have come to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.environment import GrowthVectorEnv, run_episodes
from esper.environment.draws import PURPOSES, draw_seed
from esper.evidence.controllers import Stopping
from esper.evidence.host_trainer import PART, Bench
from esper.lifecycle.factored_actions import GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import FirstSeed
from esper.tamiyo import FixedSchedule, Planting, RandomController, WaitController
from esper.tasks import make_task

N_EPOCHS = 9
HOSTS = range(4)


def make_bench(task: str = "spirals", **options: object) -> Bench:
    made = make_task(task, n_epochs=N_EPOCHS, batches_per_epoch=2, **options)  # type: ignore[arg-type]
    return Bench(made, purpose="tuning", final_split="validation")


def envs_of(bench: Bench, n_hosts: int) -> GrowthVectorEnv:
    """Return environments of the same hosts, which know nothing of benches."""
    return GrowthVectorEnv(bench.task, n_hosts, purpose=bench.purpose, autoreset=False)


PLANTINGS = [
    Planting(slot="blocks.0", blueprint="widen_large"),
    Planting(slot="blocks.1", blueprint="mlp_small", epoch=1),
]


@pytest.mark.parametrize("task", ["spirals", "digits-family"])
def test_every_stopping_epoch_is_what_finishing_then_gives(task: str) -> None:
    bench = make_bench(task)
    envs = envs_of(bench, len(HOSTS))
    runs = bench.run(
        HOSTS, lambda growth, _: FixedSchedule(growth.layout, PLANTINGS), every_epoch=("final",)
    )
    assert (runs.grown >= 1).all()
    for stop in range(N_EPOCHS + 1):
        schedule = FixedSchedule(envs.layout, PLANTINGS, finish_after=stop)
        finished = run_episodes(envs, schedule, seed=0)
        np.testing.assert_allclose(runs.accuracy_by_epoch[:, stop], finished.scores, atol=1e-12)
        np.testing.assert_allclose(runs.flops_by_epoch[:, stop], finished.flops, rtol=1e-12)
        sizes = finished.host_parameters + finished.seed_parameters
        np.testing.assert_array_equal(runs.parameters_by_epoch[:, stop], sizes)


def test_ends_are_those_of_episodes_and_stay_after_an_early_finish() -> None:
    bench = make_bench()
    random = RandomController(op_weights={Op.FINISH: 0.3})
    runs = bench.run(HOSTS, lambda *_: random, every_epoch=("final", "validation"))
    results = run_episodes(envs_of(bench, len(HOSTS)), random, seed=0)
    np.testing.assert_array_equal(runs.accuracy, results.scores)
    np.testing.assert_array_equal(runs.flops, results.flops)
    np.testing.assert_array_equal(runs.n_epochs, results.n_epochs)
    np.testing.assert_array_equal(runs.op_counts, results.op_counts)
    assert len(set(runs.n_epochs.tolist())) > 1
    for host, end in enumerate(runs.n_epochs):
        assert (runs.accuracy_by_epoch[host, end:] == runs.accuracy[host]).all()
        assert (runs.flops_by_epoch[host, end:] == runs.flops[host]).all()
        n_decisions = end + runs.op_counts[host, Op.FINISH]
        assert ((runs.actions[host, :, 0] >= 0).sum()) == n_decisions


def test_hosts_can_be_stopped_each_at_its_own_epoch() -> None:
    bench, stops = make_bench(), np.array([0, 3, N_EPOCHS, 5])
    runs = bench.run(HOSTS, lambda *_: Stopping(WaitController(), stops))
    whole = bench.run(HOSTS, lambda *_: WaitController(), every_epoch=("final",))
    np.testing.assert_array_equal(runs.n_epochs, stops)
    np.testing.assert_allclose(runs.accuracy, whole.accuracy_by_epoch[range(4), stops])
    np.testing.assert_allclose(runs.flops, whole.flops_by_epoch[range(4), stops])
    assert runs.flops[0] == 0.0


def test_the_number_of_a_committed_seed_gives_the_weights_it_had() -> None:
    task = make_task("spirals", n_epochs=16, batches_per_epoch=1)
    bench = Bench(task, purpose="tuning", final_split="validation")
    plantings = [
        Planting(slot="blocks.1", blueprint="widen_small"),
        Planting(slot="blocks.0", blueprint="mlp_large", epoch=1),
    ]
    runs = bench.run([7], lambda growth, _: FixedSchedule(growth.layout, plantings))
    assert runs.number.tolist() == [[1, 0]]
    envs = envs_of(bench, 1)
    observations, _ = envs.reset(seed=[7])
    schedule = FixedSchedule(envs.layout, plantings)
    schedule.start(1)
    stages = envs.growth.population.slot_arrays().stage
    while stages[0, 0] != Stage.GERMINATED:
        observations, *_ = envs.step(schedule.act(observations, envs.masks, np.zeros(1, np.bool_)))
    grown = envs.growth.population.get_state(0).part("seed/blocks.0")
    envs.reset(seed=[7])
    action = GrowthAction(op=Op.GERMINATE, slot="blocks.0", blueprint="mlp_large")
    envs.growth.plant({0: [FirstSeed(action=action, number=int(runs.number[0, 0]))]})
    planted = envs.growth.population.get_state(0).part("seed/blocks.0")
    assert all(torch.equal(planted[name], tensor) for name, tensor in grown.items())
    assert envs.growth.records.seed_parameters[0, 0] == sum(t.numel() for t in grown.values())


def test_a_population_is_used_again_for_fewer_hosts() -> None:
    bench = make_bench()
    bench.run(range(6), lambda *_: RandomController())
    again = bench.run([9, 4], lambda *_: RandomController(), every_epoch=("final",))
    fresh = make_bench().run([9, 4], lambda *_: RandomController(), every_epoch=("final",))
    for name, values in again.arrays().items():
        np.testing.assert_allclose(values, fresh.arrays()[name], atol=1e-12, err_msg=name)


def test_parts_do_not_change_what_becomes_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench()
    whole = bench.run(range(5), lambda *_: WaitController())
    monkeypatch.setattr("esper.evidence.host_trainer.PART", 2)
    parts = make_bench().run(range(5), lambda *_: WaitController())
    np.testing.assert_allclose(parts.accuracy, whole.accuracy)
    np.testing.assert_allclose(parts.flops, whole.flops)
    assert PART > 2


def test_purposes_never_share_the_number_that_decides_a_host() -> None:
    numbers = {
        purpose: {draw_seed(purpose, seed, 0) for seed in range(3000)}  # type: ignore[arg-type]
        for purpose in PURPOSES
    }
    assert not numbers["evaluation"] & (numbers["training"] | numbers["tuning"])
    assert not numbers["tuning"] & numbers["training"]
